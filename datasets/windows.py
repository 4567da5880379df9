"""Training windows for the detector: photographs at one sign size, and random views of them.

Photographs of tablets are annotated in part: damaged signs, edges and whole sides have no box. Background near a box is
taken at its word; background far from every box counts less (`UNLABELLED_WEIGHT`), since a sign may stand there.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from dubsar.datasets.boxes import Floats, as_boxes

UNLABELLED_WEIGHT = 0.15
_REACH = 1.2  # signs; background this near to a box is background


@dataclass(frozen=True)
class Picture:
    """A photograph whose signs are about ``sign_px`` large, its boxes (N, 4) xyxy px, classes (N,), and labelled area.

    Attributes:
        labelled_hw: uint8 (H/4, W/4), 255 where background may be trusted.
    """

    rgb_HW3: npt.NDArray[np.uint8]
    boxes_N4: Floats
    classes_N: npt.NDArray[np.int64]
    labelled_hw: npt.NDArray[np.uint8]


def sign_size(boxes_N4: npt.ArrayLike) -> float:
    """Return the square root of the median box area, px; 0 where there is no box."""
    boxes = as_boxes(boxes_N4)
    if not len(boxes):
        return 0.0
    return float(np.sqrt(np.median((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))))


def make_picture(
    rgb_HW3: npt.NDArray[np.uint8],
    boxes_N4: npt.ArrayLike,
    classes_N: npt.ArrayLike,
    sign_px: float,
    *,
    exhaustive: bool,
) -> Picture:
    """Scale a photograph to the wanted sign size.

    Args:
        rgb_HW3: uint8 pixels.
        boxes_N4: xyxy px in it; at least one.
        classes_N: class ids.
        sign_px: wanted `sign_size`.
        exhaustive: every sign has a box (rendered tablets), so all background may be trusted.
    """
    boxes = as_boxes(boxes_N4)
    factor = sign_px / sign_size(boxes)
    scaled = resize(rgb_HW3, factor)
    boxes = boxes * factor
    small = (-(-scaled.shape[0] // 4), -(-scaled.shape[1] // 4))
    labelled = np.full(small, 255, np.uint8)
    if not exhaustive:
        labelled = _labelled_area(boxes / 4, small, _REACH * sign_px / 4)
    return Picture(scaled, boxes, np.asarray(classes_N, dtype=np.int64), labelled)


def resize(rgb_HW3: npt.NDArray[np.uint8], factor: float) -> npt.NDArray[np.uint8]:
    """Scale a picture by ``factor``, with a filter that does not alias when it shrinks."""
    height, width = rgb_HW3.shape[:2]
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(rgb_HW3).resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0))


def random_window(
    picture: Picture, tile: int, jitter: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.uint8], Floats, npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Cut a window that holds a random sign, at a random scale, as a tile.

    Args:
        picture: from `make_picture`.
        tile: side of the tile, px.
        jitter: the scale is drawn log-uniformly from 1 / (1 + jitter) to 1 + jitter.
        rng: source of randomness.

    Returns:
        Tile pixels (tile, tile, 3), boxes (N, 4) xyxy px of the tile, not clipped, classes (N,), and the
        labelled area (tile, tile).
        A sign of which less than half shows is neither target nor background: it has no box, and its area no trust.
    """
    scale = float(np.exp(rng.uniform(-1, 1) * np.log1p(jitter)))
    side = round(tile / scale)
    height, width = picture.rgb_HW3.shape[:2]
    anchor = picture.boxes_N4[rng.integers(len(picture.boxes_N4))]
    centre = np.array([(anchor[0] + anchor[2]) / 2, (anchor[1] + anchor[3]) / 2])
    x, y = (centre - rng.uniform(0.1, 0.9, 2) * side).astype(int)
    x, y = (
        int(np.clip(x, min(0, width - side), max(0, width - side))),
        int(np.clip(y, min(0, height - side), max(0, height - side))),
    )
    out = np.zeros((side, side, 3), np.uint8)
    labelled = np.full((side, side), 255, np.uint8)
    x0, y0, x1, y1 = max(0, x), max(0, y), min(width, x + side), min(height, y + side)
    inside = slice(y0 - y, y1 - y), slice(x0 - x, x1 - x)
    out[inside] = picture.rgb_HW3[y0:y1, x0:x1]
    labelled[inside] = picture.labelled_hw[np.arange(y0, y1) // 4][:, np.arange(x0, x1) // 4]
    boxes = (picture.boxes_N4 - [x, y, x, y]) * (tile / side)
    share = _share_inside(boxes, tile)
    window = np.asarray(Image.fromarray(out).resize((tile, tile), Image.Resampling.BILINEAR))
    mask = np.array(Image.fromarray(labelled).resize((tile, tile), Image.Resampling.NEAREST))
    for x0, y0, x1, y1 in np.clip(boxes[(share > 0) & (share < 0.5)], 0, tile).round().astype(int):
        mask[y0:y1, x0:x1] = 0
    seen = share >= 0.5
    return window, boxes[seen], picture.classes_N[seen], mask


def _share_inside(boxes_N4: Floats, side: int) -> Floats:
    """Return the share of each box's area that lies in a square of this side."""
    clipped = np.clip(boxes_N4, 0, side)
    inner = (clipped[:, 2] - clipped[:, 0]) * (clipped[:, 3] - clipped[:, 1])
    return inner / ((boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1]))


def _labelled_area(boxes_N4: Floats, shape: tuple[int, int], reach: float) -> npt.NDArray[np.uint8]:
    """Mark what lies within ``reach`` px of a box."""
    free = np.ones(shape, bool)
    for x0, y0, x1, y1 in boxes_N4.astype(int):
        free[max(0, y0) : y1 + 1, max(0, x0) : x1 + 1] = False
    return np.where(ndimage.distance_transform_edt(free) <= reach, 255, 0).astype(np.uint8)
