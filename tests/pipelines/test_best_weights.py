"""Which weights a run leaves: those that were best on dev, as they were validated."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import TransliterateConfig
from dubsar.pipelines.callbacks import read_metrics
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.stages import transliterate
from dubsar.pipelines.training import build_trainer, fit, open_run

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"
TINY = ("data.sources=[hittite]", "data.val_lines=1", "data.limit=40", "efficiency.ema={decay: 0.5}")


def tiny_config(*overrides: str) -> TransliterateConfig:
    return load(DEBUG / "transliterate.yaml", TransliterateConfig, (*TINY, *overrides))  # type: ignore[no-any-return]


@pytest.mark.data
def test_checkpoints_hold_plain_data_and_the_best_weights_are_left(tmp_path: Path, data_root: Path) -> None:
    config = tiny_config("trainer.val_every_steps=1", "trainer.max_steps=3")
    levers = resolve_config(config)
    run = open_run(tmp_path / "run", config, levers)
    system, stream = transliterate.build(config, levers)
    scores = iter([1.0, 9.0, 5.0])
    validated = []

    def validate(*_: Any) -> None:
        validated.append({k: t.clone() for k, t in system.state_dict().items()})
        system.log("val/x", next(scores))

    system.validation_step = validate
    fit(build_trainer(config, run, levers, monitor="val/x", mode="max"), system, stream, run, resume=False)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]
    best, last = (torch.load(p, weights_only=True) for p in (run.best, run.last))
    assert (best["global_step"], last["global_step"]) == (2, 3)
    assert all(torch.equal(t, system.state_dict()[k]) for k, t in best["state_dict"].items())
    assert all(torch.equal(t, validated[1][k]) for k, t in best["state_dict"].items())  # the average, not the weights
    assert not torch.equal(last["state_dict"]["network.shared.weight"], best["state_dict"]["network.shared.weight"])
    assert not torch.equal(
        last["state_dict"]["network.shared.weight"], last["current_model_state"]["network.shared.weight"]
    )


@pytest.mark.data
@pytest.mark.parametrize(("scores", "best"), [([1.0, 2.0, 3.0], 5), ([1.0, 3.0, 2.0], 4), ([1.0, 2.0, 2.0], 4)])
def test_the_last_weights_are_validated_too(tmp_path: Path, data_root: Path, scores: list[float], best: int) -> None:
    """Validations at steps 2 and 4 of 5 say nothing of the weights that the run ends with."""
    config = tiny_config("trainer.val_every_steps=2", "trainer.max_steps=5")
    levers = resolve_config(config)
    run = open_run(tmp_path / "run", config, levers)
    system, stream = transliterate.build(config, levers)
    given = iter(scores)
    system.validation_step = lambda *_: system.log("val/x", next(given))
    fit(build_trainer(config, run, levers, monitor="val/x", mode="max"), system, stream, run, resume=False)
    kept, last = (torch.load(p, weights_only=True) for p in (run.best, run.last))
    assert kept["global_step"] == best
    assert next(given, None) is None
    left = system.state_dict()
    assert all(torch.equal(t, left[k]) for k, t in kept["state_dict"].items())
    same = all(torch.equal(t, left[k]) for k, t in last["state_dict"].items())
    assert same is (best == 5)
    logged = [row["step"] for row in read_metrics(run.path / "metrics.jsonl") if "val/x" in row]
    assert logged == [2, 4, 5]
