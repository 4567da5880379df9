"""What is counted of each stage's dev set: item by item, the same wholes for both arms, every item in a tablet."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.models.backbones import SignClassifier
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.metrics import score_classes
from dubsar.pipelines.parity.tallies import METRICS, RARE, TALLIES, Tally
from dubsar.pipelines.reading.engine import classify_crops
from dubsar.pipelines.stages import detect
from dubsar.pipelines.stages.classify import Crops

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug"


def crops(count: int, classes: int) -> Crops:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    tablets = np.array([f"P{n % 3}" for n in range(count)])
    return Crops(pixels, rng.integers(0, classes, count), tablets)


def test_a_tally_survives_json_and_sums_to_percent() -> None:
    tally = Tally(
        np.array(["a", "b"]),
        {"cer": np.array([1.0, 2.0])},
        {"cer": np.array([4.0, 8.0])},
        {"x": np.array([True, False])},
    )
    again = Tally.from_dict(tally.to_dict())
    assert again.to_dict() == tally.to_dict()
    assert again.percent == {"cer": 25.0}


def test_classes_are_counted_crop_by_crop() -> None:
    torch.manual_seed(0)
    dev = crops(40, 5)
    train = np.array([0] * RARE + [1] * (RARE - 1))
    system = SimpleNamespace(network=SignClassifier("resnet10t", 7), dev=dev)
    tally = TALLIES["classify"](system, SimpleNamespace(crops=SimpleNamespace(classes_N=train)))  # type: ignore[arg-type]
    scores = score_classes(classify_crops(system.network, dev.pixels_NSS3).numpy(), dev.classes_N)
    assert tally.percent == pytest.approx({"top1": scores.top1, "top5": scores.top5})
    rare = tally.strata[f"rare signs (under {RARE} crops)"]
    assert rare.tolist() == [c != 0 for c in dev.classes_N]
    assert (tally.strata["frequent signs"] == ~rare).all()
    assert tally.tablets_N.tolist() == dev.tablets_N.tolist()


@pytest.mark.data
def test_detection_is_counted_sign_by_sign(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    config: Any = load(DEBUG / "detect.yaml", STAGES["detect"], ("data.limit=1",))
    system, stream = detect.build(config, resolve_config(config))
    tally = TALLIES["detect"](system, stream)
    signs = len(system.dev[0].boxes)
    assert set(tally.tablets_N) == {system.dev[0].object_id}
    assert set(tally.parts) == set(METRICS["detect"])
    for metric in METRICS["detect"]:
        assert tally.wholes[metric].sum() == signs
    # a sign is found or missed; finds that are none come on top
    errors, found = tally.parts["error"].sum(), tally.parts["recall"].sum()
    assert errors >= signs - found
    assert sum(s.sum() for s in tally.strata.values()) == signs
