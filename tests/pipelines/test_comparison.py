"""`dubsar compare`: two configs, the same seeds and tablets."""

import json
from pathlib import Path
from typing import Any

import pytest

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, DetectConfig
from dubsar.pipelines.comparison import compare_configs
from dubsar.pipelines.stages import classify

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"


def config(*overrides: str) -> ClassifyConfig:
    few = ("trainer.max_steps=2", "data.limit=60", *overrides)
    return load(DEBUG / "classify.yaml", ClassifyConfig, few)  # type: ignore[no-any-return]


@pytest.mark.data
def test_a_config_gains_nothing_over_itself_and_finished_trainings_are_used_again(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = compare_configs(config(), config(), tmp_path, seeds=2)
    assert {(m, g.mean, g.low, g.high, g.seeds) for m, g in gains.items()} == {
        ("top1", 0.0, 0.0, 0.0, 2),
        ("top5", 0.0, 0.0, 0.0, 2),
    }
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["scores"]["first"] == written["scores"]["second"]
    assert len(written["scores"]["first"]) == 2

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(classify, "build", fails)
    assert compare_configs(config(), config(), tmp_path, seeds=2) == gains


@pytest.mark.data
def test_what_cannot_be_compared_is_refused(tmp_path: Path, data_root: Path) -> None:
    detect = load(DEBUG / "detect.yaml", DetectConfig)
    with pytest.raises(ValueError, match="the configs are of classify and detect, expected one stage"):
        compare_configs(config(), detect, tmp_path)
    with pytest.raises(ValueError, match="one seed shows no spread"):
        compare_configs(config(), config(), tmp_path, seeds=1)


@pytest.mark.data
def test_a_share_of_the_labels_is_drawn_by_the_seed(data_root: Path) -> None:
    found = {}
    for seed in (0, 1):
        train, dev = classify.prepare(config("data.label_fraction=0.25", f"trainer.seed={seed}"), data_root)
        assert (len(train.classes_N), len(dev.classes_N)) == (15, 60)
        assert len(train.pixels_NSS3) == len(train.tablets_N) == 15
        found[seed] = train.pixels_NSS3.tobytes()
    assert found[0] != found[1]
    again, _ = classify.prepare(config("data.label_fraction=0.25"), data_root)
    assert again.pixels_NSS3.tobytes() == found[0]
