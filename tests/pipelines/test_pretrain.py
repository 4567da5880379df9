"""Pretraining: what moves when, what is kept, and where its weights can be used."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubsar.configs.base import ConfigError, load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import PretrainConfig, PretrainData, ViewChanges
from dubsar.datasets.views import ViewSettings, multi_crop
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import save_model, shipped
from dubsar.pipelines.bench.stage import PlainLoop, Small
from dubsar.pipelines.evaluation import evaluate_stage
from dubsar.pipelines.networks import build_encoder
from dubsar.pipelines.parity.exact.miniature import Miniature, build
from dubsar.pipelines.stages import pretrain
from dubsar.pipelines.stages.pretrain import PretrainSystem, ViewStream, view_settings
from dubsar.pipelines.tile_cache import SignSizes, open_tiles

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def config(*overrides: str) -> PretrainConfig:
    return load(CONFIGS / "debug" / "pretrain.yaml", PretrainConfig, overrides)  # type: ignore[no-any-return]


def changed(miniature: Miniature, **model: Any) -> Miniature:
    """Return a miniature whose system has other settings of its model."""
    settings = miniature.config.model_copy(update={"model": miniature.config.model.model_copy(update=model)})  # type: ignore[union-attr]
    system = PretrainSystem(miniature.system.network, None, settings, miniature.levers)
    return dataclasses.replace(miniature, config=settings, system=system.train())


def loop_of(miniature: Miniature) -> PlainLoop:
    return PlainLoop(Small(miniature.config, miniature.levers, miniature.system, miniature.stream))


def parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def test_a_step_moves_the_student_by_gradients_and_the_teacher_by_its_share() -> None:
    miniature = changed(build("pretrain", Efficiency(), steps=4), teacher_momentum=(0.75, 0.75))
    network, loop = miniature.system.network, loop_of(miniature)
    before, anchor = parameters(network.student), parameters(network.anchor)
    loop.step(miniature.stream.batch(0))
    after = parameters(network.student)
    assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))  # each parameter has a gradient
    for old, new, kept in zip(before, after, parameters(network.teacher), strict=True):
        torch.testing.assert_close(kept, 0.75 * old + 0.25 * new)
    assert all(torch.equal(a, b) for a, b in zip(anchor, parameters(network.anchor), strict=True))
    assert int(network.step) == 1
    assert not network.teacher.training
    assert network.student.training


def test_the_anchor_becomes_the_teacher_when_it_is_its_turn() -> None:
    miniature = build("pretrain", Efficiency(), steps=4)
    gram = miniature.config.model.gram.model_copy(update={"refresh_steps": 2})  # type: ignore[union-attr]
    miniature = changed(miniature, gram=gram, teacher_momentum=(0.5, 0.5))
    network, loop = miniature.system.network, loop_of(miniature)
    for step in range(2):
        start = parameters(network.anchor)
        loop.step(miniature.stream.batch(step), step)
        moved = [not torch.equal(a, b) for a, b in zip(start, parameters(network.anchor), strict=True)]
        assert all(moved) if step == 1 else not any(moved)
    pairs = zip(network.anchor.parameters(), network.teacher.encoder.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_prototypes_learn_only_after_a_while() -> None:
    miniature = changed(build("pretrain", Efficiency(), steps=4), freeze_prototypes_steps=2)
    head, loop = miniature.system.network.student.cls_head, loop_of(miniature)
    for step in range(3):
        before = head.prototypes.weight.detach().clone()
        loop.step(miniature.stream.batch(step), step)
        # weights decay even where nothing is learned: what is left of them points the same way
        cosine = torch.nn.functional.cosine_similarity(before, head.prototypes.weight.detach(), dim=1).min()
        assert (float(cosine) > 1 - 1e-6) == (step < 2)


def test_rates_fall_from_the_heads_to_the_patches_and_decay_follows_its_schedule() -> None:
    miniature = changed(build("pretrain", Efficiency(), steps=4), layer_decay=0.5, weight_decay_end=0.4)
    system, loop = miniature.system, loop_of(miniature)
    rate = {id(p): group["initial_lr"] for group in loop.optimizer.param_groups for p in group["params"]}
    student, lr = system.network.student, system.config.optim.lr
    assert rate[id(student.patch_head.prototypes.weight)] == pytest.approx(lr)
    assert rate[id(student.encoder.net.blocks[1].attn.proj.weight)] == pytest.approx(lr / 2)
    assert rate[id(student.encoder.net.blocks[0].attn.proj.weight)] == pytest.approx(lr / 4)
    assert rate[id(student.encoder.mask_token)] == rate[id(student.encoder.net.cls_token)] == pytest.approx(lr / 8)
    for step in range(4):
        loop.step(miniature.stream.batch(step), step)
    decays = {group["decays"]: group["weight_decay"] for group in loop.optimizer.param_groups}
    first, last = system.config.optim.weight_decay, 0.4
    assert decays == {True: pytest.approx(last + (first - last) * 0.5 * (1 + np.cos(0.75 * np.pi))), False: 0.0}


def test_gram_anchoring_is_off_before_its_step() -> None:
    losses = {}
    for name, start in (("on", 0), ("off", 1)):
        miniature = build("pretrain", Efficiency(), steps=4)
        gram = miniature.config.model.gram.model_copy(update={"from_step": start, "weight": 50.0})  # type: ignore[union-attr]
        system = changed(miniature, gram=gram).system
        logged: dict[str, torch.Tensor] = {}
        system.log, system.log_dict = lambda *_: None, logged.update
        system.training_step(miniature.stream.batch(0), 0)
        losses[name] = {name.removeprefix("train/") for name in logged}
    assert losses == {"on": {"cls", "patch", "koleo", "gram"}, "off": {"cls", "patch", "koleo"}}


def drawn(writing: list[int], together: int, batches: int) -> list[int]:
    """Return the tiles of two photographs with three tiles each that batches of four images are cut from."""
    stream: Any = build("pretrain", Efficiency()).stream
    asked: list[int] = []

    class Tiles:
        photographs = ()
        spans = ((0, 3), (3, 6))

        def __init__(self) -> None:
            self.writing = np.array(writing)

        def __len__(self) -> int:
            return 6

        def tile(self, index: int) -> Any:
            asked.append(index)
            return stream.tiles.tile(index)

        clay = staticmethod(stream.tiles.clay)

    data = stream.config.data.model_copy(update={"together": together, "global_signs": (1.0, 2.0)})
    twin = ViewStream(Tiles(), stream.config.model_copy(update={"data": data}), 8)  # type: ignore[arg-type]
    for number in range(batches):
        twin.batch(number)
    return asked


def test_views_of_an_image_are_cut_from_the_tile_that_is_its_turn() -> None:
    asked = drawn([1] * 6, together=1, batches=3)
    assert sorted(asked[:6]) == sorted(asked[6:]) == list(range(6))  # an epoch shows each tile once
    assert asked[:6] != asked[6:]


def test_a_tile_comes_as_often_as_views_would_cover_its_writing() -> None:
    asked = drawn([1, 4, 8, 0, 8, 12], together=1, batches=5)  # views of at most 2 x 2 signs
    assert [asked[:10].count(tile) for tile in range(6)] == [1, 1, 2, 1, 2, 3]
    assert sorted(asked[10:]) == sorted(asked[:10])


def test_views_lie_around_signs_where_the_config_wants_it_and_a_tile_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = build("pretrain", Efficiency()).stream
    boxes = {tile: np.array([[10, 10, 30 + tile, 30]], np.int16)[: tile % 2] for tile in range(6)}
    monkeypatch.setattr(type(stream.tiles), "signs", lambda _, tile: boxes[tile], raising=False)
    given: list[Any] = []

    def watched(*arguments: Any) -> Any:
        given.append(arguments[4])
        return multi_crop(*arguments)

    monkeypatch.setattr(pretrain, "multi_crop", watched)
    for share, around in ((0.0, set()), (1.0, {31, 33, 35})):
        data = stream.config.data.model_copy(update={"around_signs": share})
        twin = ViewStream(stream.tiles, stream.config.model_copy(update={"data": data}), 8)
        given.clear()
        for number in range(3):  # two epochs
            twin.batch(number)
        assert {int(sign[2]) for sign in given if sign is not None} == around
        assert sum(sign is not None for sign in given) == 2 * len(around)


def test_changes_of_views_are_by_default_those_of_the_views_themselves() -> None:
    settings = ViewSettings()
    assert ViewChanges().model_dump() == {name: getattr(settings, name) for name in ViewChanges.model_fields}
    data = PretrainData()
    for name in ("global_signs", "local_signs", "global_boxes", "local_boxes", "global_px", "local_px", "sign_px"):
        assert getattr(data, name) == getattr(settings, name)


def test_images_of_a_photograph_come_together() -> None:
    asked = drawn([8] * 6, together=4, batches=3)  # 6 images of each: a group of 4 and one of 2
    runs = [len(list(group)) for _, group in itertools.groupby(asked, key=lambda tile: tile < 3)]
    assert sum(runs) == 12
    assert all(run in {2, 4, 6, 8} for run in runs)
    assert max(runs) >= 4
    assert sorted(asked) == sorted(2 * list(range(6)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.global_signs=[3.0, 9.0]", r"views of up to 288 px .* do not fit into tiles of 192 px"),
        ("data.local_boxes=[0.9, 0.5]", r"local_boxes is \[0\.9, 0\.5\], expected the smaller one first"),
        ("data.local_signs=[3.0, 1.0]", r"local_signs is \[3\.0, 1\.0\], expected the smaller one first"),
    ],
)
def test_views_that_cannot_be_cut_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(setting)


def test_pretrained_weights_are_a_classifier_s_to_start_from(tmp_path: Path) -> None:
    miniature = build("pretrain", Efficiency(), steps=2)
    loop_of(miniature).step(miniature.stream.batch(0))
    encoder, model = miniature.system.network.teacher.encoder, miniature.config.model
    save_model(tmp_path / "pretrain", encoder.backbone_state(), {"stage": "pretrain"})
    assert model.normalise == "imagenet"
    classifier = SignClassifier(
        model.backbone,
        7,
        weights=str(tmp_path / "pretrain.safetensors"),
        backbone_args=model.backbone_args,
        normalise="imagenet",
    ).eval()
    pixels = torch.rand(2, 3, 32, 32)
    states_BND = classifier.net.forward_features(classifier.normalised(pixels))
    torch.testing.assert_close(states_BND[:, 0], encoder.eval()(pixels).cls_BD)


@pytest.mark.data
def test_sign_sizes_come_from_boxes_or_from_what_the_detector_finds(data_root: Path) -> None:
    from dubsar.datasets.images import load_image

    sample = CONFIGS.parent / "datasets" / "sample" / "tablet.jpg"
    pixels = load_image(sample).rgb_HW3
    assert SignSizes({sample: 12.5})(sample, pixels).height == 12.5
    found = SignSizes({})(sample, pixels)
    assert 20 < found.height < 80
    assert len(found.boxes_N4) > 20
    assert SignSizes({})(sample, np.zeros((300, 300, 3), np.uint8)).height == 0.0


@pytest.mark.data
def test_tiles_are_cached_of_photographs_and_rendered_tablets(tmp_path: Path, data_root: Path) -> None:
    settings = config(f"data.cache={tmp_path}", "data.limit=2", "data.synthetic_tablets=1")
    tiles = open_tiles(settings, data_root)
    names = {Path(p.path).name for p in tiles.photographs}
    assert len(names) == 3
    assert "synthetic-000001.png" in names
    assert tiles.tile(0).shape == (192, 192, 3)
    again = open_tiles(settings, data_root)
    assert again.photographs == tiles.photographs


def test_views_have_the_config_s_sizes() -> None:
    settings = view_settings(config("model.gram={scale: 3}", "data.global_px=40"))
    assert (settings.global_px, settings.local_px, settings.gram_px) == (40, 16, 120)
    assert view_settings(config("model.gram=null")).gram_px == 0


@pytest.mark.data
@pytest.mark.slow
def test_frozen_features_stand_beside_random_ones_and_gradients(tmp_path: Path) -> None:
    tiny = config()
    encoder = build_encoder(tiny)
    save_model(
        tmp_path / "pretrain", encoder.backbone_state(), {"stage": "pretrain", "config": tiny.model_dump(mode="json")}
    )
    for weights, sources in (
        (tmp_path / "pretrain", {"given", "random", "HOG"}),
        (shipped("classify"), {"given", "HOG"}),
    ):
        scores = evaluate_stage("pretrain", weights, "dev", limit=30)
        assert {subset.split(",")[0] for subset in scores} == sources
        assert all(0 <= part["top1"] <= part["top5"] <= 100 for part in scores.values())
        assert scores["given, knn, all classes"]["crops"] == 30
