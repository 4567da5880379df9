"""Training mechanics that all stages share: run folder, seeds, trainer. The methods are in the stages."""

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader

from dubsar.configs.base import dump, load
from dubsar.configs.blocks import Trainer
from dubsar.configs.schema import STAGES, StageConfig
from dubsar.datasets.inventory import Inventory, InventoryMismatch, read_inventory
from dubsar.datasets.sources import data_root
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.callbacks import (
    AtomicFiles,
    Average,
    KeepLast,
    MetricsLog,
    SeedEachBatch,
    StopOnNaN,
    is_terminal,
    write_json,
)
from dubsar.pipelines.levers.observe import Observer
from dubsar.pipelines.levers.resolve import Resolved
from dubsar.pipelines.optim import first_averaged_step
from dubsar.pipelines.signs import open_signs
from dubsar.pipelines.stream import Stream

# What a resumed run may change. Length: a longer run is the reason to resume, and the schedule is drawn anew over it.
# When to look, log and save; how fast and where to compute: none of these change which batch makes which step. All else
# would make another run of it, part of which was trained by settings that no file tells of any more.
RESUMABLE = frozenset(
    {
        "trainer.max_steps",
        "trainer.val_every_steps",
        "trainer.checkpoint_every_minutes",
        "trainer.log_every_steps",
        "trainer.threads",
        "trainer.workers",
        "trainer.accelerator",
        "efficiency.strict",
    }
)


class RunFolderError(ValueError):
    """The run folder cannot be used as asked."""


@dataclass(frozen=True)
class RunFolder:
    """``runs/<stage>/<name>/``: everything that a run writes."""

    path: Path

    @property
    def levers(self) -> Path:
        """What was asked of each lever, what it was resolved to, and what was seen of it."""
        return self.path / "levers.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of training checkpoints."""
        return self.path / "checkpoints"

    @property
    def data(self) -> Path:
        """What the run learns from, where that must not change: the hash of the sign inventory."""
        return self.path / "data.json"

    @property
    def last(self) -> Path:
        """The newest training checkpoint."""
        return self.checkpoints / "last.ckpt"

    @property
    def best(self) -> Path:
        """The weights that were best on dev."""
        return self.checkpoints / "best.ckpt"


def is_first_rank(settings: Trainer) -> bool:
    """Say whether this process checks, deletes and writes the run folder: of a run's processes only one may.

    Every process of a run on several devices starts with the same command. Until Lightning's trainer is built the
    launcher's environment tells them apart, as it does for Lightning's own messages.
    """
    if settings.devices * settings.num_nodes == 1:
        return True
    return rank_zero_only.rank == 0 and os.environ.get("NODE_RANK", "0") == "0"  # type: ignore[no-any-return]


def check_run(path: Path, config: StageConfig, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse a run folder that cannot be used as asked; nothing is written. Only the first rank looks.

    Raises:
        RunFolderError: the folder is not empty and neither ``resume`` nor ``overwrite`` is set, or both are, or
            there is nothing to resume, or the run to resume has another config (see `RESUMABLE`).
        InventoryMismatch: the run to resume learns other sign classes than the data folder has by now.
        ConfigError: the config of the run to resume cannot be read.
        NotADirectoryError: there is a file of that name.
    """
    if not is_first_rank(config.trainer):
        return
    if resume and overwrite:
        raise RunFolderError(f"{path}: --resume goes on with a run and --overwrite deletes it; give one of them")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path}: a file, expected a run folder; give another one with --run")
    if path.exists() and any(path.iterdir()) and not resume:
        if not overwrite:
            raise RunFolderError(f"{path}: a run is there already; go on with --resume or start anew with --overwrite")
        if lack := _lacks(path):
            raise RunFolderError(f"{path}: {lack}, so it is no run folder; --overwrite will not delete it")
    if resume:
        _check_resumed(RunFolder(path), config)


def _lacks(path: Path) -> str:
    """Say what a folder lacks that every run folder has; empty where it has all."""
    for name in ("config.yaml", "levers.json"):
        if not (path / name).is_file():
            return f"holds no {name}"
    try:
        content = yaml.safe_load((path / "config.yaml").read_bytes())
    except (yaml.YAMLError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("stage") not in STAGES:
        return f"its config.yaml names no stage ({', '.join(STAGES)})"
    return ""


def _inventory_hash(config: StageConfig) -> str | None:
    """Return the hash of the sign classes that a stage's targets index; None for a stage that has no classes."""
    if config.stage == "classify":
        return open_signs(config.data).inventory().hash
    return None if config.stage in {"pretrain", "transliterate"} else read_inventory(data_root()).hash


def _data_of(config: StageConfig) -> Path:
    return open_signs(config.data).root if config.stage == "classify" else data_root()


def _check_inventory(run: RunFolder, config: StageConfig) -> None:
    """Refuse to go on with other classes; a run of before they were written down goes on as it is."""
    if not run.data.exists():
        return
    try:
        stored = json.loads(run.data.read_bytes())["inventory_hash"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{run.data}: cannot be read ({error!r}), expected an inventory_hash") from error
    now = _inventory_hash(config)
    if now is not None and stored != now:
        raise InventoryMismatch(
            f"{run.path}: started on sign inventory {stored}, but that of {_data_of(config)} is {now}: its classes "
            "were changed or reordered; put them back, or start anew with --overwrite or another --run"
        )


def _check_resumed(run: RunFolder, config: StageConfig) -> None:
    stored = run.path / "config.yaml"
    for needed in (run.last, stored):
        if not needed.exists():
            raise RunFolderError(
                f"{run.path}: no checkpoint to resume from (expected {needed}); start without --resume"
            )
    before, now = (c.model_dump(mode="json") for c in (load(stored, STAGES[config.stage]), config))
    changed = [f"{key} is {new!r} (was {old!r})" for key, old, new in _differences(before, now) if key not in RESUMABLE]
    if changed:
        raise RunFolderError(
            f"{run.path}: --resume with another config than the run's: {', '.join(changed)}; put the old values back, "
            f"or start anew with --overwrite or another --run (only {', '.join(sorted(RESUMABLE))} may change)"
        )
    _check_inventory(run, config)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield ``block.key``, old and new value of each setting that differs."""
    for key in sorted(old | new):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def open_run(
    path: Path, config: StageConfig, levers: Resolved, *, resume: bool = False, overwrite: bool = False
) -> RunFolder:
    """Prepare a run folder and write ``config.yaml``, ``levers.json`` and, for stages with sign classes, ``data.json``.

    With ``overwrite`` the old run is deleted. Call it when all that can fail before the first step has passed: the data
    are read and the trainer is built. Only the first rank deletes and writes.

    Raises:
        RunFolderError: see `check_run`, as for its other errors.
    """
    run = RunFolder(path)
    if not is_first_rank(config.trainer):
        return run
    check_run(path, config, resume=resume, overwrite=overwrite)
    inventory_hash = _inventory_hash(config)
    if overwrite and path.exists():
        shutil.rmtree(path)
    if inventory_hash is not None:
        write_json(run.data, {"inventory_hash": inventory_hash})
    write_atomically(path / "config.yaml", lambda f: f.write(dump(config).encode()))
    write_json(run.levers, levers.to_list())
    return run


def seed_everything(trainer: Trainer) -> None:
    """Seed Python, NumPy and torch, workers included, and set the number of CPU threads."""
    L.seed_everything(trainer.seed, workers=True, verbose=False)
    if trainer.threads:
        torch.set_num_threads(trainer.threads)


def build_trainer(config: StageConfig, run: RunFolder, levers: Resolved, *, monitor: str, mode: str) -> L.Trainer:
    """Build Lightning's trainer from a config.

    Args:
        config: the stage's config.
        run: where logs and checkpoints go.
        levers: resolved levers; averaging and precision are set here, and all of them are watched.
        monitor: validation metric by which the best weights are kept.
        mode: ``min`` or ``max``.
    """
    settings = config.trainer
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)  # no advertisements
    return L.Trainer(
        default_root_dir=run.path,
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        precision={"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[levers["precision"]],
        max_steps=settings.max_steps,
        val_check_interval=settings.val_every_steps * settings.accumulate,
        check_val_every_n_epoch=None,
        accumulate_grad_batches=settings.accumulate,
        num_sanity_val_steps=0,
        log_every_n_steps=settings.log_every_steps,
        logger=TensorBoardLogger(run.path, name="", version="tensorboard"),
        callbacks=_callbacks(config, run, levers, monitor=monitor, mode=mode),
        plugins=[AtomicFiles()],
        enable_model_summary=False,
        enable_progress_bar=is_terminal(),
        use_distributed_sampler=False,
    )


def _callbacks(config: StageConfig, run: RunFolder, levers: Resolved, *, monitor: str, mode: str) -> list[Callback]:
    settings = config.trainer
    callbacks: list[Callback] = [
        Observer(levers, run.levers, strict=config.efficiency.strict),
        SeedEachBatch(settings.seed),
        StopOnNaN(run.path),
        MetricsLog(run.path / "metrics.jsonl", settings.log_every_steps),
        KeepLast(run.last, settings.checkpoint_every_minutes),
        # whole, since Lightning leaves the average, which is what was validated, out of checkpoints of weights alone
        ModelCheckpoint(run.checkpoints, "best", monitor=monitor, mode=mode, enable_version_counter=False),
    ]
    if levers["ema"]:
        decay = levers["ema"]["decay"]
        # an average from step 1 on would keep decay ** steps of the random weights: start when one horizon has passed
        horizon = min(round(1 / (1 - decay)), settings.max_steps // 4)
        callbacks.append(Average(horizon, decay))
    if levers["swa"]:
        callbacks.append(Average(first_averaged_step(levers["swa"], settings.max_steps)))
    if is_terminal():
        callbacks.append(RichProgressBar())
    return callbacks


def fit(trainer: L.Trainer, system: L.LightningModule, stream: Stream, run: RunFolder, *, resume: bool) -> None:
    """Train on a stream, and leave the weights in ``system`` that were best on dev.

    On resume the stream goes on behind the last batch that a finished optimizer step has used. Where no validation fell
    into the run, its last weights are left.
    """
    stream.rank, stream.ranks = trainer.global_rank, trainer.world_size
    if resume:
        done = torch.load(run.last, weights_only=True, mmap=True)["global_step"]
        stream.start = done * trainer.accumulate_grad_batches
    loader = DataLoader(stream, batch_size=None, num_workers=system.config.trainer.workers)
    trainer.fit(system, loader, one_batch(), ckpt_path=str(run.last) if resume else None, weights_only=True)
    if run.best.exists() and trainer.global_step % system.config.trainer.val_every_steps:
        _validate_last(trainer, system, run)
    path = run.best if run.best.exists() else run.last
    system.load_state_dict(torch.load(path, weights_only=True)["state_dict"])


def _validate_last(trainer: L.Trainer, system: L.LightningModule, run: RunFolder) -> None:
    """Validate the weights that a run ends with between two validations, and keep them where they are the best."""
    keeper = next(c for c in trainer.callbacks if isinstance(c, ModelCheckpoint) and c.monitor)  # type: ignore[attr-defined]
    (scores,) = trainer.validate(system, one_batch(), verbose=False)
    score, best = scores[keeper.monitor], keeper.best_model_score
    if score < best if keeper.mode == "min" else score > best:
        trainer.save_checkpoint(run.best)


def one_batch() -> DataLoader[Any]:
    """Return one empty validation batch, for systems that hold their dev set themselves and batch it their own way."""
    return DataLoader(torch.zeros(1, 1))  # type: ignore[arg-type]


def model_card(
    config: StageConfig, dev: dict[str, Any], inventory: Inventory | None = None, **extra: Any
) -> dict[str, Any]:
    """Return what goes beside a run's weights.

    Args:
        config: what was trained.
        dev: scores on dev.
        inventory: the sign classes that the outputs index, where they are signs.
        extra: what the stage adds: licence, and normalisation, text form or architecture.
    """
    # on a machine with a GPU too, a run may have been told to compute on the CPU
    device = torch.device("cpu") if config.trainer.accelerator == "cpu" else None
    return {
        "stage": config.stage,
        "config": config.model_dump(mode="json"),
        **({"inventory": inventory.to_list(), "inventory_hash": inventory.hash} if inventory else {}),
        **extra,
        "metrics": {"dev": dev},
        "commit": commit(),
        "hardware": hardware(device),
    }


def commit() -> str:
    """Return the commit that runs, with ``+`` where the tree differs from it, or ``unknown``."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "--short", "HEAD")
        dirty = _git(here, "status", "--porcelain", "-uno")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def hardware(device: torch.device | None = None) -> str:
    """Name the device that computes; without one, that which this machine would train on."""
    if device is not None and device.type == "cuda":
        return f"1 x {torch.cuda.get_device_name(device)}"
    if device is None and torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"{os.cpu_count()} CPU cores"
