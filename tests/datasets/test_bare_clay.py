"""Windows of clay without a labelled sign."""

import numpy as np

from dubsar.datasets.bare_clay import bare_windows
from dubsar.datasets.boxes import intersections, iou_matrix


def a_tablet() -> tuple[np.ndarray, np.ndarray]:
    """Return a bright tablet on black ground, and a line of boxes on it."""
    rng = np.random.default_rng(0)
    rgb = np.zeros((300, 400, 3), np.uint8)
    rgb[40:260, 40:360] = rng.integers(120, 180, (220, 320, 1))
    boxes = np.array([[60 + 34 * i, 100, 90 + 34 * i, 120] for i in range(8)], dtype=float)
    return rgb, boxes


def test_windows_touch_no_box_no_ground_and_not_each_other() -> None:
    rgb, boxes = a_tablet()
    windows = bare_windows(rgb, boxes, np.random.default_rng(1), 10)
    assert 4 <= len(windows) <= 10
    assert not intersections(windows, boxes).any()
    assert not (iou_matrix(windows, windows) - np.eye(len(windows))).any()
    assert (windows[:, 2:] - windows[:, :2] == [30, 20]).all()
    assert windows[:, :2].min() > 35
    assert (windows[:, 3] < 120 + 2.5 * 20 + 1).all()  # beside the line, not anywhere
    for x0, y0, x1, y1 in windows.round().astype(int):
        assert (rgb[y0:y1, x0:x1].min(2) > 0).mean() > 0.9


def test_the_same_seed_draws_the_same_windows() -> None:
    rgb, boxes = a_tablet()
    first, again, other = (bare_windows(rgb, boxes, np.random.default_rng(s), 6) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_boxes_without_room_or_without_wish_there_are_none() -> None:
    rgb, boxes = a_tablet()
    none = np.zeros((0, 4))
    assert bare_windows(rgb, none, np.random.default_rng(0), 5).shape == (0, 4)
    assert bare_windows(rgb, boxes, np.random.default_rng(0), 0).shape == (0, 4)
    whole = np.array([[0.0, 0.0, 400.0, 300.0]])
    assert bare_windows(rgb, whole, np.random.default_rng(0), 5).shape == (0, 4)
    assert bare_windows(rgb, np.array([[5.0, 5.0, 5.0, 9.0]]), np.random.default_rng(0), 5).shape == (0, 4)
