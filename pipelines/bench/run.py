"""`dubsar bench`: run one benchmark, print what it found, and write it where a folder is given.

Figures hold for the machine and the minutes in which they were measured; the load before is printed with them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dubsar.datasets.sources import require_outside_data
from dubsar.pipelines.bench.classify import bench_classify
from dubsar.pipelines.bench.compile import bench_compile
from dubsar.pipelines.bench.crops import bench_crops
from dubsar.pipelines.bench.measure import CLOCKS, LEAST_ROUNDS, Effort, Measured
from dubsar.pipelines.bench.optimizer import bench_optimizer
from dubsar.pipelines.bench.packing import bench_packing
from dubsar.pipelines.bench.pretrain import bench_pretrain
from dubsar.pipelines.bench.read import bench_read
from dubsar.pipelines.bench.result import BenchResult, Machine, show, write
from dubsar.pipelines.bench.step import bench_step
from dubsar.pipelines.levers.table import STAGES

BENCHES: dict[str, Callable[[Effort], list[Measured]]] = {
    "packing": bench_packing,
    "crops": bench_crops,
    "read": bench_read,
    "step": bench_step,
    "optimizer": bench_optimizer,
    "compile": bench_compile,
    "pretrain": bench_pretrain,
    "classify": bench_classify,
}


def bench(
    what: str,
    out: Path | None = None,
    *,
    rounds: int = 20,
    threads: int = 1,
    clock: str = "wall",
    stages: Sequence[str] = (),
    tiny: bool = False,
) -> BenchResult:
    """Run a benchmark.

    Args:
        what: a name of `BENCHES`.
        out: folder for ``<what>.json`` and ``<what>.png``; nothing is written where None.
        rounds: interleaved rounds that are timed.
        threads: of the CPU; one, because with other work beside it two may be slower.
        clock: ``wall``, or ``cpu``: the time that the process computed, which other work disturbs less.
        stages: of which, for `step`, `optimizer` and `compile`; all where empty.
        tiny: prove the path with the smallest networks and inputs; such times say nothing.

    Returns:
        What was found; `BenchResult.passed` says whether all that is required is met.

    Raises:
        ValueError: there is no such benchmark, clock or stage, too few rounds for an interval, or several threads to
            be measured by the CPU's clock.
    """
    if what not in BENCHES:
        raise ValueError(f"bench is {what!r}, expected one of {', '.join(BENCHES)}")
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}, expected at least {LEAST_ROUNDS}: fewer give no 95 % interval")
    if clock not in CLOCKS:
        raise ValueError(f"clock is {clock!r}, expected one of {', '.join(CLOCKS)}")
    if clock == "cpu" and threads > 1:
        raise ValueError(
            f"threads is {threads} and clock is 'cpu', which adds up the threads; measure one thread by it"
        )
    if out is not None:
        require_outside_data(out, "--out")
    if unknown := set(stages) - STAGES:
        raise ValueError(f"stages: {', '.join(sorted(unknown))}, expected some of {', '.join(sorted(STAGES))}")
    effort = Effort(rounds, tiny, clock, tuple(stages) or tuple(sorted(STAGES)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        machine = Machine.here()
        result = BenchResult(what, effort, BENCHES[what](effort), machine)
    finally:
        torch.set_num_threads(before)
    show(result)
    if out is not None:
        write(result, out)
    return result
