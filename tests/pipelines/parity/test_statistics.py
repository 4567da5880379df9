"""The statistics of parity, by simulation: what they promise is kept at three, five and eight seeds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from dubsar.pipelines.parity.statistics import (
    Counts,
    Interval,
    Verdict,
    compare,
    estimate,
    holm,
    judge,
    judge_all,
    margin_supported,
    p_value,
    power,
    power_at,
    seeds_needed,
    seeds_to_settle,
    two_sided,
    worst,
)
from dubsar.pipelines.resampling import tablet_error

TABLETS = 40
TRIALS = 1000
MARGIN = 1.0
# standard deviations in percentage points: of seeds, of the lever's effect by tablet, of tablet and seed together
WORLDS = [(0.5, 0.0, 0.5), (0.5, 2.0, 2.0), (0.3, 4.0, 2.0), (0.8, 1.0, 1.0)]


def two_arms(seeds: int, world: tuple[float, float, float], gain: float, rng: np.random.Generator) -> Interval:
    """Draw both arms of a made-up comparison whose true gain, in percentage points, is known."""
    by_seed, by_tablet, both = world
    whole = rng.integers(20, 200, TABLETS).astype(float)
    shared = rng.normal(0, by_seed * 0.7, seeds)  # the same seed makes both arms better or worse
    arms = []
    for level, effect in ((60.0, np.zeros(TABLETS)), (60.0 + gain, rng.normal(0, by_tablet, TABLETS))):
        own = rng.normal(0, by_seed * 0.7, seeds)
        percent = level + (shared + own)[:, None] + effect + rng.normal(0, both, (seeds, TABLETS))
        arms.append(Counts(percent / 100 * whole, whole))
    return compare(*arms, higher_is_better=True, draws=200, seed=int(rng.integers(2**31)))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_no_verdict_errs_more_often_than_it_may(seeds: int) -> None:
    """At a true loss of just the margin neither a pass nor INFERIOR is right: nominal 5 %, at most 7 %."""
    rng = np.random.default_rng(seeds)
    verdicts = [judge(two_arms(seeds, w, -MARGIN, rng), MARGIN) for w in WORLDS for _ in range(TRIALS)]
    assert np.mean([v.proves_parity for v in verdicts]) < 0.07
    assert np.mean([v is Verdict.INFERIOR for v in verdicts]) < 0.07
    # at the other border of equivalence a gain of the margin may not pass for none
    gains = [judge(two_arms(seeds, w, MARGIN, rng), MARGIN) for w in WORLDS for _ in range(TRIALS // 2)]
    assert np.mean([v is Verdict.EQUIVALENT for v in gains]) < 0.07


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize("world", WORLDS)
def test_the_interval_covers_the_truth(world: tuple[float, float, float], seeds: int) -> None:
    rng = np.random.default_rng([int(10 * w) for w in world] + [seeds])
    runs = [two_arms(seeds, world, 0.4, rng) for _ in range(TRIALS // 2)]
    noise = 3 * np.sqrt(0.1 * 0.9 / len(runs))  # of the simulation itself
    assert np.mean([r.low <= 0.4 <= r.high for r in runs]) > 0.9 - noise


def test_to_forget_that_signs_share_a_tablet_would_pass_too_much() -> None:
    """The control of the simulation above: with the spread of seeds alone the error is far over what is allowed."""
    rng = np.random.default_rng(2)
    runs = [two_arms(5, (0.1, 4.0, 1.0), -MARGIN, rng) for _ in range(TRIALS // 2)]
    seeds_only = [r.mean - t.ppf(0.95, r.seeds - 1) * r.se_seeds > -MARGIN for r in runs]
    assert np.mean(seeds_only) > 0.2
    assert np.mean([judge(r, MARGIN).proves_parity for r in runs]) < 0.07


def test_no_metric_of_many_passes_wrongly_more_often_than_one_may() -> None:
    rng = np.random.default_rng(3)
    names, margins = "abcd", dict.fromkeys("abcd", MARGIN)
    wrong, uncorrected = [], []
    for _ in range(TRIALS // 2):
        intervals = {n: two_arms(5, WORLDS[0], -MARGIN, rng) for n in names}
        wrong.append(any(v.proves_parity for v in judge_all(intervals, margins).values()))
        uncorrected.append(any(judge(i, MARGIN).proves_parity for i in intervals.values()))
    assert np.mean(wrong) < 0.07
    assert np.mean(uncorrected) > 0.1, "without Holm it would be four chances"


def test_a_clear_case_is_decided() -> None:
    rng = np.random.default_rng(0)
    assert judge(two_arms(5, (0.1, 0.1, 0.1), 0.0, rng), MARGIN) is Verdict.EQUIVALENT
    assert judge(two_arms(5, (0.1, 0.1, 0.1), -3.0, rng), MARGIN) is Verdict.INFERIOR
    assert judge(two_arms(5, (0.1, 0.1, 0.1), 3.0, rng), MARGIN) is Verdict.NON_INFERIOR


def test_equal_arms_have_no_difference_and_no_spread() -> None:
    counts = Counts(np.array([[3.0, 4.0], [5.0, 4.0]]), np.array([10.0, 10.0]))
    interval = compare(counts, counts, higher_is_better=False)
    assert (interval.mean, interval.low, interval.high) == (0, 0, 0)
    assert interval.paired
    assert p_value(interval, 0.1) == 0


def test_fewer_errors_are_better() -> None:
    whole = np.array([100.0, 100.0])
    worse, better = Counts(np.array([[9.0, 9], [8, 8]]), whole), Counts(np.array([[7.0, 7], [6, 6]]), whole)
    assert compare(worse, better, higher_is_better=False).mean == pytest.approx(2)
    assert compare(worse, better, higher_is_better=True).mean == pytest.approx(-2)


def test_a_long_tablet_weighs_more() -> None:
    assert Counts(np.array([[90.0, 0.0]]), np.array([900.0, 100.0])).percent_S.tolist() == [9.0]


def test_arms_that_go_against_one_another_are_not_paired() -> None:
    whole = np.full(5, 100.0)
    up, down = (np.outer(s, np.ones(5)) for s in ([50.0, 51, 52], [52.0, 51, 50]))
    interval = compare(Counts(up, whole), Counts(down, whole), higher_is_better=True)
    assert not interval.paired
    assert interval.correlation == pytest.approx(-1)


def test_the_error_over_tablets_is_that_of_a_mean() -> None:
    part = np.random.default_rng(0).normal(0, 1, 200)
    assert tablet_error(part, np.full(200, 1.0), 4000, 0) == pytest.approx(100 * part.std(ddof=1) / 200**0.5, rel=0.05)


def test_seeds_needed_are_those_of_the_power_table() -> None:
    assert [seeds_needed(s) for s in (0.2, 0.4, 0.6, 0.8, 1.0)] == [3, 3, 4, 6, 8]
    assert seeds_needed(100.0) is None
    assert power(8, 1.0) >= 0.8 > power(7, 1.0)
    assert power(50, 1.0, loss_over_margin=1.0) == pytest.approx(0.05)  # a loss of the whole margin


def test_the_margin_that_data_support_is_proved_by_them_four_times_of_five() -> None:
    rng = np.random.default_rng(1)
    first = two_arms(5, (0.5, 1.0, 1.0), 0.0, rng)
    margin = np.median([margin_supported(two_arms(5, (0.5, 1.0, 1.0), 0.0, rng)) for _ in range(50)])
    passed = [judge(two_arms(5, (0.5, 1.0, 1.0), 0.0, rng), float(margin)).proves_parity for _ in range(200)]
    assert margin_supported(first) > 0
    assert 0.7 < np.mean(passed) < 0.9


@pytest.mark.parametrize("world", [(0.5, 0.0, 0.5), (0.4, 2.0, 0.5)])
def test_power_is_how_often_equal_arms_pass(world: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(4)
    runs = [two_arms(5, world, 0.0, rng) for _ in range(TRIALS // 2)]
    passed = np.mean([judge(r, MARGIN).proves_parity for r in runs])
    typical = replace(
        runs[0],
        se_seeds=float(np.sqrt(np.mean([r.se_seeds**2 for r in runs]))),
        se_tablets=float(np.sqrt(np.mean([r.se_tablets**2 for r in runs]))),
        degrees=float(np.median([r.degrees for r in runs])),
    )
    assert 0.3 < passed < 0.98
    assert power_at(typical, MARGIN) == pytest.approx(passed, abs=0.08)


def test_seeds_help_only_as_far_as_the_tablets_go() -> None:
    by_seeds = Interval(0.0, -1.0, 1.0, 0.8 / 3**0.5, 0.0, 2.0, 0.5, True, 3)
    assert seeds_to_settle(by_seeds, MARGIN) == seeds_needed(0.8) == 6
    assert power_at(by_seeds, MARGIN, 6) == pytest.approx(power(6, 0.8))
    with_tablets = replace(by_seeds, se_tablets=0.3)
    more = seeds_to_settle(with_tablets, MARGIN)
    assert more is not None
    assert more > 6
    assert power_at(with_tablets, MARGIN, more) >= 0.8 > power_at(with_tablets, MARGIN, more - 1)
    assert seeds_to_settle(replace(by_seeds, se_tablets=0.5), MARGIN) is None
    assert seeds_to_settle(replace(by_seeds, se_seeds=0.0), MARGIN) == 3


def test_many_metrics_make_each_harder_to_pass() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    weak = Interval(0.0, -0.9, 0.9, 0.5, 0.0, 20.0, 0.5, True, 21)
    assert judge_all({"a": weak}, {"a": 1.0}) == {"a": Verdict.EQUIVALENT}
    assert judge_all(dict.fromkeys("abc", weak), dict.fromkeys("abc", 1.0)) == dict.fromkeys(
        "abc", Verdict.INCONCLUSIVE
    )


def test_a_bundle_is_as_good_as_its_worst_metric() -> None:
    assert worst([Verdict.EQUIVALENT, Verdict.INFERIOR, Verdict.INCONCLUSIVE]) is Verdict.INFERIOR
    assert worst([]) is Verdict.INCONCLUSIVE
    assert not Verdict.NOT_ENGAGED.proves_parity


@pytest.mark.parametrize(
    ("reference", "candidate", "message"),
    [
        (np.ones((3, 2)), np.ones((2, 2)), "nothing can be paired"),
        (np.ones((1, 2)), np.ones((1, 2)), "one seed shows no spread"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(reference: object, candidate: object, message: str) -> None:
    whole = np.array([10.0, 10.0])
    with pytest.raises(ValueError, match=message):
        compare(Counts(reference, whole), Counts(candidate, whole), higher_is_better=True)  # type: ignore[arg-type]


def test_wrong_counts_and_missing_margins_are_refused() -> None:
    with pytest.raises(ValueError, match="expected \\(seeds, tablets\\)"):
        Counts(np.ones((2, 3)), np.ones(2))
    with pytest.raises(ValueError, match="finite"):
        Counts(np.full((2, 2), np.nan), np.ones(2))
    interval = Interval(0.0, -1.0, 1.0, 0.5, 0.0, 2.0, 0.5, True, 3)
    with pytest.raises(ValueError, match="no margin for cer: state what loss is bearable, as --margin cer="):
        judge_all({"cer": interval}, {})
    with pytest.raises(ValueError, match="expected a loss above 0"):
        judge(interval, 0.0)


@pytest.mark.parametrize("margin", [0.5, 5.0, 50.0, 500.0, 5e6])
def test_a_margin_of_any_number_of_standard_errors_has_a_power(margin: float) -> None:
    rng = np.random.default_rng(0)
    arms = [Counts(20 + rng.normal(0, 0.5, (3, 30)), np.full(30, 100.0)) for _ in range(2)]
    interval = compare(*arms, higher_is_better=False)
    assert 0 <= power_at(interval, margin) <= 1
    assert power_at(interval, 5e6) == pytest.approx(1)
    assert seeds_to_settle(interval, margin) == 3


def test_a_single_arm_is_estimated_by_both_sources_of_chance() -> None:
    whole = np.full(50, 100.0)
    same = estimate(Counts(np.tile(np.linspace(40, 80, 50), (3, 1)), whole))
    assert (same.mean, same.se_seeds, same.seeds) == (pytest.approx(60), 0.0, 3)
    spread = np.linspace(40, 80, 50).std(ddof=1) / 50**0.5
    assert same.se_tablets == pytest.approx(spread, rel=0.06)
    assert (same.high - same.low) / 2 == pytest.approx(t.ppf(0.975, 49) * same.se_tablets)
    seeds = np.array([50.0, 60.0, 70.0])[:, None]
    even = estimate(Counts(np.tile(seeds, (1, 50)), whole))  # all tablets alike: seeds alone vary
    assert (even.se_seeds, even.se_tablets) == (pytest.approx(10 / 3**0.5), pytest.approx(0, abs=1e-9))
    assert even.high - even.mean == pytest.approx(t.ppf(0.975, 2) * 10 / 3**0.5)
    with pytest.raises(ValueError, match="one seed shows no spread"):
        estimate(Counts(np.ones((1, 4)), np.ones(4)))


# --- two finished networks


def two_files(gain: float, rng: np.random.Generator) -> Interval:
    """Compare two made-up networks whose true gain over all tablets that there could be, in points, is known."""
    whole = rng.integers(20, 200, TABLETS).astype(float)
    before = rng.normal(60, 8, TABLETS)
    after = before + gain + rng.normal(0, 3, TABLETS)
    arms = [Counts(percent[None] / 100 * whole, whole) for percent in (before, after)]
    return compare(*arms, higher_is_better=True, draws=200, seed=int(rng.integers(2**31)), finished=True)


@pytest.mark.slow
def test_of_finished_networks_the_tablets_alone_vary_and_no_verdict_errs_too_often() -> None:
    rng = np.random.default_rng(8)
    runs = [two_files(-MARGIN, rng) for _ in range(TRIALS)]
    assert {(r.se_seeds, r.seeds, r.degrees) for r in runs} == {(0.0, 1, TABLETS - 1.0)}
    assert np.mean([judge(r, MARGIN).proves_parity for r in runs]) < 0.07
    assert np.mean([judge(r, MARGIN) is Verdict.INFERIOR for r in runs]) < 0.07
    covered = np.mean([low <= -MARGIN <= high for low, high, _ in map(two_sided, runs)])
    assert 0.93 < covered < 0.97
    nothing = [two_sided(two_files(0.0, rng))[2] for _ in range(TRIALS)]
    assert 0.03 < np.mean(np.array(nothing) < 0.05) < 0.07


def test_the_two_sided_bounds_touch_zero_where_p_is_5_percent() -> None:
    whole = np.full(10, 100.0)
    before, after = (
        Counts(np.array([part]), whole) for part in ([50.0] * 10, [50.0, 60, 55, 49, 52, 57, 50, 54, 48, 51])
    )
    interval = compare(before, after, higher_is_better=True, finished=True)
    low, high, p = two_sided(interval)
    assert interval.mean == pytest.approx(2.6)
    assert high - interval.mean == pytest.approx(interval.mean - low)
    touching = replace(interval, mean=interval.mean - low)
    assert two_sided(touching)[0] == pytest.approx(0)
    assert two_sided(touching)[2] == pytest.approx(0.05)
    assert 0.07 > p > 0.05
    assert low < 0
    equal = compare(before, before, higher_is_better=True, finished=True)
    assert two_sided(equal) == (0, 0, 1)


def test_no_number_of_seeds_settles_two_files_and_one_tablet_tells_nothing() -> None:
    interval = two_files(0.0, np.random.default_rng(0))
    assert seeds_to_settle(interval, 100.0) is None
    assert 0.5 < power_at(interval, margin_supported(interval)) < 0.9
    one = Counts(np.array([[5.0]]), np.array([10.0]))
    alone = compare(one, one, higher_is_better=True, finished=True)
    assert (alone.low, alone.high) == (-np.inf, np.inf)
    assert judge(alone, MARGIN) is Verdict.INCONCLUSIVE


def test_seeds_and_finished_networks_are_not_mixed_up() -> None:
    whole = np.array([10.0, 10.0])
    one, two = Counts(np.array([[3.0, 4]]), whole), Counts(np.array([[3.0, 4], [5, 4]]), whole)
    with pytest.raises(ValueError, match=r"^one seed shows no spread; give at least two"):
        compare(one, one, higher_is_better=True)
    with pytest.raises(ValueError, match=r"^2 seeds of a finished network, expected one"):
        compare(two, two, higher_is_better=True, finished=True)


def test_items_are_summed_by_tablet() -> None:
    counts = Counts.of_items([[1, 0, 1, 1]], [1, 1, 1, 2], ["b", "a", "b", "a"])
    assert (counts.part_ST.tolist(), counts.whole_T.tolist()) == ([[1.0, 2.0]], [3.0, 2.0])
