"""The weights that ship: they load, they fit together, they stay small, and they read the sample tablet."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import dubsar.datasets
from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.tablet import Tablet
from dubsar.models.checkpoint import load_model, shipped
from dubsar.pipelines.reading.evaluate import ReadScores, add_signs
from dubsar.pipelines.reading.folder import write_results
from dubsar.pipelines.reading.read import load_engine, read_photograph

SAMPLE = Path(next(iter(dubsar.datasets.__path__))) / "sample"
STAGES = ("detect", "classify", "transliterate")


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_card_travels_with_the_weights(stage: str) -> None:
    card = load_model(shipped(stage), stage).card
    assert card["licence"]
    assert card["metrics"]["dev"]
    assert card["training_seconds"] > 0
    if stage != "transliterate":
        assert "CC BY-NC-SA 4.0" in card["licence"]
        assert "British Museum" in card["licence"]


def test_all_weights_stay_under_40_mb() -> None:
    assert sum(f.stat().st_size for f in shipped("detect").parent.iterdir()) < 40e6


@pytest.mark.slow
def test_the_sample_tablet_is_read(tmp_path: Path) -> None:
    config = load(shipped_config("read"), ReadConfig)
    photo = SAMPLE / "tablet.jpg"
    before = hashlib.sha256(photo.read_bytes()).hexdigest()
    reading = read_photograph(photo, load_engine(config), config)
    write_results(reading, tmp_path)
    truth = Tablet.from_dict(json.loads((SAMPLE / "tablet.json").read_text(encoding="utf-8")))
    signs = [s for s in truth.signs() if s.box is not None and s.damage == "intact"]
    scores = ReadScores()
    add_signs(scores, reading.tablet, np.array([s.box for s in signs]), [s.glyph for s in signs])
    assert scores.matched / scores.true_signs > 0.7
    assert scores.top5 / scores.matched > 0.5
    assert Tablet.from_dict(json.loads((tmp_path / "tablet.json").read_text(encoding="utf-8"))) == reading.tablet
    assert hashlib.sha256(photo.read_bytes()).hexdigest() == before
