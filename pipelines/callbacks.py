"""What watches over a training: seeds, checkpoints, averages, the guard against NaN, and the log of metrics."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, WeightAveraging
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.optim.swa_utils import get_ema_avg_fn

from dubsar.models.checkpoint import write_atomically


class DivergedError(RuntimeError):
    """Loss or gradients are not finite; the run stopped before the step."""


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(data, ensure_ascii=False, indent=1, default=str)
    write_atomically(path, lambda f: f.write(text.encode()))


def is_terminal() -> bool:
    """Say whether a person is watching."""
    return sys.stdout.isatty()


class AtomicFiles(TorchCheckpointIO):  # type: ignore[misc]
    """Training checkpoints reach the disk whole or not at all (Lightning's own way goes through another folder)."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Serialise in memory, then write, sync and rename."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), lambda file: file.write(buffer.getbuffer()))


class SeedEachBatch(Callback):  # type: ignore[misc]
    """Start every training batch from its own seed, so that dropout and mixup do not depend on what ran before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed torch on all devices by the run's seed, the batch and the rank."""
        torch.manual_seed(int(np.random.SeedSequence((self.seed, batch_idx, trainer.global_rank)).generate_state(1)[0]))


class KeepLast(Checkpoint):  # type: ignore[misc]
    """Save what resuming needs every few minutes and behind the last step, never between the batches of one step."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.seconds = path, 60 * minutes
        self.saved = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self.saved = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        """Save where it is time; rank 0 decides for all."""
        batch_idx: int = rest[-1]
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        due = time.monotonic() - self.saved >= self.seconds or trainer.global_step >= trainer.max_steps
        if trainer.strategy.broadcast(due):
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saved = time.monotonic()


class Average(WeightAveraging):  # type: ignore[misc]
    """Average the weights after each step from ``first_step`` on; before it, the average is the weights themselves.

    So a validation or checkpoint before ``first_step`` shows what is trained, not the random weights of the start.

    Args:
        first_step: optimizer step, counted from 0.
        decay: of an exponential moving average (EMA); without it all steps count the same (SWA).
    """

    def __init__(self, first_step: int, decay: float | None = None) -> None:
        options = {} if decay is None else {"avg_fn": get_ema_avg_fn(decay)}  # type: ignore[no-untyped-call]
        super().__init__(use_buffers=True, **options)  # batch-norm statistics are averaged too
        self.first_step, self.decay = first_step, decay

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        """Copy up to the first step of the average, then average."""
        if trainer.global_step <= self.first_step + 1:
            self._average_model.n_averaged.zero_()
        super().on_train_batch_end(trainer, pl_module, *rest)


class StopOnNaN(Callback):  # type: ignore[misc]
    """Stop before the optimizer step where gradients are not finite, and write ``nan_report.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch_id: Any = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember which batch is being worked on."""
        self.batch_id = batch_idx

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Look at the gradients' norms; a loss that is not finite always shows there."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and scaler.get_scale() > 1:  # fp16: an overflow is skipped, and the scale halved
            return
        norms = torch._foreach_norm([p.grad for p in pl_module.parameters() if p.grad is not None])
        if not norms or bool(torch.isfinite(torch.stack(norms)).all()):
            return
        report = {
            "step": trainer.global_step,
            "batch": self.batch_id,
            "epoch": trainer.current_epoch,
            "learning_rate": optimizer.param_groups[0]["lr"],
            "parameters": [
                n for n, p in pl_module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
            ],
        }
        write_json(self.folder / "nan_report.json", report)
        raise DivergedError(
            f"step {trainer.global_step}: gradients are not finite; see {self.folder / 'nan_report.json'}; "
            "the last checkpoint is untouched: lower optim.lr or set efficiency.precision to fp32"
        )


class MetricsLog(Callback):  # type: ignore[misc]
    """Append one JSON object per logged step and per validation to ``metrics.jsonl``; print a line with time to go."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; drop rows of steps that a broken run made after its last checkpoint."""
        self.started, self.first = time.monotonic(), trainer.global_step
        if trainer.is_global_zero and self.path.exists():
            rows = [row for row in read_metrics(self.path) if row["step"] <= self.first]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_atomically(self.path, lambda file: file.write(text.encode()))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        """Log the training metrics every few optimizer steps."""
        step = trainer.global_step
        if step % self.every == 0 and (rest[-1] + 1) % trainer.accumulate_grad_batches == 0:
            seconds = time.monotonic() - self.started
            left = seconds / max(1, step - self.first) * (trainer.max_steps - step)
            found = _numbers(trainer.callback_metrics, "train/")
            self._append({"step": step, "seconds": round(seconds, 3), **found}, trainer)
            if not is_terminal() and step % (10 * self.every) == 0:
                loss = found.get("train/loss", float("nan"))
                print(f"step {step}/{trainer.max_steps}  loss {loss:.4f}  {left / 60:.1f} min to go", flush=True)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the validation metrics."""
        found = _numbers(trainer.callback_metrics, "val/")
        self._append({"step": trainer.global_step, **found}, trainer)
        print(f"step {trainer.global_step}  " + "  ".join(f"{k} {v:.4g}" for k, v in found.items()), flush=True)

    def _append(self, row: dict[str, Any], trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise OSError(error.errno, f"{self.path}: could not be written ({error.strerror})") from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; a last line that a killed run left unfinished is dropped."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _numbers(metrics: Any, prefix: str) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if k.startswith(prefix)}
