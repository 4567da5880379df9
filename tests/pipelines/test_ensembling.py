"""Votes of trained classifiers: found on dev as they should be, written as one file, and used like a single network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import CheckpointError, load_model, save_model, shipped
from dubsar.models.ensemble import SignEnsemble
from dubsar.pipelines import ensembling, evaluation
from dubsar.pipelines.cli import app
from dubsar.pipelines.embeddings import load_embedder
from dubsar.pipelines.ensembling import Votes, fit_votes, load_members, mixed, vote_left_out
from dubsar.pipelines.member_scores import gains
from dubsar.pipelines.networks import load_classifier
from dubsar.pipelines.reading.engine import Engine, classify_crops
from dubsar.pipelines.ship import ship
from dubsar.pipelines.stages.classify import Crops

SIGNS = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒈾", "NA", "110"), SignClass("𒋗", "ŠU", "567")))
CPU = torch.device("cpu")
Makes = Callable[..., Path]


@pytest.fixture
def three(noise_root: Path, a_member: Makes) -> Path:
    """An ensemble of two members of one name and two sides."""
    one = a_member(noise_root / "one", "data.crop_px=32")
    two = a_member(noise_root / "two", "data.crop_px=24", "model.normalise=per_crop", seed=1)
    result = CliRunner().invoke(
        app, ["ensemble", "classify", str(one), str(two), "-o", str(noise_root / "both")], catch_exceptions=False
    )
    assert result.exit_code == 0
    (noise_root / "printed.txt").write_text(result.output, encoding="utf-8")
    return noise_root / "both"


# --- finding the votes


def crops_of(truth: list[int], tablets: list[str]) -> Crops:
    return Crops(np.zeros((len(truth), 1, 1, 3), np.uint8), np.array(truth), np.array(tablets))


def test_a_temperature_is_that_at_which_confidence_is_kept() -> None:
    # three of four right, two classes: likeliest where the right one has probability 3/4, log(3) between the logits
    logits = torch.tensor([[6.0, 0.0]] * 4)
    votes = fit_votes([[logits]], np.array([0, 0, 0, 1]))
    assert votes.weights == (1.0,)
    assert votes.temperatures[0] == pytest.approx(6 / np.log(3), rel=1e-3)
    assert votes.nll == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)), rel=1e-4)


def test_weight_goes_to_whom_it_is_due() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 200)
    clear = np.eye(5)[truth] * 3 + rng.normal(0, 1, (200, 5))
    deaf = rng.normal(0, 1, (200, 5))
    views = [[torch.tensor(v, dtype=torch.float32)] for v in (deaf, clear)]
    votes = fit_votes(views, truth)
    assert votes.weights[1] > 0.9
    assert sum(votes.weights) == pytest.approx(1)
    assert votes.nll <= fit_votes(views[1:], truth).nll + 1e-4
    assert fit_votes(views, truth) == votes  # nothing is drawn
    again = fit_votes(views, truth, votes)
    assert again.nll == pytest.approx(votes.nll, abs=1e-4)
    said = mixed(views, votes)
    assert -np.log(said[np.arange(200), truth]).mean() == pytest.approx(votes.nll, rel=1e-4)


def test_two_halves_of_the_truth_share_the_vote() -> None:
    # each member knows two classes for sure and says nothing of the others
    truth = np.repeat(np.arange(4), 10)
    knows = [np.where(np.isin(truth, known)[:, None], np.eye(4)[truth] * 8, 0) for known in ((0, 1), (2, 3))]
    votes = fit_votes([[torch.tensor(v, dtype=torch.float32)] for v in knows], truth)
    assert votes.weights == pytest.approx((0.5, 0.5), abs=0.01)


def test_a_tablet_is_judged_by_votes_that_have_not_seen_it() -> None:
    # on tablet c alone the second member is right: with c in sight it gets weight, without it none
    truth, tablets = [0, 1] * 6, [*"aabbccccdddd"]
    right, wrong = np.eye(2)[truth] * 4, np.eye(2)[[1 - t for t in truth]] * 4
    is_c = np.array([t == "c" for t in tablets])[:, None]
    views = [[torch.tensor(np.where(is_c, w, r), dtype=torch.float32)] for r, w in ((right, wrong), (wrong, right))]
    crops = crops_of(truth, tablets)
    votes = fit_votes(views, crops.classes_N)
    left_out = vote_left_out(views, crops, votes)
    of_truth = left_out[np.arange(12), truth]
    assert (of_truth[is_c[:, 0]] < mixed(views, votes)[np.arange(12), truth][is_c[:, 0]]).all()
    kept = [[v[~is_c[:, 0]] for v in member] for member in views]
    wanted = mixed([[v[is_c[:, 0]] for v in m] for m in views], fit_votes(kept, crops.classes_N[~is_c[:, 0]], votes))
    np.testing.assert_allclose(left_out[is_c[:, 0]], wanted, rtol=1e-5)
    with pytest.raises(ValueError, match=r"^dev has signs of 1 tablet, expected two or more"):
        vote_left_out(views, crops_of(truth, ["a"] * 12), votes)


def test_a_gain_is_estimated_over_tablets() -> None:
    truth = [0, 1, 2] * 8
    crops = crops_of(truth, [t for t in "abcdefgh" for _ in range(3)])
    before = np.eye(7, dtype=np.float32)[np.array(truth)]
    before[::3] = np.eye(7)[6] + np.arange(7) / 100  # one of three wrong on each tablet
    after = before.copy()
    after[:12] = np.eye(7)[truth[:12]]  # the first four tablets are mended
    rows = gains(before, {"x": after}, crops)
    assert set(rows) == {"x, top1", "x, top5"}
    row = rows["x, top1"]
    assert row["gain"] == pytest.approx(100 * 4 / 24)
    assert row["low"] < row["gain"] < row["high"]
    assert (row["p"] < 0.05) == (row["low"] > 0)
    assert gains(before, {"x": before}, crops)["x, top1"] == {"gain": 0, "low": 0, "high": 0, "p": 1}


# --- the file, and who uses it


def test_one_file_holds_all_and_loads_like_a_single_network(three: Path) -> None:
    network, config, file = load_classifier(three)
    assert isinstance(network, SignEnsemble)
    assert not any(m.training for m in network.modules())
    assert (config.name, config.data.crop_px, network.sides_px) == ("ensemble", 32, (32, 24))
    card = file.card
    assert [m["data"]["crop_px"] for m in card["members"]] == [32, 24]
    assert [p["name"] for p in card["provenance"]] == ["debug", "debug-2"]
    assert [p["training_seconds"] for p in card["provenance"]] == [2.5, 2.5]
    assert [p["sha256"] for p in card["provenance"]] == [
        load_model(three.parent / name, "classify").card["sha256"] for name in ("one", "two")
    ]
    assert (card["training_seconds"], card["licence"]) == (5.0, "Weights: CC BY.")
    assert card["best"] in {"debug", "debug-2"}
    assert network.weights == pytest.approx(card["weights"], abs=1e-6)
    crops = np.random.default_rng(0).integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
    alone, _, _ = load_classifier(three.parent / "one")
    shares = [classify_crops(m, crops).softmax(1) for m in (alone, SignEnsemble([network.members[0]], [32], [1], [1]))]
    torch.testing.assert_close(*shares)
    assert sorted(p.name for p in three.iterdir()) == ["classify.json", "classify.safetensors"]


def test_the_command_prints_weights_scores_and_tested_gains(three: Path) -> None:
    printed = (three.parent / "printed.txt").read_text(encoding="utf-8")
    for text in ("4 tablets", "weight", "temperature", "debug-2", "resnet10t", "votes that were found without it"):
        assert text in printed
    assert f"gain over {load_model(three, 'classify').card['best']}, the best on dev, by tablets" in printed
    assert "95 % interval" in printed
    assert "ensemble, top1" in printed


def test_evaluate_scores_the_members_and_tests_the_gain(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = evaluation.evaluate_stage("classify", three, "test", out=three.parent / "scores.json")
    best = load_model(three, "classify").card["best"]
    row = scores[f"ensemble's gain over {best} (best on dev), top1"]
    gain = scores["three margins"]["top1"] - scores[f"member {best}"]["top1"]
    assert row["gain"] == pytest.approx(gain)
    assert row["low"] <= row["gain"] <= row["high"]
    assert 0 <= row["p"] <= 1
    own = evaluation.evaluate_stage("classify", three.parent / ("one" if best == "debug" else "two"), "test")
    assert own["three margins"]["top1"] == pytest.approx(scores[f"member {best}"]["top1"])
    assert not [name for name in own if "member" in name or "gain" in name]
    assert f"{row['p']:.4f}" in capsys.readouterr().out
    assert json.loads((three.parent / "scores.json").read_text())["scores"] == scores


def test_it_ships_rounded_with_its_weights_as_they_are(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubsar.pipelines.ship.shipped", lambda name: three.parent / "shipped" / name)
    ship("classify", three)
    before, after = (load_model(p, "classify") for p in (three, three.parent / "shipped"))
    for key in ("weights", "temperatures", "members", "provenance", "best", "training_seconds"):
        assert after.card[key] == before.card[key]
    assert after.card["temperature"] > 0
    size = [(p / "classify.safetensors").stat().st_size for p in (three, three.parent / "shipped")]
    assert size[1] < 0.6 * size[0]
    assert isinstance(load_classifier(three.parent / "shipped")[0], SignEnsemble)


def test_its_features_have_the_mean_of_the_cosines(three: Path) -> None:
    network, _, _ = load_classifier(three)
    assert isinstance(network, SignEnsemble)
    both = load_embedder(three, CPU)
    crops = np.random.default_rng(1).integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
    seen = both.embed_crops(crops)
    assert seen.shape == (2, both.width)
    pixels = torch.from_numpy(crops).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        parts = [
            m.net.forward_head(m.net.forward_features(m.normalised(p)), pre_logits=True)
            for m, p in network.shown(pixels)
        ]
    cosines = [float(torch.nn.functional.cosine_similarity(*p, dim=0)) for p in parts]
    wanted = sum(w * c for w, c in zip(network.weights, cosines, strict=True))
    assert float(seen[0] @ seen[1]) == pytest.approx(wanted, abs=1e-4)
    assert np.linalg.norm(seen, axis=1) == pytest.approx([1, 1], abs=1e-4)


def test_the_engine_reads_with_it_also_in_bf16(tmp_path: Path, a_member: Makes) -> None:
    card = load_model(shipped("classify"), "classify").card
    signs = Inventory.from_list(card["inventory"])
    paths = [a_member(tmp_path / f"{seed}", "data.crop_px=32", signs=signs, seed=seed) for seed in (0, 1)]
    members = load_members(paths)
    network = SignEnsemble([m.network for m in members], [32, 32], [0.5, 0.5], [1.0, 1.0])
    votes = Votes((0.5, 0.5), (1.0, 1.0), 1.0)
    save_model(
        tmp_path / "e" / "classify", network.state_dict(), ensembling.ensemble_card(members, votes, 0, {}, signs)
    )
    boxes, rgb = np.array([[4.0, 4, 36, 36]]), np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    said = []
    for precision in ("fp32", "bf16"):
        options = (f"classifier={tmp_path / 'e'}", f"precision={precision}", "device=cpu")
        engine = Engine.load(load(shipped_config("read"), ReadConfig, options))
        said.append(engine.classify(rgb, boxes, 335)[0])
    assert said[0].sum() == pytest.approx(1, abs=1e-5)
    assert not np.array_equal(*said)  # the members did compute in bfloat16
    assert np.abs(said[0] - said[1]).max() < 0.02
    assert engine.provenance["classifier"].startswith("classify ensemble, commit ")


# --- what is refused


def test_members_that_cannot_vote_together_are_refused(three: Path, a_member: Makes) -> None:
    root = three.parent
    two = Inventory(SIGNS.classes[:2])
    wider = a_member(root / "wider", "data.context=0.3", seed=2)
    foreign = a_member(root / "foreign", signs=two, seed=3)
    for paths, message in (
        (["one"], r"^1 classifier given, expected two or more: runs, or weights of classify"),
        (["one", "both"], rf"^{three}: an ensemble already; give its members one by one"),
        (["one", "two", "one"], rf"^{root / 'one'}: these weights are given twice"),
        (["one", "wider"], rf"^{wider}: trained on crops with data.context=0.3, but {root / 'one'} with 0.15; members"),
    ):
        with pytest.raises(ValueError, match=message):
            load_members([root / name for name in paths])
    with pytest.raises(InventoryMismatch, match=rf"^{foreign}: made for sign inventory {two.hash}, .* {SIGNS.hash}"):
        load_members([root / "one", foreign])


def test_an_ensemble_is_not_overwritten_unasked(three: Path) -> None:
    paths = [three.parent / "one", three.parent / "two"]
    with pytest.raises(FileExistsError, match=rf"^{three}/classify.safetensors: there already; .*--overwrite"):
        ensembling.ensemble(paths, three)
    before = load_model(three, "classify").card
    ensembling.ensemble(paths, three, overwrite=True)
    assert load_model(three, "classify").card["weights"] == before["weights"]
    with pytest.raises(ValueError, match="--out"):
        ensembling.ensemble(paths, three.parent / "data" / "x")


def test_one_network_is_not_started_from_an_ensemble(three: Path) -> None:
    with pytest.raises(
        ValueError, match=r"classify.safetensors: an ensemble of classifiers, expected one network; give"
    ):
        SignClassifier("resnet10t", 3, weights=str(three / "classify.safetensors"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [1.0]}, r"the members in its model card cannot be put together: 1 weights for 2 members"),
        ({"weights": [0.5, "x"]}, r"the members in its model card cannot be put together: "),
        ({"weights": None}, r"its model card has no 'weights'"),
        ({"members": {}}, r"members in its model card are dict, expected a list"),
        ({"members": [{}, {}]}, r"the config of member 0 in its model card is not one of this dubsar: model: Field"),
    ],
)
def test_a_card_that_does_not_describe_an_ensemble_is_refused(
    three: Path, changes: dict[str, Any], message: str
) -> None:
    file = load_model(three, "classify")
    card = {k: v for k, v in (file.card | changes).items() if v is not None}
    save_model(three / "classify", file.state, card)
    with pytest.raises(CheckpointError, match=rf"^{three}: {message}"):
        load_classifier(three)


def test_members_of_two_contexts_in_one_card_are_refused(three: Path) -> None:
    file = load_model(three, "classify")
    file.card["members"][1]["data"]["context"] = 0.4
    save_model(three / "classify", file.state, file.card)
    with pytest.raises(
        CheckpointError, match=r"members were trained on crops of data.context=\[0.15, 0.4\], expected one"
    ):
        load_classifier(three)
