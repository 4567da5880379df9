"""Fusing what several looks at one picture found."""

import numpy as np
import pytest

from dubsar.datasets.boxes import fuse

SIGN, ELSEWHERE = [0.0, 0.0, 10.0, 10.0], [100.0, 0.0, 110.0, 10.0]


def test_a_sign_that_all_looks_saw_keeps_its_score_and_one_seen_once_loses_it() -> None:
    boxes, scores, index = fuse([[SIGN, ELSEWHERE], [SIGN], [SIGN]], [[0.9, 0.6], [0.9], [0.9]], 0.55)
    assert boxes.tolist() == [SIGN, ELSEWHERE]
    assert scores.tolist() == pytest.approx([0.9, 0.2])
    assert index.tolist() == [0, 1]


def test_the_box_is_the_mean_of_the_looks_by_score() -> None:
    boxes, scores, index = fuse([[[0, 0, 10, 10]], [[0, 0, 12, 10]]], [[0.3], [0.6]], 0.55)
    assert boxes[0].tolist() == pytest.approx([0, 0, 34 / 3, 10])
    assert scores.tolist() == pytest.approx([0.45])
    assert index.tolist() == [1]  # the better look names it


def test_two_finds_of_one_look_count_once() -> None:
    _, scores, _ = fuse([[SIGN, [1, 0, 11, 10]], []], [[0.8, 0.7], []], 0.55)
    assert scores.tolist() == pytest.approx([0.4])


def test_neighbours_stay_apart() -> None:
    boxes, _, _ = fuse([[SIGN], [[6, 0, 16, 10]]], [[0.5], [0.9]], 0.55)
    assert len(boxes) == 2


def test_nothing_and_boxes_without_area_are_fine() -> None:
    assert [len(part) for part in fuse([[], []], [[], []], 0.55)] == [0, 0, 0]
    assert fuse([[[5, 5, 5, 5]]], [[0.0]], 0.55)[0].tolist() == [[5, 5, 5, 5]]


def test_one_look_only_is_kept_as_it_is_but_for_repeats() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 1e4, (2000, 2))
    boxes = np.concatenate([corners, corners + 10], axis=1)
    scores = rng.random(2000)
    fused, kept, index = fuse([boxes], [scores], 0.55)
    assert (np.diff(kept) <= 0).all()
    assert kept.max() == pytest.approx(scores.max())
    assert len(fused) == len(set(index.tolist())) > 1900
