"""Intervals over tablets: they cover what they promise, and one tablet promises nothing."""

import numpy as np
import pytest

from dubsar.pipelines.resampling import percent_bounds, spread, sums_by_tablet, tablet_error


def test_items_are_added_up_by_tablet() -> None:
    sums = sums_by_tablet(np.array(["b", "a", "b"]), np.array([[1.0, 1.0], [0.0, 1.0], [2.0, 1.0]]))
    assert sums.tolist() == [[0.0, 1.0], [3.0, 2.0]]


def test_a_rate_over_tablets_of_one_size_spreads_as_its_mean_does() -> None:
    rng = np.random.default_rng(0)
    part = rng.random(200)
    expected = part.std(ddof=1) / 200**0.5
    assert tablet_error(part, np.ones(200), 4000, 0) == pytest.approx(100 * expected, rel=0.05)
    assert spread(part[:, None], lambda sums: sums[:, 0] / 200, 4000) == pytest.approx(expected, rel=0.05)


def test_crops_of_one_tablet_count_together() -> None:
    right = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 50)  # by tablet all right or all wrong
    values = np.stack([right, np.ones(300)], axis=1)
    alone = percent_bounds(np.arange(300).astype(str), values)
    together = percent_bounds(np.repeat(list("abcdef"), 50), values)
    assert alone[0] > together[0]
    assert alone[1] < together[1]
    assert together[0] < 100 * 4 / 6 < together[1]


def test_bounds_stay_within_a_percentage_and_one_tablet_has_none() -> None:
    values = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    low, high = percent_bounds(np.array(["a", "b", "c"]), values)
    assert low == 0.0
    assert high == 100.0
    assert percent_bounds(np.array(["a", "a", "a"]), values) == (0.0, 100.0)
    assert percent_bounds(np.array(["a", "b", "b"]), values * 0 + 1) == (100.0, 100.0)


def test_a_95_percent_interval_covers_the_truth_about_95_times_of_100() -> None:
    rng = np.random.default_rng(1)
    names, covered = np.repeat(np.arange(30), 20).astype(str), 0
    for _ in range(200):
        rates = np.clip(rng.normal(0.6, 0.15, 30), 0, 1)
        right = rng.random(600) < np.repeat(rates, 20)
        low, high = percent_bounds(names, np.stack([right, np.ones(600)], axis=1).astype(float))
        covered += low <= 60 <= high
    assert 0.9 < covered / 200 <= 0.985
