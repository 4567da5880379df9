"""The guard against NaN, checkpoints that are whole, averages, and the log of metrics."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from dubsar.pipelines.callbacks import (
    AtomicFiles,
    Average,
    DivergedError,
    KeepLast,
    MetricsLog,
    SeedEachBatch,
    StopOnNaN,
    read_metrics,
)


class Exploding(L.LightningModule):
    def __init__(self, bad_step: int) -> None:
        super().__init__()
        self.layer, self.bad_step = torch.nn.Linear(2, 1), bad_step

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).mean()
        return loss * float("nan") if batch_idx == self.bad_step else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.125)


def trainer_with(tmp_path: Path, *callbacks: Any, steps: int = 5, **options: Any) -> L.Trainer:
    return L.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_steps=steps,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_nan_stops_before_the_step_and_is_reported(tmp_path: Path) -> None:
    system = Exploding(bad_step=2)
    last = tmp_path / "last.ckpt"
    with pytest.raises(DivergedError) as caught:
        trainer_with(tmp_path, StopOnNaN(tmp_path), KeepLast(last, minutes=0)).fit(system, DataLoader(torch.ones(8, 2)))
    assert str(caught.value).startswith("step 2: gradients are not finite; see ")
    assert "lower optim.lr or set efficiency.precision to fp32" in str(caught.value)
    report = json.loads((tmp_path / "nan_report.json").read_text())
    assert report == {
        "step": 2,
        "batch": 2,
        "epoch": 0,
        "learning_rate": 0.125,
        "parameters": ["layer.weight", "layer.bias"],
    }
    saved = torch.load(last, weights_only=True)
    assert saved["global_step"] == 2
    assert all(bool(t.isfinite().all()) for t in saved["state_dict"].values())
    assert all(bool(p.isfinite().all()) for p in system.parameters())  # the bad step was not taken


def test_a_full_disk_while_training_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = tmp_path / "last.ckpt"
    trainer = trainer_with(tmp_path, KeepLast(last, minutes=0), steps=3, plugins=[AtomicFiles()])
    real, syncs = os.fsync, 0

    def full_after_2(handle: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full_after_2)
    with pytest.raises(OSError, match=r"last\.ckpt: could not be written \(No space left on device\)") as caught:
        trainer.fit(Exploding(bad_step=-1), DataLoader(torch.ones(8, 2)))
    assert caught.value.errno == errno.ENOSPC
    assert torch.load(last, weights_only=True)["global_step"] == 2
    assert list(tmp_path.glob(".last*")) == []


def test_no_checkpoint_is_written_between_the_batches_of_a_step(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watch(KeepLast):
        def on_train_batch_end(self, trainer: L.Trainer, module: Any, *rest: Any) -> None:
            before = self.saved
            super().on_train_batch_end(trainer, module, *rest)
            if self.saved != before:
                seen.append(rest[-1])

    trainer = trainer_with(tmp_path, Watch(tmp_path / "last.ckpt", minutes=0), steps=2)
    trainer.accumulate_grad_batches = 3
    trainer.fit(Exploding(bad_step=-1), DataLoader(torch.ones(8, 2)))
    assert seen == [2, 5]


def test_the_last_step_is_always_saved(tmp_path: Path) -> None:
    trainer_with(tmp_path, KeepLast(tmp_path / "last.ckpt", minutes=60)).fit(
        Exploding(-1), DataLoader(torch.ones(8, 2))
    )
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 5


def test_before_it_averages_an_average_is_the_weights_themselves(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            average = next(c for c in trainer.callbacks if isinstance(c, Average))._average_model.module
            seen.append((float(module.layer.bias), float(average.layer.bias)))

    trainer_with(tmp_path, Average(2), Watch()).fit(Exploding(-1), DataLoader(torch.ones(8, 2)))
    assert [now == average for now, average in seen] == [True, True, True, False, False]
    assert seen[4][1] == pytest.approx(sum(now for now, _ in seen[2:]) / 3)


def test_rows_behind_the_last_checkpoint_are_dropped_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "train/loss": 1.0}\n{"step": 3, "train/loss": 2.0}\n{"step": 4, "tra')
    trainer_with(tmp_path, MetricsLog(path, 1), steps=2).fit(Exploding(-1), DataLoader(torch.ones(8, 2)))
    assert [r["step"] for r in read_metrics(path)] == [0, 1, 2]


def test_a_full_disk_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = trainer_with(tmp_path, MetricsLog(tmp_path / "metrics.jsonl", 1), steps=2)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"metrics\.jsonl: could not be written \(No space left on device\)") as caught:
        trainer.fit(Exploding(-1), DataLoader(torch.ones(8, 2)))
    assert caught.value.errno == errno.ENOSPC


def test_every_batch_starts_from_its_own_seed(tmp_path: Path) -> None:
    class Draws(Exploding):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            drawn.append(float(torch.rand(())))
            return super().training_step(batch, batch_idx)

    runs = []
    for seed, before in ((1, 5), (1, 77), (2, 5)):
        drawn: list[float] = []
        torch.manual_seed(before)
        trainer_with(tmp_path, SeedEachBatch(seed), steps=3).fit(Draws(-1), DataLoader(torch.ones(8, 2)))
        runs.append(drawn)
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 3


def test_fp16_leaves_an_overflow_to_the_scaler_until_its_scale_is_spent(tmp_path: Path) -> None:
    class Scaler:
        scale = 65536.0

        def get_scale(self) -> float:
            return self.scale

    class Plugin:
        scaler = Scaler()

    class Stub:
        precision_plugin, global_step, current_epoch = Plugin(), 0, 0

    layer = torch.nn.Linear(1, 1)
    layer.weight.grad = torch.tensor([[float("inf")]])
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    guard = StopOnNaN(tmp_path)
    guard.on_before_optimizer_step(Stub(), layer, optimizer)
    Scaler.scale = 1.0
    with pytest.raises(DivergedError):
        guard.on_before_optimizer_step(Stub(), layer, optimizer)
