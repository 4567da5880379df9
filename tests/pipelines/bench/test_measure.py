"""The measuring itself: order, estimate and interval by simulation, requirements."""

import time
from typing import Any

import numpy as np
import pytest

from dubsar.pipelines.bench.measure import (
    LEAST_ROUNDS,
    Arm,
    Comparison,
    Effort,
    amdahl,
    compare,
    interleave,
    orders,
    speed_up,
    timings,
)
from dubsar.pipelines.parity.result import Ratio

TRUE = 1.3
TRIALS = 2000


def disturbed(rounds: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw times of a baseline and of an arm that is 1.3 x as fast: drift, jitter, and now and then another process."""

    def noise() -> Any:
        jitter = rng.lognormal(0, 0.05, rounds)
        return jitter * np.where(rng.random(rounds) < 0.15, rng.uniform(1.5, 4, rounds), 1)

    drift = np.exp(np.cumsum(rng.normal(0, 0.1, rounds)))
    return TRUE * drift * noise(), drift * noise()


@pytest.mark.parametrize("rounds", [LEAST_ROUNDS, 10, 20])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    found = [speed_up(*disturbed(rounds, rng)) for _ in range(TRIALS)]
    covered = np.mean([r.low <= TRUE <= r.high for r in found])
    assert 0.94 <= covered <= 0.985
    assert np.median([r.value for r in found]) == pytest.approx(TRUE, rel=0.02)


def test_arms_timed_one_after_another_would_not_cover_it() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        baseline, _ = disturbed(20, rng)
        _, later = disturbed(20, rng)  # of another stretch of time: the drift is not shared
        covered += speed_up(baseline, later).low <= TRUE <= speed_up(baseline, later).high
    assert covered < 200


def test_an_interval_narrows_with_the_rounds_and_one_disturbed_round_moves_it_little() -> None:
    rng = np.random.default_rng(1)
    few, many = (speed_up(*disturbed(n, rng)) for n in (8, 200))
    assert many.high - many.low < few.high - few.low
    arm = list(rng.lognormal(0, 0.01, 12))
    quiet = speed_up([TRUE * t for t in arm], list(rng.lognormal(0, 0.01, 12)))
    loud = speed_up([TRUE * t for t in arm], [*list(rng.lognormal(0, 0.01, 11)), 50.0])
    assert loud.value == pytest.approx(quiet.value, rel=0.02)


def test_ranks_leave_out_as_many_means_as_wilcoxons_tables_say() -> None:
    # for ten pairs P(T <= 8) is 0.0244 and P(T <= 9) is 0.0322, so 8 means lie below the interval
    logs = np.log(np.arange(1.0, 11.0))
    pairs = np.sort([(logs[i] + logs[j]) / 2 for i in range(10) for j in range(i, 10)])
    ratio = speed_up(np.exp(logs), np.ones(10))
    assert ratio.low == pytest.approx(np.exp(pairs[8]))
    assert ratio.high == pytest.approx(np.exp(pairs[-9]))


def test_too_few_rounds_give_no_interval() -> None:
    with pytest.raises(ValueError, match="5 rounds are timed, expected at least 6"):
        speed_up([1.0] * 5, [1.0] * 5)


def test_every_second_round_has_the_order_reversed_and_each_arm_once() -> None:
    drawn = orders(["a", "b", "c"], 40, seed=3)
    assert all(sorted(order) == ["a", "b", "c"] for order in drawn)
    assert all(second == first[::-1] for first, second in zip(drawn[::2], drawn[1::2], strict=True))
    assert len({tuple(order) for order in drawn}) == 6
    assert drawn == orders(["a", "b", "c"], 40, seed=3)
    assert drawn != orders(["a", "b", "c"], 40, seed=4)


def test_arms_take_turns_and_the_warm_up_is_not_counted() -> None:
    calls: list[tuple[str, int]] = []
    arms = [Arm(name, lambda number, name=name: calls.append((name, number))) for name in ("a", "b")]
    samples = interleave(arms, Effort(rounds=6), warm_up=2)
    assert {name: len(seconds) for name, seconds in samples.items()} == {"a": 6, "b": 6}
    timed = calls[4:]
    assert [number for _, number in timed] == [n for n in range(6) for _ in "ab"]
    assert all({a[0], b[0]} == {"a", "b"} for a, b in zip(timed[::2], timed[1::2], strict=True))


def test_times_are_per_unit_and_the_cpu_clock_stands_still_in_sleep() -> None:
    arms = [
        Arm("one", lambda _: time.sleep(0.004)),
        Arm("of four", lambda _: time.sleep(0.004), units=lambda _: 4.0),
    ]
    wall, cpu = (interleave(arms, Effort(rounds=6, clock=clock)) for clock in ("wall", "cpu"))
    assert compare(wall, "one", "of four").speed_up.value == pytest.approx(4, rel=0.3)
    assert max(cpu["one"]) < 0.5 * min(wall["one"])


def test_median_and_deviation_are_robust() -> None:
    timing = timings({"a": [1.0, 1.1, 0.9, 1.0, 100.0]})[0]
    assert timing.median == 1.0
    assert timing.deviation == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(1.5, 1.9, "met"), (1.1, 1.9, "undecided"), (1.0, 1.3, "unmet"), (1.4, 1.4, "met")]
)
def test_a_requirement_is_met_by_the_whole_interval_only(low: float, high: float, outcome: str) -> None:
    ratio = Ratio((low + high) / 2, low, high)
    assert Comparison("a", "b", ratio, required=1.4).outcome == outcome
    assert Comparison("a", "b", ratio).outcome == ""
    assert Comparison("a", "b", ratio, required=1.4, not_applicable="no AMX").outcome == "not applicable"


def test_amdahl_bounds_the_whole() -> None:
    assert amdahl(0.5, 2.0) == pytest.approx(4 / 3)
    assert amdahl(0.0, 100.0) == 1
    assert amdahl(1.0, 100.0) == pytest.approx(100)
