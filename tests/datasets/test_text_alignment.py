"""Aligning finds with a text: what is joined, what is left over, and what its neighbours say of a mistaken sign."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dubsar.datasets.sign_readings import LOST, TextSign
from dubsar.datasets.text_alignment import LOWEST, UNSEEN, align_face, align_line, support

CLASSES = 12


def seen(*classes: int, sure: float = 0.99) -> np.ndarray:
    """Return probabilities of finds that look like these classes."""
    likely_NC = np.full((len(classes), CLASSES), (1 - sure) / (CLASSES - 1))
    likely_NC[np.arange(len(classes)), list(classes)] = sure
    return likely_NC


def text(*classes: int | None) -> list[TextSign]:
    return [TextSign(LOST) if c is None else TextSign(f"r{c}", (c,)) for c in classes]


def joins(finds: np.ndarray, signs: list[TextSign]) -> list[tuple[int, int]]:
    return [(j.seen, j.written) for j in align_line(finds, signs)[1]]


def test_equal_lines_are_joined_sign_by_sign() -> None:
    assert joins(seen(3, 1, 4, 1), text(3, 1, 4, 1)) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_what_is_undetected_or_unwritten_is_left_over() -> None:
    assert joins(seen(3, 4, 5), text(3, 1, 4, 5)) == [(0, 0), (1, 2), (2, 3)]
    assert joins(seen(3, 9, 4, 5), text(3, 4, 5)) == [(0, 0), (2, 1), (3, 2)]


def test_a_sign_that_the_classifier_mistakes_is_held_by_its_neighbours() -> None:
    finds, signs = seen(3, 1, 7, 5, 6), text(3, 1, 4, 5, 6)
    joined = align_line(finds, signs)[1]
    assert [(j.seen, j.written) for j in joined] == [(i, i) for i in range(5)]
    held = support(joined, signs)
    assert joined[2].gain < 0 < held[2]
    assert held[2] == pytest.approx(np.mean([joined[i].gain for i in (0, 1, 3, 4)]))


def test_any_number_of_finds_may_stand_where_the_text_is_lost() -> None:
    for extra in range(4):
        finds = seen(3, *[9] * extra, 4, 5)
        assert joins(finds, text(3, None, 4, 5)) == [(0, 0), (extra + 1, 2), (extra + 2, 3)]
        assert align_line(finds, text(3, None, 4, 5))[0] >= align_line(finds, text(3, 4, 5))[0]


def test_a_reading_that_nothing_is_known_of_is_joined_but_supports_no_other() -> None:
    signs = [*text(3), TextSign("TA@V"), *text(5)]
    joined = align_line(seen(3, 8, 5), signs)[1]
    assert [(j.seen, j.written) for j in joined] == [(0, 0), (1, 1), (2, 2)]
    assert support(joined, signs)[0] == pytest.approx(joined[2].gain)


def test_a_reading_of_several_signs_is_any_of_them() -> None:
    assert joins(seen(3, 8, 5), [*text(3), TextSign("bar", (2, 8)), *text(5)]) == [(0, 0), (1, 1), (2, 2)]


def test_a_lonely_sign_has_no_support() -> None:
    joined = align_line(seen(3), text(3))[1]
    assert support(joined, text(3)) == [LOWEST]


def test_nothing_is_joined_with_nothing() -> None:
    assert align_line(seen(), text()) == (0.0, [])
    assert align_line(seen(), text(1, None)) == (UNSEEN, [])
    assert align_face([], []) == (0.0, [])


def test_lines_are_joined_in_order_and_others_left_over() -> None:
    lines = [seen(1, 2, 3), seen(9, 9), seen(4, 5, 6, 7)]
    written = [text(1, 2, 3), text(8, 10, 8, 10, 8), text(4, 5, None, 7)]
    score, found = align_face(lines, written)
    assert [(i, j) for i, j, _ in found] == [(0, 0), (2, 2)]
    other, _ = align_face(lines, [text(10, 11), text(8, 10)])
    assert score > 0 > other


@given(st.lists(st.integers(0, CLASSES - 1), max_size=8), st.lists(st.none() | st.integers(0, CLASSES - 1), max_size=8))
def test_joins_ascend_and_leave_lost_stretches_out(classes: list[int], signs: list[int | None]) -> None:
    line = text(*signs)
    score, joined = align_line(seen(*classes), line)
    for places in ([j.seen for j in joined], [j.written for j in joined]):
        assert places == sorted(set(places))
    assert not any(line[j.written].lost for j in joined)
    assert np.isfinite(score)
