"""Rows of a parity result from counts and rates."""

import numpy as np
import pytest

from dubsar.pipelines.parity.outcomes import judge_metrics, stratify, throughput
from dubsar.pipelines.parity.statistics import Counts, Interval, Verdict, compare


def test_a_group_is_compared_on_its_own_items_by_tablet() -> None:
    whole = np.array([10.0, 10, 10, 10, 10, 10])
    before = np.array([[5.0, 5, 8, 8, 6, 2], [5, 5, 8, 8, 6, 4]])
    after = before.copy()
    after[:, :2] += [2, 1]
    tablets = ["a", "b", "a", "b", "c", "c"]
    groups = {"rare": np.array([True, True, False, False, False, False]), "all": np.full(6, True)}
    rare, everything = stratify(
        "accuracy", Counts(before, whole), Counts(after, whole), groups, tablets=tablets, higher_is_better=True
    )
    assert (rare.metric, rare.name, rare.items) == ("accuracy", "rare", 20)
    assert (rare.reference, rare.candidate, rare.gain) == pytest.approx((50, 65, 15))
    assert rare.low < 15 < rare.high
    # by hand: the same items put together by tablet
    add = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    by_tablet = [Counts(arm @ add, whole @ add) for arm in (before, after)]
    wanted = compare(*by_tablet, higher_is_better=True)
    assert (everything.gain, everything.low, everything.high) == pytest.approx((wanted.mean, wanted.low, wanted.high))


def test_items_of_one_tablet_are_not_taken_for_many() -> None:
    rng = np.random.default_rng(0)
    hand = np.repeat(rng.normal(0, 2, 6), 50)  # each tablet's own gain, shared by its signs
    before = np.full((3, 300), 5.0)
    arms = Counts(before, np.full(300, 10.0)), Counts(before + hand, np.full(300, 10.0))
    groups = {"all": np.full(300, True)}
    (wide,) = stratify("a", *arms, groups, tablets=np.repeat(range(6), 50).tolist(), higher_is_better=True)
    (narrow,) = stratify("a", *arms, groups, higher_is_better=True)
    assert wide.high - wide.low > 4 * (narrow.high - narrow.low)


def test_a_group_without_items_or_with_one_tablet_claims_nothing() -> None:
    counts = Counts(np.array([[1.0, 2, 0], [1, 1, 0]]), np.array([4.0, 4, 0]))
    groups = {"none": np.full(3, False), "nothing to score": np.arange(3) == 2, "one tablet": np.arange(3) == 0}
    none, unscored, one = stratify("cer", counts, counts, groups, higher_is_better=False)
    for row in (none, unscored):
        assert row.items == 0
        assert np.isnan([row.reference, row.gain, row.low, row.high]).all()
    assert (one.items, one.gain, one.low, one.high) == (4, 0, -np.inf, np.inf)


def test_fewer_errors_in_a_group_are_a_gain() -> None:
    whole = np.full(3, 10.0)
    rows = stratify(
        "cer",
        Counts(np.full((2, 3), 4.0), whole),
        Counts(np.full((2, 3), 3.0), whole),
        {"all": np.full(3, True)},
        higher_is_better=False,
    )
    assert rows[0].gain == pytest.approx(10)


def test_throughput_is_the_ratio_of_pairs() -> None:
    ratio = throughput([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    swapped, straight = throughput([3.0, 1.1], [1.0, 1.0]), throughput([1.0, 1.0], [3.0, 1.1])
    assert (swapped.value, swapped.low) == pytest.approx((1 / straight.value, 1 / straight.high))


def test_the_interval_of_throughput_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        machine = rng.lognormal(0, 0.5, 3)  # each seed meets another load, the same in both arms
        ratio = throughput(machine * rng.lognormal(0, 0.05, 3), 1.3 * machine * rng.lognormal(0, 0.05, 3))
        hits.append(ratio.low <= 1.3 <= ratio.high)
    assert abs(np.mean(hits) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 2000)


def test_one_pair_of_rates_shows_no_spread() -> None:
    ratio = throughput([1.0], [1.5])
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(1.5), 0, np.inf)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_rates_that_cannot_be_compared_are_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="rates"):
        throughput(before, after)


def test_metrics_are_judged_together_and_say_what_was_missing() -> None:
    clear = Interval(0.0, -0.1, 0.1, 0.05, 0.02, 2.5, 0.9, True, 3)
    wide = Interval(-0.2, -2.0, 1.6, 0.6, 0.1, 2.1, 0.1, True, 3)
    blind = Interval(0.0, -2.0, 2.0, 0.1, 1.0, 30.0, 0.1, True, 3)
    names = {"cer": clear, "sign": wide, "map": blind}
    rows = judge_metrics(names, dict.fromkeys(names, 1.0), {"cer": False, "sign": True, "map": True})
    cer, sign, average = rows
    assert (cer.verdict, cer.higher_is_better, cer.seeds_needed) == (Verdict.EQUIVALENT, False, 3)
    assert cer.power > 0.95
    assert sign.verdict is Verdict.INCONCLUSIVE
    assert sign.seeds_needed is not None
    assert sign.seeds_needed > 3
    assert sign.power < 0.8
    assert average.seeds_needed is None, "seeds do not help where tablets are too few"
    assert sign.margin_supported > 1 > cer.margin_supported
    with pytest.raises(ValueError, match="no margin for cer"):
        judge_metrics({"cer": clear}, {}, {"cer": False})
