"""See what each lever became while a run trained, by looking at the run instead of believing its config.

`Observer` watches the first few optimizer steps and the end of a training: it profiles one step, and looks at batches
and gradients of the others. What it finds goes into ``levers.json`` as ``observed`` and ``engaged``, for each lever
that was resolved to something else than off. What is computed stays the same to the last bit.
"""

import json
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging

from dubsar.models.adapters import adapter_parameters
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.levers.compiling import CompileMeter, rehearse
from dubsar.pipelines.levers.judge import Adapters, Average, Layout, Observation, Sight, judge
from dubsar.pipelines.levers.resolve import LeverError, Resolved
from dubsar.pipelines.levers.table import LEVERS
from dubsar.pipelines.levers.trace import Recorder

WATCHED_STEPS = 3
_AT_THE_END = frozenset({"ema", "swa", "cuda_graphs"})  # averages begin late; a graph may be for validation only


class Observer(Callback):  # type: ignore[misc]
    """Watch what the levers of a run become.

    It stands before the callback that averages weights, which at the end puts the average into the network.

    Args:
        levers: what each lever was resolved to.
        path: ``levers.json``; nothing is written where None.
        strict: whether a lever that is not engaged ends the run after the watched steps.
    """

    def __init__(self, levers: Resolved, path: Path | None = None, *, strict: bool = False) -> None:
        off = {lever.name: lever.off for lever in LEVERS}
        self.on = {row.lever: row.resolved for row in levers.rows if row.resolved != off[row.lever]}
        self.levers, self.path, self.strict = levers, path, strict
        self.observations: dict[str, Observation] = {}
        self.sight = Sight()
        self._watching, self._first = False, 0
        self._moved: set[str] = set()
        self._recorder: Recorder | None = None
        self._replays = Replays() if "cuda_graphs" in self.on else None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to watch where a lever is on."""
        self._watching, self._first = bool(self.on), trainer.global_step
        self._meter = CompileMeter()
        if self._replays:
            self._replays.install()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look at the batch; profile the last batch of the second step, when what is compiled is compiled."""
        if not self._watching:
            return
        self.sight.layouts += [layout] if (layout := layout_of(batch)) else []
        step = trainer.global_step - self._first
        place = batch_idx % trainer.accumulate_grad_batches  # among the batches of a step
        if step == WATCHED_STEPS - 1 and place == 0 and "compile" in self.on and self.sight.trace.compiled_regions():
            self.sight.rehearsal = rehearse(trainer, pl_module, batch, batch_idx)
        if place == trainer.accumulate_grad_batches - 1 and step == min(1, trainer.max_steps - self._first - 1):
            self._recorder = Recorder()
            self._recorder.start()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Note which adapters have a gradient."""
        if self._watching and "dora" in self.on:
            self._moved |= {n for n, p in adapter_parameters(pl_module) if p.grad is not None and bool(p.grad.any())}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        """End the profile, and after the last watched step the watch."""
        if not self._watching:
            return
        if self._recorder:
            self.sight.trace, self._recorder = self._recorder.stop(), None
            self.sight.loss_dtype = rest[0]["loss"].dtype
        if trainer.global_step >= self._first + WATCHED_STEPS:
            self._conclude(trainer, pl_module, end=False)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the averages and count replays; judge the rest too where the run was shorter than the watch."""
        if self._replays:
            self.sight.replays = self._replays.remove()
        if self.on and trainer.global_step > self._first:
            self._conclude(trainer, pl_module, end=True)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave no profile running and no counter installed."""
        if self._recorder:
            self._recorder.stop()
            self._recorder = None
        if self._replays:
            self._replays.remove()

    def _conclude(self, trainer: L.Trainer, module: L.LightningModule, *, end: bool) -> None:
        if self._watching:
            self._watching = False
            self._look(trainer, module)
        self.sight.average = average_of(trainer, module)
        names = [lever for lever in self.on if end or lever not in _AT_THE_END]
        if not end and self.sight.average and not self.sight.average.float32:
            names += [lever for lever in ("ema", "swa") if lever in self.on]  # known already, whatever comes
        found = {lever: judge(lever, self.on[lever], self.sight) for lever in names}
        self._tell([o for o in found.values() if not o.engaged and self.observations.get(o.lever) != o], trainer)
        self.observations |= found
        if self.path and trainer.is_global_zero:
            self._write(self.path)
        idle = [o for o in found.values() if not o.engaged]
        if self.strict and idle and not end:
            raise LeverError(
                "; ".join(f"efficiency.{o.lever}: {self.on[o.lever]!r} does not act: {o.what}" for o in idle)
                + " (strict: true)"
            )

    def _look(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Note what is the same in every step."""
        sight = self.sight
        sight.costs = self._meter.read()
        sight.parameter_dtypes = frozenset(p.dtype for p in module.parameters() if p.is_floating_point())
        sight.fused_flags = tuple(bool(group.get("fused")) for o in trainer.optimizers for group in o.param_groups)
        sight.adapters = Adapters(
            trainable=sum(p.numel() for p in module.parameters() if p.requires_grad),
            parameters=sum(p.numel() for p in module.parameters()),
            moved=frozenset(self._moved),
            unmoved=frozenset(name for name, _ in adapter_parameters(module)) - self._moved,
        )

    def _tell(self, idle: list[Observation], trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            for o in idle:
                print(f"efficiency.{o.lever}: {self.on[o.lever]!r} does not act: {o.what}", file=sys.stderr)

    def _write(self, path: Path) -> None:
        rows = self.levers.to_list()
        for row in rows:
            if seen := self.observations.get(row["lever"]):
                row |= {"observed": seen.what, "engaged": seen.engaged}
        text = json.dumps(rows, ensure_ascii=False, indent=1, default=str)
        write_atomically(path, lambda file: file.write(text.encode()))


class Replays:
    """Counts replays of CUDA graphs, of training and validation alike, while it is installed."""

    def __init__(self) -> None:
        self.count = 0
        self._real = torch.cuda.CUDAGraph.replay

    def install(self) -> None:
        """Begin to count."""

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.count += 1
            self._real(graph)

        torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign, assignment]

    def remove(self) -> int:
        """Stop counting and return the count."""
        torch.cuda.CUDAGraph.replay = self._real  # type: ignore[method-assign]
        return self.count


def layout_of(batch: Any) -> Layout | None:
    """Return how a batch of ids is laid out; None for batches of something else."""
    rectangles = batch if isinstance(batch, list) else [batch]
    if not all(isinstance(r, dict) and "source_BL" in r for r in rectangles):
        return None
    from dubsar.models.transliterator import IGNORED, PAD  # loads transformers, which other stages do without

    real = sum((r["source_BL"] != PAD).sum() + (r["target_BT"] != IGNORED).sum() for r in rectangles)
    computed = sum(r["source_BL"].numel() + r["target_BT"].numel() for r in rectangles)
    return Layout(len(rectangles), all("source_documents_BL" in r for r in rectangles), int(real), computed)


def average_of(trainer: L.Trainer, module: L.LightningModule) -> Average | None:
    """Return what the run's average of the weights is by now; None where it keeps none."""
    averaging = next((c for c in trainer.callbacks if isinstance(c, WeightAveraging)), None)
    if averaging is None:
        return None
    averaged = averaging._average_model
    pairs = list(zip(module.parameters(), averaged.module.parameters(), strict=True))
    return Average(
        frozenset(average.dtype for _, average in pairs if average.is_floating_point()),
        int(averaged.n_averaged),
        any(not torch.equal(raw, average.to(raw)) for raw, average in pairs),
    )
