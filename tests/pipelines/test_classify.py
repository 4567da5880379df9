"""The classifier's recipe beyond its training steps: prototypes, crops that grow, and how often a class is shown."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, ClassifyData, shipped_config
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.synthetic.glyphs import NOTO, FontError, GlyphFont, find_font
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import load_classifier
from dubsar.pipelines.stages.classify import ClassifySystem, Crops, CropStream, build, run


def config(*overrides: str) -> ClassifyConfig:
    return load(shipped_config("debug/classify"), ClassifyConfig, overrides)


def test_prototypes_are_taken_at_the_end_and_load_with_the_weights(tmp_path: Path, data_root: Path) -> None:
    asked = config("model.prototypes={weight: 2.0, below: 3}")
    scores = run(asked, tmp_path / "run")
    network, loaded, _ = load_classifier(tmp_path / "run" / "classify")
    assert loaded.model.prototypes == asked.model.prototypes
    assert network.prototypes is not None
    assert network.prototypes.weight == 2.0
    seen, counting = network.prototypes.seen_C, network.prototypes.counts_C
    assert 0 < counting.sum() < seen.sum()  # 64 crops: some classes have three and more
    torch.testing.assert_close(network.prototypes.mean_CD.norm(dim=1), seen)
    assert scores["crops"] == 64


def test_a_step_sees_smaller_crops_first_and_whole_ones_last(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, stream = build(config("data.first_px=16"), resolve_config(config()))
    sides: list[int] = []
    system.network.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    monkeypatch.setattr(system, "log", lambda *_: None)
    for step in (0, 2, 5):
        monkeypatch.setattr(ClassifySystem, "global_step", step)
        system.training_step(stream.batch(0), 0)
    assert sides == [16, 24, 32]


@pytest.mark.parametrize("backbone", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_network_of_another_side_says_how_to_set_it(data_root: Path, backbone: str) -> None:
    message = r"data\.crop_px is 32, but this backbone takes no crops of 32 px \(.*\); set .*img_size: 32"
    with pytest.raises(ValueError, match=message):
        build(config(f"model.backbone={backbone}"), resolve_config(config()))


def test_a_network_of_one_side_refuses_growing_crops(data_root: Path) -> None:
    asked = ("data.first_px=16", "model.backbone=vit_tiny_patch16_224", "model.backbone_args={img_size: 32, depth: 1}")
    with pytest.raises(ValueError, match=r"data\.first_px is 16, but this backbone takes no crops of 16 px \(.*32.*\)"):
        build(config(*asked), resolve_config(config()))


@pytest.mark.parametrize("sampler", ["natural", "balanced"])
@pytest.mark.parametrize("rendered", [0.0, 0.4])
def test_frequencies_are_those_of_the_batches(sampler: str, rendered: float) -> None:
    try:
        font = GlyphFont(find_font(NOTO)) if rendered else None
    except FontError as error:
        pytest.skip(str(error))
    signs = Inventory(tuple(SignClass(glyph, glyph, "") for glyph in "𒀀𒈾𒋗𒀭"))
    classes_N = np.array([0] * 12 + [1] * 3 + [2])
    crops = Crops(np.full((16, 32, 32, 3), 90, np.uint8), classes_N)
    data = ClassifyData(
        crop_px=16,
        batch_size=64,
        sampler=sampler,
        balance_power=0.5,
        synthetic_fraction=rendered,  # type: ignore[arg-type]
    )
    stream = CropStream(crops, signs, font, data, seed=0)
    drawn = torch.cat([stream.batch(number)["classes_B"] for number in range(30)])
    share_C = np.bincount(drawn, minlength=4) / len(drawn)
    assert stream.frequencies().sum() == pytest.approx(1)
    assert np.abs(stream.frequencies() - share_C).max() < 0.04
