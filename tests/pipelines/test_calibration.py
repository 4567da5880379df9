"""Calibration and open-set scores against hand-made numbers; also of nothing, of one class, all right, and ties."""

import numpy as np
import pytest

from dubsar.pipelines.calibration import (
    bin_of,
    error_of_sums,
    miscalibration_sums,
    reliability,
    score_calibration,
    score_open_set,
)


def test_four_crops_by_hand() -> None:
    probabilities = np.array([[0.8, 0.2, 0.0], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    truth = np.array([0, 0, 1, 2])
    found = score_calibration(probabilities, truth)
    # two bins: 0.8 is right twice, 0.6 once of two
    assert found.ece == pytest.approx(100 * (0.5 * 0.2 + 0.5 * 0.1))
    assert found.nll == pytest.approx(-np.log([0.8, 0.6, 0.3, 0.8]).mean())
    brier = [0.04 + 0.04, 0.16 + 0.09 + 0.01, 0.36 + 0.49 + 0.01, 0.01 + 0.01 + 0.04]
    assert found.brier == pytest.approx(np.mean(brier))
    # fewer crops than bins of equal mass: each stands alone
    assert found.ece_mass == pytest.approx(100 * (0.2 + 0.2 + 0.4 + 0.6) / 4)


def test_nothing_one_class_and_all_right() -> None:
    assert score_calibration(np.zeros((0, 3)), np.zeros(0, np.int64)).to_dict() == {
        "ece": 0.0, "ece_mass": 0.0, "nll": 0.0, "brier": 0.0,
    }  # fmt: skip
    one = score_calibration(np.ones((5, 1)), np.zeros(5, np.int64))
    assert (one.ece, one.ece_mass, one.nll, one.brier) == (0.0, 0.0, 0.0, 0.0)
    doubting = score_calibration(np.full((10, 2), 0.5), np.zeros(10, np.int64))
    assert doubting.ece == pytest.approx(50)  # of two alike the first counts as the guess, and it is always right
    ruled_out = score_calibration(np.array([[1.0, 0.0]]), np.array([1]))
    assert (ruled_out.ece, ruled_out.brier) == (100.0, 2.0)
    assert np.isfinite(ruled_out.nll)


def test_bins_of_equal_width_and_of_equal_mass() -> None:
    assert bin_of(np.array([0.0, 0.0999, 0.1, 0.999, 1.0]), 10).tolist() == [0, 0, 1, 9, 9]
    confidence, right = np.array([0.9, 0.1, 0.2, 0.95]), np.array([True, False, True, False])
    wide = reliability(confidence, right, 2)
    assert (wide.count_B.tolist(), wide.right_B.tolist()) == ([2, 2], [0.5, 0.5])
    assert wide.confidence_B == pytest.approx([0.15, 0.925])
    skewed = reliability(np.array([0.9, 0.8, 0.7, 0.95]), right, 2, equal_mass=True)
    assert skewed.count_B.tolist() == [2, 2]
    assert skewed.confidence_B == pytest.approx([0.75, 0.925])
    assert reliability(np.zeros(0), np.zeros(0, bool), equal_mass=True).error == 0.0


def test_sums_over_crops_give_the_same_error() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(300)
    right = rng.random(300) < confidence**2
    sums = miscalibration_sums(confidence, right)
    assert 100 * error_of_sums(sums.sum(0, keepdims=True))[0] == pytest.approx(reliability(confidence, right).error)
    assert error_of_sums(np.zeros((2, 16))).shape == (0,)


def test_open_set_by_hand() -> None:
    found = score_open_set(np.array([0.9, 0.8, 0.4]), np.array([0.1, 0.4, 0.85]))
    # 0.9 beats all three, 0.8 beats two, 0.4 beats one and ties with one
    assert found.auroc == pytest.approx(100 * (3 + 2 + 1.5) / 9)
    assert found.fpr95 == pytest.approx(100 * 2 / 3)  # all three known ones must pass: from 0.4 on
    assert (found.known, found.unknown) == (3, 3)
    assert score_open_set(np.array([0.9, 0.8]), np.array([0.1])).to_dict() == {
        "auroc": 100.0, "fpr95": 0.0, "known": 2, "unknown": 1,
    }  # fmt: skip
    assert score_open_set(np.full(7, 0.5), np.full(4, 0.5)).auroc == pytest.approx(50)


def test_the_threshold_lets_exactly_as_many_pass_as_asked() -> None:
    known = np.arange(1, 101) / 100
    assert score_open_set(known, np.array([0.05, 0.06, 0.07])).fpr95 == pytest.approx(200 / 3)


@pytest.mark.parametrize(("known", "unknown"), [(0, 3), (3, 0)])
def test_without_known_or_unknown_there_is_nothing_to_tell_apart(known: int, unknown: int) -> None:
    with pytest.raises(ValueError, match=f"{known} known and {unknown} unknown crops; expected some of either"):
        score_open_set(np.ones(known), np.ones(unknown))
