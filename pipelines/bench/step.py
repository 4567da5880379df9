"""What does Lightning cost per step, with all that `dubsar train` hangs on it, over another way of taking one?"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dubsar.pipelines.bench.measure import Effort, Measured, Samples, compare, timings
from dubsar.pipelines.bench.stage import PlainLoop, Small, build_small, small_config
from dubsar.pipelines.stream import Stream
from dubsar.pipelines.training import RunFolder, build_trainer, fit, open_run

LIGHTNING, PLAIN = "Lightning", "plain loop"
MOST_OVERHEAD = 0.03


Step = Callable[[Any, int], object]


class Alternating(Stream):
    """One batch again and again; Lightning takes a step with it, then the other loop does.

    A stream's iterator waits at its ``yield`` for as long as Lightning does everything else, so the wait is the time of
    one of its steps, and between two of them the other loop's turn comes: both are timed in the same seconds.

    Args:
        batch: for all steps, so that nothing but the loop differs.
        name: of the other loop.
        step: takes its step with the batch and the step's number.
        now: the clock.
    """

    def __init__(self, batch: Any, name: str, step: Step, now: Callable[[], float]) -> None:
        self.only, self.name, self.step, self.now = batch, name, step, now
        self.samples: Samples = {LIGHTNING: [], name: []}

    def batch(self, number: int) -> Any:
        """Return the batch."""
        return self.only

    def epoch_batches(self) -> int:
        """Return that one batch is all."""
        return 1

    def __iter__(self) -> Iterator[Any]:
        """Yield the batch without end."""
        for number in itertools.count():
            began = self.now()
            yield self.only
            self.samples[LIGHTNING].append(self.now() - began)
            began = self.now()
            self.step(self.only, number)
            self.samples[self.name].append(self.now() - began)


def bench_step(effort: Effort) -> list[Measured]:
    """Time both loops, stage by stage."""
    return [
        beside_lightning(stage, effort, PLAIN, lambda small: PlainLoop(small.copied()).step) for stage in effort.stages
    ]


def beside_lightning(stage: str, effort: Effort, other: str, stepping: Callable[[Small], Step]) -> Measured:
    """Time Lightning's step beside another; validation and checkpoints, not part of every step, are left out.

    Args:
        stage: at its small size.
        effort: rounds and clock.
        other: name of the other loop.
        stepping: returns what takes its step, given the stage, whose weights it is to leave alone.
    """
    warm_up = effort.rounds // 3 + 3  # past the quarter of the run in which the average is not one yet
    steps = warm_up + effort.rounds + 1
    settings = (f"trainer.max_steps={steps}", f"trainer.val_every_steps={steps + 1}")
    small = build_small(small_config(stage, effort, *settings))
    stream = Alternating(small.stream.batch(0), other, stepping(small), effort.now)
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(Path(folder) / "run", small.config, small.levers)
        trainer = build_trainer(small.config, run, small.levers, monitor="train/loss", mode="min")
        fit(trainer, small.system, stream, RunFolder(run.path), resume=False)
    samples = {arm: seconds[warm_up:][: effort.rounds] for arm, seconds in stream.samples.items()}
    comparison = compare(samples, other, LIGHTNING, bound=1.0, required=1 / (1 + MOST_OVERHEAD))
    overhead = 100 * (1 / comparison.speed_up.value - 1)
    note = f"Lightning takes {overhead:+.1f} % of the {other}'s time on top"
    return Measured(stage, "optimizer step", timings(samples), [comparison], (note,))
