"""The trainings of a comparison: one run folder each, finished ones are not run again, broken ones go on.

An arm is trained to the end of its schedule, and its last weights (or their average) are scored:
choosing the best of several checkpoints on the set that judges would favour the arm that varies more.
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dubsar.configs.schema import StageConfig
from dubsar.models.adapters import merge_adapters
from dubsar.pipelines.callbacks import read_metrics, write_json
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.parity.result import Curve
from dubsar.pipelines.parity.tallies import TALLIES, Tally
from dubsar.pipelines.stages import classify
from dubsar.pipelines.training import RunFolder, build_trainer, commit, fit, hardware, open_run, seed_everything

NEVER = 10**9
_NAMES_FILE = ("weights", "pretrained", "teacher", "more_signs", "font")  # keys of a config's model and data


@dataclass(frozen=True)
class Arm:
    """One training.

    Attributes:
        curve: its losses, speed and scores.
        tally: what it scored item by item; None where it was not scored.
        validations: what the stage's own validations gave on the way, if there were any.
    """

    curve: Curve
    tally: Tally | None
    validations: list[dict[str, float]]


def config_hash(config: StageConfig) -> str:
    """Return the hash of a config, 12 hexadecimal digits."""
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:12]


def with_settings(config: StageConfig, **trainer: Any) -> StageConfig:
    """Return a config with other settings of its trainer."""
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


def arm_file(config: StageConfig, name: str, folder: Path) -> Path:
    """Return what a finished arm is read back from; arguments as of `train_arm`."""
    digest = config_hash(with_settings(config, log_every_steps=1))
    if read := [hashlib.sha256(path.read_bytes()).hexdigest() for path in _named_files(config)]:
        digest = hashlib.sha256(" ".join([digest, *read]).encode()).hexdigest()[:12]
    return folder / f"{name}-seed{config.trainer.seed}-{digest}" / "arm.json"


def _named_files(config: StageConfig) -> list[Path]:
    """Return the files that a config names beside its data set: an arm is another one where they are others."""
    given = [getattr(block, key, "") for block in (config.model, config.data) for key in _NAMES_FILE]
    files: list[Path] = []
    for path in (Path(name) for name in given if name and isinstance(name, str)):
        files += sorted(path.glob("*.safetensors")) if path.is_dir() else [path, path.with_suffix(".safetensors")]
    return [path for path in dict.fromkeys(files) if path.is_file()]


def made_by(arms: Iterable[Arm]) -> dict[str, str]:
    """Return by which commits and on which hardware arms were trained, some of them perhaps long ago."""
    curves = [arm.curve for arm in arms]
    return {key: ", ".join(dict.fromkeys(str(getattr(c, key)) for c in curves)) for key in ("commit", "hardware")}


def train_arm(
    config: StageConfig,
    name: str,
    folder: Path,
    *,
    prepared: Any = None,
    score: bool = True,
    change: Callable[[Any], None] | None = None,
) -> Arm:
    """Train and score one arm, or read back what it has scored.

    Args:
        config: of the arm, with its seed.
        name: ``reference``, ``candidate``, or what else the arm is called.
        folder: below which its run folder is made, named by arm, seed and config.
        prepared: the data, from the stage's `prepare`; read here where None.
        score: count the dev set when it is trained.
        change: what to do to the system before it is trained.
    """
    config = with_settings(config, log_every_steps=1)
    done = arm_file(config, name, folder)
    run = RunFolder(done.parent)
    if done.exists():
        stored = json.loads(done.read_bytes())
        tally = Tally.from_dict(stored["tally"]) if stored["tally"] else None
        return Arm(Curve(**stored["curve"]), tally, stored.get("validations", []))
    resume = run.last.exists()
    print(f"{name}, seed {config.trainer.seed}: {'goes on' if resume else 'starts'}", flush=True)
    system, stream = _train(config, run, prepared, change, resume=resume)
    if config.stage == "classify":
        classify.finish(system, stream)
    else:
        merge_adapters(system.network)
    tally = TALLIES[config.stage](system, stream) if score else None
    curve = _curve(name, config, run, tally.percent if tally else {})
    rows = [row for row in read_metrics(run.path / "metrics.jsonl") if "train/loss" not in row]
    stored = {"curve": asdict(curve), "tally": tally.to_dict() if tally else None, "validations": rows}
    write_json(done, stored)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # of an arm its scores are wanted, not its weights
    return Arm(curve, tally, rows)


def _train(
    config: StageConfig, run: RunFolder, prepared: Any, change: Callable[[Any], None] | None, *, resume: bool
) -> tuple[Any, Any]:
    seed_everything(config.trainer)
    levers = resolve_config(config)
    system, stream = stage_module(config.stage).build(config, levers, prepared)
    if change:
        change(system)
    trainer = build_trainer(config, run, levers, monitor="train/loss", mode="min")
    open_run(run.path, config, levers, resume=resume, overwrite=not resume and run.path.exists())
    fit(trainer, system, stream, run, resume=resume)
    # not the best on dev, which `fit` may have left
    system.load_state_dict(torch.load(run.last, weights_only=True)["state_dict"])
    return system, stream


def _curve(name: str, config: StageConfig, run: RunFolder, scores: dict[str, float]) -> Curve:
    rows = [row for row in read_metrics(run.path / "metrics.jsonl") if "train/loss" in row]
    # a run that was broken off starts its clock anew
    passed = [b["seconds"] - a["seconds"] for a, b in itertools.pairwise(rows)]
    seconds = sum(s for s in passed if s >= 0)
    rate = len([s for s in passed if s >= 0]) / seconds if seconds else float("nan")
    return Curve(
        arm=name,
        seed=config.trainer.seed,
        steps=[row["step"] for row in rows],
        losses=[row["train/loss"] for row in rows],
        steps_per_second=rate,
        scores=scores,
        commit=commit(),
        hardware=hardware(),
    )
