"""Split a composite photograph into the views of the tablet that it shows.

Museums photograph a tablet from six sides and paste the views on one plain ground, dark or light, with a scale bar:

              top
      left  obverse  right
             bottom
      left  reverse  right
              top

The ground's colour is read off the picture's rim, what differs from it is clay, and its connected parts are views.
Parts that are printed (flat patches, colours that clay never has) are the scale bar; tiny ones are debris. Names are
guessed from the places. A photograph without a plain ground is one face.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from dubsar.datasets.boxes import Floats, Ints, areas, as_boxes, intersections
from dubsar.datasets.foreground import Mask, ground_contrast, printed_mask, shrink
from dubsar.datasets.tablet import FaceName

EDGES = frozenset({"left", "right", "top", "bottom"})
_NAME_ORDER: tuple[FaceName, ...] = ("obverse", "bottom", "reverse", "top", "left", "right", "unknown")

Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class FaceView:
    """One view: its box ``(x0, y0, x1, y1)`` in px of the picture that was split, and what it seems to show."""

    box: tuple[float, float, float, float]
    name: FaceName


def split_faces(rgb_HW3: npt.NDArray[np.uint8], boxes_N4: npt.ArrayLike | None = None) -> list[FaceView]:
    """Find the views of a tablet in a photograph.

    Args:
        rgb_HW3: uint8 (H, W, 3).
        boxes_N4: float (N, 4) xyxy px, signs that were found: a view grows to hold the signs on its rim.

    Returns:
        Views in reading order: obverse, bottom, reverse, top, left, right, unknown. At least one; the whole picture
        where the ground is not plain or nothing stands on it.
    """
    height, width = rgb_HW3.shape[:2]
    small = shrink(rgb_HW3)
    factor = np.tile([width / small.shape[1], height / small.shape[0]], 2)  # back to the picture's own pixels
    contrast, threshold = ground_contrast(small)
    parts = [] if threshold is None else _parts(small, contrast, threshold)
    if not parts:
        return [FaceView((0.0, 0.0, float(width), float(height)), "unknown")]
    views = np.array(parts, dtype=np.float64) * factor
    views = _pad(views, 0.012 * max(height, width), width, height)
    if boxes_N4 is not None:
        views = _grow(views, as_boxes(boxes_N4), width, height)
    names = _names(views)
    order = sorted(range(len(views)), key=lambda i: (_NAME_ORDER.index(names[i]), views[i, 1], views[i, 0]))
    corners = views.tolist()
    return [FaceView((x0, y0, x1, y1), names[i]) for i in order for x0, y0, x1, y1 in [corners[i]]]


def assign_faces(faces: list[FaceView], boxes_N4: npt.ArrayLike) -> Ints:
    """Return for each sign box (N,) the index of the view that holds most of it, or -1 where none holds a third."""
    boxes = as_boxes(boxes_N4)
    if not faces or not len(boxes):
        return np.full(len(boxes), -1, dtype=np.int64)
    shared = intersections(boxes, np.array([face.box for face in faces]))
    area = np.maximum((boxes[:, 2:] - boxes[:, :2]).prod(axis=1), 1e-9)
    best = shared.argmax(axis=1)
    held = shared[np.arange(len(boxes)), best] / area
    return np.where(held > 1 / 3, best, -1).astype(np.int64)


def squarely_seen(faces: list[FaceView], boxes_N4: npt.ArrayLike) -> Mask:
    """Tell for each sign box (N,) whether it lies on a face, not on an edge, which is seen at an angle, nor outside.

    All are, where the photograph shows edges alone.
    """
    owner = assign_faces(faces, boxes_N4)
    main = np.array([*(face.name not in EDGES for face in faces), False])  # the last one: of no view
    return main[owner] if main.any() else np.ones(len(owner), dtype=bool)


def _parts(small_HW3: npt.NDArray[np.float32], contrast_HW: npt.NDArray[np.float32], threshold: float) -> list[Place]:
    """Return boxes of connected clay, in px of the small picture; neither scale bars nor debris."""
    clay = contrast_HW > threshold
    clay &= ~printed_mask(small_HW3, clay)
    labels, count = _label(clay)
    if not count:
        return []
    sizes = np.bincount(labels.ravel())[1:]
    # a view is at least a fiftieth of the largest one; lettering of the scale bar is less
    least = max(0.02 * sizes.max(), 0.0008 * clay.size)
    parts: list[Place] = []
    for index, place in enumerate(ndimage.find_objects(labels), start=1):
        if sizes[index - 1] >= least:
            parts += _split(np.where(labels[place] == index, contrast_HW[place], 0), place, threshold, least)
    return parts


def _label(clay: Mask) -> tuple[Ints, int]:
    """Number the connected parts of a mask, cut at thin bridges, their holes filled."""
    return ndimage.label(ndimage.binary_fill_holes(ndimage.binary_opening(clay, iterations=2)))  # type: ignore[no-any-return]


def _split(part_HW: npt.NDArray[np.float32], place: tuple[slice, slice], threshold: float, least: float) -> list[Place]:
    """Part views that a dim seam joins; a tablet with a crack stays whole, for its pieces interlock.

    Args:
        part_HW: contrast of one connected part with the ground, 0 elsewhere.
        place: rows and columns of the part in the picture.
        threshold: contrast from which on a pixel is clay.
        least: smallest size of a view, px.
    """
    top, left = place[0].start, place[1].start
    total = float((part_HW > 0).sum())
    for raised in (4.0, 2.5, 1.6):  # from clear seams to faint ones
        labels, _ = _label(part_HW > raised * threshold)
        sizes = np.bincount(labels.ravel())[1:]
        large = sizes >= max(least, 0.03 * total)
        if large.sum() < 2 or sizes[large].sum() < 0.94 * total:
            continue  # a seam is narrow: what takes away more than that is shade
        found = [p for p, keep in zip(ndimage.find_objects(labels), large, strict=True) if keep]
        boxes = np.array([(p[1].start, p[0].start, p[1].stop, p[0].stop) for p in found], dtype=np.float64)
        shared = (intersections(boxes, boxes) - np.diag(areas(boxes))).max()
        if shared <= 0.02 * areas(boxes).min():
            return [(int(x0) + left, int(y0) + top, int(x1) + left, int(y1) + top) for x0, y0, x1, y1 in boxes]
    return [(left, top, place[1].stop, place[0].stop)]


def _pad(views_N4: Floats, margin: float, width: int, height: int) -> Floats:
    """Widen boxes by ``margin``, for rims fade into the ground, but not into one another."""
    out = views_N4.copy()
    for i, (x0, y0, x1, y1) in enumerate(views_N4):
        others = np.delete(views_N4, i, axis=0)
        beside = others[(others[:, 1] < y1 + margin) & (others[:, 3] > y0 - margin)]
        above = others[(others[:, 0] < x1 + margin) & (others[:, 2] > x0 - margin)]
        out[i] = [
            x0 - min([margin, *((x0 - beside[beside[:, 2] <= x0, 2]) / 2)]),
            y0 - min([margin, *((y0 - above[above[:, 3] <= y0, 3]) / 2)]),
            x1 + min([margin, *((beside[beside[:, 0] >= x1, 0] - x1) / 2)]),
            y1 + min([margin, *((above[above[:, 1] >= y1, 1] - y1) / 2)]),
        ]
    limits = np.array([width, height, width, height], dtype=np.float64)
    return np.asarray(np.clip(out, 0, limits))


def _grow(views_N4: Floats, boxes_N4: Floats, width: int, height: int) -> Floats:
    """Let each view hold the signs whose centre it holds."""
    out = views_N4.copy()
    centres = (boxes_N4[:, :2] + boxes_N4[:, 2:]) / 2
    for i, view in enumerate(views_N4):
        held = boxes_N4[((centres >= view[:2]) & (centres < view[2:])).all(axis=1)]
        if len(held):
            out[i, :2] = np.minimum(out[i, :2], held[:, :2].min(axis=0))
            out[i, 2:] = np.maximum(out[i, 2:], held[:, 2:].max(axis=0))
    return np.asarray(np.clip(out, 0, np.array([width, height, width, height], dtype=np.float64)))


def _names(views_N4: Floats) -> list[FaceName]:
    """Guess what each view shows from where it stands; unknown where the layout says nothing."""
    names: list[FaceName] = ["unknown"] * len(views_N4)
    sizes = (views_N4[:, 2:] - views_N4[:, :2]).prod(axis=1)
    middle = (views_N4[:, 0] + views_N4[:, 2]) / 2
    column = _middle_column(views_N4, sizes)
    if len(column) < 2:
        return names
    obverse, reverse = _main_pair(views_N4, sizes, column)
    names[obverse] = "obverse"
    if reverse is not None:
        names[reverse] = "reverse"
    for i in range(len(views_N4)):
        if i in (obverse, reverse):
            continue
        if i in column:
            is_between = views_N4[i, 1] > views_N4[obverse, 1] and (
                reverse is None or views_N4[i, 1] < views_N4[reverse, 1]
            )
            names[i] = "bottom" if is_between else "top"
        else:
            names[i] = "left" if middle[i] < middle[obverse] else "right"
    return names


def _middle_column(views_N4: Floats, sizes: Floats) -> list[int]:
    """Return the views above one another with the most clay, from top to bottom."""
    x0, x1 = views_N4[:, 0], views_N4[:, 2]
    best: list[int] = []
    for i in range(len(views_N4)):
        shared = np.minimum(x1, x1[i]) - np.maximum(x0, x0[i])
        stacked = [int(k) for k in np.flatnonzero(shared > 0.6 * np.minimum(x1 - x0, x1[i] - x0[i]))]
        if sizes[stacked].sum() > sizes[best].sum():
            best = stacked
    return sorted(best, key=lambda k: views_N4[k, 1])


def _main_pair(views_N4: Floats, sizes: Floats, column: list[int]) -> tuple[int, int | None]:
    """Return obverse and reverse among the views of the middle column; no reverse where nothing is large enough."""
    largest = float(sizes[column].max())
    flanked = [_is_flanked(views_N4, k, column) for k in column]
    best, pair = -1.0, (column[int(np.argmax(sizes[column]))], None)
    for a, upper in enumerate(column):
        for b in range(a + 1, len(column)):
            lower = column[b]
            if sizes[lower] < 0.35 * largest or sizes[upper] < 0.35 * largest:
                continue
            # an edge lies between the two, and side views stand beside the obverse
            score = (sizes[upper] + sizes[lower]) / largest + 0.6 * flanked[a] + 0.2 * flanked[b] + 0.2 * (b - a == 2)
            if score > best:
                best, pair = float(score), (upper, lower)  # type: ignore[assignment]
    return pair


def _is_flanked(views_N4: Floats, view: int, column: list[int]) -> bool:
    """Tell whether views stand beside this one."""
    others = [k for k in range(len(views_N4)) if k not in column]
    y0, y1 = views_N4[view, 1], views_N4[view, 3]
    shared = np.minimum(views_N4[others, 3], y1) - np.maximum(views_N4[others, 1], y0)
    return bool((shared > 0.5 * (y1 - y0)).any())
