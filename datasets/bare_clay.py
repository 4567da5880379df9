"""Windows of clay that hold no labelled sign, to ask a classifier what it makes of them.

Such a window has the size of a sign of the same photograph, lies next to labelled signs, on clay, and touches no box.
**Some hold a sign nevertheless**: annotations are not exhaustive, damaged signs most of all. Sides of a tablet without
any box are therefore left aside, because there the scribe's signs, not the clay, have no boxes.
"""

import numpy as np
import numpy.typing as npt

from dubsar.datasets.boxes import Floats, areas, as_boxes, intersections
from dubsar.datasets.foreground import clay_mask

_TRIES = 20  # for each window
_REACH = 2.5  # how far a window's centre may lie from that of a labelled sign, in that sign's sides
_CLAY = 0.95  # least share of a window that is clay


def bare_windows(
    rgb_HW3: npt.NDArray[np.uint8], boxes_N4: npt.ArrayLike, rng: np.random.Generator, most: int
) -> Floats:
    """Draw windows of clay without a labelled sign; they do not overlap each other either.

    Args:
        rgb_HW3: uint8 photograph.
        boxes_N4: xyxy px, all labelled signs.
        rng: where they lie.
        most: windows; fewer where the photograph has no room for them.

    Returns:
        Boxes (M, 4), xyxy px; none where nothing is labelled.
    """
    boxes = as_boxes(boxes_N4)
    boxes = boxes[areas(boxes) > 0]
    taken, windows = boxes, list[Floats]()
    if not len(boxes) or most < 1:
        return np.zeros((0, 4))
    clay_HW = clay_mask(rgb_HW3)
    height, width = clay_HW.shape
    for _ in range(_TRIES * most):
        x0, y0, x1, y1 = boxes[rng.integers(len(boxes))]
        shift_x, shift_y = rng.uniform(-_REACH, _REACH, 2) * (x1 - x0, y1 - y0)
        window = np.array([x0 + shift_x, y0 + shift_y, x1 + shift_x, y1 + shift_y])
        left, top, right, bottom = window.round().astype(int)
        if left < 0 or top < 0 or right > width or bottom > height or intersections(window[None], taken).any():
            continue
        if right <= left or bottom <= top or clay_HW[top:bottom, left:right].mean() < _CLAY:
            continue
        taken = np.concatenate([taken, window[None]])
        windows.append(window)
        if len(windows) == most:
            break
    return np.array(windows).reshape(-1, 4)
