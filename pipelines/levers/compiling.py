"""What compiling cost in this process, and how long a step takes with and without it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch._dynamo.utils import counters, get_compilation_metrics

from dubsar.pipelines.levers.trace import Trace, recording

_TIMED = 2  # rehearsals of each kind, of which the faster one counts


@dataclass(frozen=True)
class CompileCosts:
    """Graphs, breaks, recompilations and seconds since a moment."""

    graphs: int
    breaks: int
    recompiles: int
    seconds: float
    tuned: int


class CompileMeter:
    """Counts what is compiled from its making on."""

    def __init__(self) -> None:
        self._since, self._before = time.time() * 1e6, _counted()

    def read(self) -> CompileCosts:
        """Return the costs so far; PyTorch remembers seconds and recompilations of the last 64 compilations."""
        new = [m for m in get_compilation_metrics() if (m.start_time_us or 0) >= self._since]
        graphs, breaks, tuned = (now - before for now, before in zip(_counted(), self._before, strict=True))
        recompiles = sum(bool(m.recompile_reason) for m in new)
        return CompileCosts(graphs, breaks, recompiles, sum(m.duration_us or 0 for m in new) / 1e6, tuned)


def _counted() -> tuple[int, int, int]:
    """Return the graphs, graph breaks and tuned kernels of this process so far."""
    graphs, tuned = counters["stats"]["unique_graphs"], counters["inductor"]["select_algorithm_autotune"]
    return int(graphs), sum(counters["graph_break"].values()), int(tuned)


@dataclass(frozen=True)
class Rehearsal:
    """Seconds of a forward and backward pass, compiled and eager, and what the eager one called."""

    compiled_seconds: float
    eager_seconds: float
    eager: Trace


def rehearse(trainer: L.Trainer, system: L.LightningModule, batch: Any, number: int) -> Rehearsal | None:
    """Time a batch's forward and backward pass with and without the compiled code; the run goes on as if it had not.

    Returns:
        None where it cannot be done: on several devices, whose gradients would be summed, or without the memory.
    """
    if trainer.world_size > 1:
        return None

    def seconds() -> float:
        return _forward_and_backward(trainer, system, batch, number)

    try:
        with _leaving_no_trace(system):
            compiled = min(seconds() for _ in range(_TIMED))
            with torch.compiler.set_stance("force_eager"):
                with recording() as found:
                    seconds()
                return Rehearsal(compiled, min(seconds() for _ in range(_TIMED)), found[0])
    except torch.OutOfMemoryError:
        return None


@contextmanager
def _leaving_no_trace(system: L.LightningModule) -> Iterator[None]:
    """Restore random states, buffers, gradients and attributes afterwards, and log nothing."""
    attributes = dict(vars(system))
    buffers = [(buffer, buffer.clone()) for buffer in system.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in system.parameters()]
    system.log = system.log_dict = lambda *_, **__: None
    try:
        with isolate_rng():
            yield
    finally:
        vars(system).clear()
        vars(system).update(attributes)
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _forward_and_backward(trainer: L.Trainer, system: L.LightningModule, batch: Any, number: int) -> float:
    for parameter in system.parameters():
        parameter.grad = None
    _wait(system.device)
    started = time.perf_counter()
    with trainer.precision_plugin.train_step_context():
        loss = system.training_step(batch, number)
    loss.backward()
    _wait(system.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
