"""Time several ways of doing the same work, in one run and interleaved, and say how much faster one is than another.

Machines drift: they throttle, and others work on them. So no arm is timed after another. In each round every arm does
the same piece of work once; the order is drawn at random and the next round has it reversed (ABBA for two arms), and a
speed-up is estimated from the ratios within rounds.

The estimate is that of Hodges and Lehmann: the median of the means of all pairs of log ratios. Its interval inverts
Wilcoxon's signed-rank test. Both ask only that a log ratio lies symmetrically about its centre, which the difference of
two disturbances of the same kind does whatever their distribution, so a round that another process has disturbed moves
neither far; a mean with Student's interval would be carried away by it.

Sources: Hodges and Lehmann 1963; Hollander, Wolfe and Chicken 2014, section 3.3 (the interval); Amdahl 1967.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dubsar.pipelines.levers.table import STAGES
from dubsar.pipelines.parity.result import Ratio

LEVEL = 0.95
LEAST_ROUNDS = 6  # with five, no interval of ranks covers 95 %
MET, UNMET, UNDECIDED, NOT_APPLICABLE, NO_REQUIREMENT = "met", "unmet", "undecided", "not applicable", ""

# the CPU's clock stands still while other processes have the core, so it suits a busy machine; with one thread only
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

Samples = dict[str, list[float]]  # seconds per unit of work by arm, in the order of the rounds


@dataclass(frozen=True)
class Arm:
    """One way of doing the work.

    Attributes:
        name: shown beside its times.
        call: does the piece of work of a round, given the round's number.
        units: how many units of work that is.
    """

    name: str
    call: Callable[[int], object]
    units: Callable[[int], float] = lambda _: 1.0


@dataclass(frozen=True)
class Timing:
    """The times of one arm: median and median absolute deviation, seconds per unit of work, and all of them."""

    arm: str
    median: float
    deviation: float
    seconds: list[float]


@dataclass(frozen=True)
class Comparison:
    """How many times as fast as the baseline an arm is.

    Attributes:
        speed_up: the baseline's time over the arm's, with its 95 % interval.
        bound: what it can be at most by theory; None where there is no such bound.
        required: what it has to be at least; None where nothing is required.
        not_applicable: why this machine cannot be held to what is required; empty where it can.
    """

    baseline: str
    arm: str
    speed_up: Ratio
    bound: float | None = None
    required: float | None = None
    not_applicable: str = ""

    @property
    def outcome(self) -> str:
        """Whether the requirement is met: by the whole interval, else it is unmet or undecided."""
        if self.required is None:
            return NO_REQUIREMENT
        if self.not_applicable:
            return NOT_APPLICABLE
        if self.speed_up.low >= self.required:
            return MET
        return UNMET if self.speed_up.high < self.required else UNDECIDED


@dataclass(frozen=True)
class Measured:
    """One group of arms that did the same work, such as those of one stage.

    Attributes:
        name: of the group.
        unit: of work, such as ``crop`` or ``optimizer step``.
        timings: one per arm.
        comparisons: what was compared with what.
        notes: sentences that the reader must see.
    """

    name: str
    unit: str
    timings: list[Timing]
    comparisons: list[Comparison]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Effort:
    """How much to measure, and by which clock.

    Attributes:
        rounds: that are timed.
        tiny: take networks and inputs so small that only the path is proved.
        clock: a name of `CLOCKS`.
        stages: of which, where a benchmark has several.
    """

    rounds: int = 20
    tiny: bool = False
    clock: str = "wall"
    stages: tuple[str, ...] = tuple(sorted(STAGES))

    @property
    def now(self) -> Callable[[], float]:
        """The clock."""
        return CLOCKS[self.clock]


def interleave(arms: Sequence[Arm], effort: Effort, *, warm_up: int = 2, seed: int = 0) -> Samples:
    """Time all arms, round by round.

    Args:
        arms: names must differ.
        effort: rounds and clock.
        warm_up: rounds before those that are not counted.
        seed: of the order of the arms.

    Returns:
        Seconds per unit of work.
    """
    by_name = {arm.name: arm for arm in arms}
    assert len(by_name) == len(arms), "two arms of one name"
    for number, order in enumerate(orders(list(by_name), warm_up, seed)):
        for name in order:
            by_name[name].call(number)
    samples: Samples = {name: [] for name in by_name}
    for number, order in enumerate(orders(list(by_name), effort.rounds, seed)):
        for name in order:
            samples[name].append(seconds_per_unit(by_name[name], number, effort))
    return samples


def orders(names: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return the order of the arms in each round: at random, and every second round the one before it reversed."""
    rng = np.random.default_rng(seed)
    drawn: list[list[str]] = []
    for number in range(rounds):
        drawn.append(drawn[-1][::-1] if number % 2 else [str(n) for n in rng.permutation(list(names))])
    return drawn


def seconds_per_unit(arm: Arm, number: int, effort: Effort) -> float:
    """Time one call; on a GPU until its kernels have ended."""
    _wait()
    started = effort.now()
    arm.call(number)
    _wait()
    return (effort.now() - started) / arm.units(number)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timings(samples: Samples) -> list[Timing]:
    """Summarise the samples of each arm."""
    result = []
    for arm, seconds in samples.items():
        median = float(np.median(seconds))
        result.append(Timing(arm, median, float(np.median(np.abs(np.array(seconds) - median))), list(seconds)))
    return result


def rates(unit: str, samples: Samples) -> str:
    """Tell how many units of work each arm does in a second."""
    return f"{unit}s a second: " + "; ".join(f"{t.arm} {1 / t.median:,.1f}" for t in timings(samples))


def compare(samples: Samples, baseline: str, arm: str, **claims: Any) -> Comparison:
    """Compare two arms; ``claims`` are `Comparison`'s ``bound``, ``required`` and ``not_applicable``."""
    return Comparison(baseline, arm, speed_up(samples[baseline], samples[arm]), **claims)


def speed_up(baseline: Sequence[float], arm: Sequence[float]) -> Ratio:
    """Estimate the baseline's time over the arm's, with a 95 % interval, from times that are paired by round.

    Raises:
        ValueError: too few rounds for an interval.
    """
    if len(baseline) < LEAST_ROUNDS:
        raise ValueError(f"{len(baseline)} rounds are timed, expected at least {LEAST_ROUNDS} for a 95 % interval")
    logs_R = np.log(np.array(baseline) / np.array(arm))
    first, second = np.triu_indices(len(logs_R))
    means = np.sort((logs_R[first] + logs_R[second]) / 2)
    outside = _outside(len(logs_R))
    low, middle, high = means[outside], np.median(means), means[-1 - outside]
    return Ratio(*(float(np.exp(v)) for v in (middle, low, high)))


def _outside(rounds: int) -> int:
    """Return how many of the sorted means lie below the interval: the greatest k with P(statistic <= k) <= 2.5 %."""
    ways: npt.NDArray[np.float64] = np.ones(1)
    for rank in range(1, rounds + 1):  # of the statistic's values, by adding or leaving out each rank
        ways = np.append(ways, np.zeros(rank)) + np.append(np.zeros(rank), ways)
    below = np.cumsum(ways) / ways.sum()
    return int(np.searchsorted(below, (1 - LEVEL) / 2, side="right")) - 1


def amdahl(share: float, factor: float) -> float:
    """Return the most that a whole gains where a ``share`` of its time becomes ``factor`` times as fast."""
    return 1 / (1 - share + share / factor)
