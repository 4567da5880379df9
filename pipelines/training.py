"""Training mechanics that all stages share: run folder, seeds, trainer, callbacks, logs. The methods are in the stages."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, RichProgressBar, StochasticWeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader

from dubsar.configs.base import dump
from dubsar.configs.blocks import Efficiency, Trainer
from dubsar.configs.schema import StageConfig
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.levers.resolve import Resolved


class RunFolderError(ValueError):
    """The run folder cannot be used as asked."""


class DivergedError(RuntimeError):
    """Loss or gradients are not finite; the run stopped before the step."""


@dataclass(frozen=True)
class RunFolder:
    """``runs/<stage>/<name>/``: everything that a run writes."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of training checkpoints."""
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        """The newest training checkpoint."""
        return self.checkpoints / "last.ckpt"


def open_run(path: Path, config: StageConfig, levers: Resolved, *, resume: bool = False, overwrite: bool = False) -> RunFolder:
    """Prepare a run folder and write ``config.yaml`` and ``levers.json``.

    Raises:
        RunFolderError: the folder is not empty and neither ``resume`` nor ``overwrite`` is set, or there is nothing to resume.
    """
    run = RunFolder(path)
    if path.exists() and any(path.iterdir()) and not resume:
        if not overwrite:
            raise RunFolderError(f"{path}: a run is there already; go on with --resume or start anew with --overwrite")
        shutil.rmtree(path)
    if resume and not run.last.exists():
        raise RunFolderError(f"{path}: no checkpoint to resume from (expected {run.last}); start without --resume")
    write_atomically(path / "config.yaml", lambda f: f.write(dump(config).encode()))
    write_json(path / "levers.json", levers.to_list())
    return run


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(data, ensure_ascii=False, indent=1, default=str)
    write_atomically(path, lambda f: f.write(text.encode()))


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
        levers: resolved levers; averaging, precision and clipping are set here.
        monitor: validation metric by which the best weights are kept.
        mode: ``min`` or ``max``.
    """
    settings = config.trainer
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
        callbacks=_callbacks(settings, config.efficiency, run, levers, monitor=monitor, mode=mode),
        enable_model_summary=False,
        enable_progress_bar=_is_terminal(),
        use_distributed_sampler=False,
    )


def _callbacks(
    settings: Trainer, efficiency: Efficiency, run: RunFolder, levers: Resolved, *, monitor: str, mode: str
) -> list[Callback]:
    callbacks: list[Callback] = [
        StopOnNaN(run.path),
        MetricsLog(run.path / "metrics.jsonl", settings.log_every_steps),
        ModelCheckpoint(run.checkpoints, "last", train_time_interval=timedelta(minutes=settings.checkpoint_every_minutes)),
        ModelCheckpoint(run.checkpoints, "best", monitor=monitor, mode=mode, save_weights_only=True, enable_version_counter=False),
    ]
    if levers["ema"]:
        callbacks.append(EMAWeightAveraging(decay=levers["ema"]["decay"]))
    if levers["swa"]:
        swa = levers["swa"]
        callbacks.append(StochasticWeightAveraging(swa_lrs=swa["lr"], swa_epoch_start=swa["from_fraction"]))
    if _is_terminal():
        callbacks.append(RichProgressBar())
    return callbacks


class StopOnNaN(Callback):  # type: ignore[misc]
    """Stop before the optimizer step where loss or gradients are not finite, and write ``nan_report.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch_id: Any = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember which batch is being worked on."""
        self.batch_id = batch_idx

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Look at the gradients' norm; a loss that is not finite always shows there."""
        norms = torch._foreach_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        if norms and not bool(torch.isfinite(torch.stack(norms)).all()):
            report = {
                "step": trainer.global_step,
                "batch": self.batch_id,
                "epoch": trainer.current_epoch,
                "learning_rate": optimizer.param_groups[0]["lr"],
                "parameters": [n for n, p in pl_module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()],
            }
            write_json(self.folder / "nan_report.json", report)
            raise DivergedError(
                f"step {trainer.global_step}: gradients are not finite; see {self.folder / 'nan_report.json'}; "
                "the last checkpoint is untouched: lower optim.lr or set efficiency.precision to fp32"
            )


class MetricsLog(Callback):  # type: ignore[misc]
    """Append one JSON object per logged step and per validation to ``metrics.jsonl``; print a line with time to go."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every, self.logged = path, every, -1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self.started, self.first = time.monotonic(), trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Log the training metrics every few optimizer steps."""
        step = trainer.global_step
        if step % self.every == 0 and step != self.logged:
            self.logged = step
            seconds = time.monotonic() - self.started
            left = seconds / max(1, step - self.first) * (trainer.max_steps - step)
            self._append({"step": step, "seconds": round(seconds, 1), **_numbers(trainer.logged_metrics, "train/")})
            if not _is_terminal() and step % (10 * self.every) == 0:
                loss = trainer.callback_metrics.get("train/loss", float("nan"))
                print(f"step {step}/{trainer.max_steps}  loss {float(loss):.4f}  {left / 60:.1f} min to go", flush=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the validation metrics."""
        found = _numbers(trainer.callback_metrics, "val/")
        self._append({"step": trainer.global_step, **found})
        print(f"step {trainer.global_step}  " + "  ".join(f"{k} {v:.4g}" for k, v in found.items()), flush=True)

    def _append(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _numbers(metrics: Any, prefix: str) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if k.startswith(prefix)}


def one_batch() -> DataLoader[Any]:
    """Return one empty validation batch, for systems that hold their dev set themselves and batch it their own way."""
    return DataLoader(torch.zeros(1, 1))  # type: ignore[arg-type]


def commit() -> str:
    """Return the commit that runs, with ``+`` where the tree differs from it, or ``unknown``."""
    try:
        here = Path(__file__).resolve().parent
        options: dict[str, Any] = {"cwd": here, "capture_output": True, "text": True, "check": True}
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **options).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty else "")


def hardware() -> str:
    """Name the device that computes."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"{os.cpu_count()} CPU cores"


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
