"""Which signs are taken for which."""

import numpy as np
import pytest

from dubsar.pipelines.scoring.confusions import Pair, confused_pairs, confusion_shares

TRUTH = np.array([5, 5, 5, 2, 2, 7, 9])
GUESS = np.array([5, 2, 2, 2, 5, 2, 9])


def test_pairs_come_most_frequent_first_with_their_crops() -> None:
    assert confused_pairs(TRUTH, GUESS, 10) == [Pair(5, 2, (1, 2), 3), Pair(2, 5, (4,), 2), Pair(7, 2, (5,), 1)]
    assert confused_pairs(TRUTH, GUESS, 1) == [Pair(5, 2, (1, 2), 3)]
    assert confused_pairs(TRUTH, TRUTH, 10) == []
    assert confused_pairs(TRUTH[:0], GUESS[:0], 10) == []


def test_shares_of_the_most_frequent_classes_and_of_all_others() -> None:
    classes, shares = confusion_shares(TRUTH, GUESS, 2)
    assert classes.tolist() == [5, 2]
    assert shares == pytest.approx(np.array([[1 / 3, 2 / 3, 0], [1 / 2, 1 / 2, 0]]))
    classes, shares = confusion_shares(TRUTH, GUESS, 1)
    assert shares.tolist() == [pytest.approx([1 / 3, 2 / 3])]
    classes, shares = confusion_shares(TRUTH[:0], GUESS[:0], 40)
    assert (classes.shape, shares.shape) == ((0,), (0, 1))
