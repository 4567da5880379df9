"""Box arithmetic that every stage shares, in numpy alone.

Boxes are ``(N, 4)`` arrays ``x0, y0, x1, y1`` in pixels of one picture, x1 and y1 exclusive. Empty arrays are fine
everywhere. Two measures of overlap are in use: intersection over union (two finds of one sign) and intersection over
the smaller box (a piece that a tile border cut off, against the whole sign: their IoU may be small).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def as_boxes(boxes_N4: npt.ArrayLike) -> Floats:
    """Return boxes as float64 (N, 4); an empty list becomes (0, 4).

    Raises:
        ValueError: the number of values is not a multiple of four.
    """
    boxes = np.asarray(boxes_N4, dtype=np.float64)
    if boxes.size % 4 or (boxes.ndim > 1 and boxes.shape[-1] != 4 and boxes.size):
        raise ValueError(f"boxes have shape {boxes.shape}; expected (N, 4) as x0, y0, x1, y1")
    return boxes.reshape(-1, 4)


def areas(boxes_N4: npt.ArrayLike) -> Floats:
    """Return areas (N,) in square pixels; a box with swapped corners has area 0."""
    boxes = as_boxes(boxes_N4)
    sides: Floats = np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0)
    return np.asarray(sides[:, 0] * sides[:, 1])


def intersections(a_N4: npt.ArrayLike, b_M4: npt.ArrayLike) -> Floats:
    """Return the shared area of each pair (N, M) in square pixels."""
    a, b = as_boxes(a_N4), as_boxes(b_M4)
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.maximum(high - low, 0.0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def iou_matrix(a_N4: npt.ArrayLike, b_M4: npt.ArrayLike) -> Floats:
    """Return intersection over union (N, M); pairs of empty boxes have 0."""
    shared = intersections(a_N4, b_M4)
    return _ratio(shared, areas(a_N4)[:, None] + areas(b_M4)[None, :] - shared)


def ios_matrix(a_N4: npt.ArrayLike, b_M4: npt.ArrayLike) -> Floats:
    """Return intersection over the smaller box's area (N, M): 1 where one box lies inside the other."""
    return _ratio(intersections(a_N4, b_M4), np.minimum(areas(a_N4)[:, None], areas(b_M4)[None, :]))


def clip(boxes_N4: npt.ArrayLike, width: float, height: float) -> Floats:
    """Clip boxes (N, 4) to a picture of ``width`` x ``height`` px; the order and the number of boxes stay."""
    limits = np.array([width, height, width, height], dtype=np.float64)
    return np.asarray(np.clip(as_boxes(boxes_N4), 0.0, limits))


def nms(boxes_N4: npt.ArrayLike, scores_N: npt.ArrayLike, iou: float, *, ios: float | None = None) -> Ints:
    """Suppress boxes that repeat a better one.

    Args:
        boxes_N4: float (N, 4), px.
        scores_N: float (N,), higher is better; ties keep the earlier box.
        iou: a box goes when its intersection over union with a kept box is above this.
        ios: if given, a box also goes when its intersection over the smaller box is above this.

    Returns:
        Indices (K,) of the kept boxes, best first.
    """
    boxes, scores = as_boxes(boxes_N4), _scores(scores_N, boxes_N4)
    kept: list[int] = []
    alive = np.ones(len(boxes), dtype=bool)
    for best, around in _near(boxes, scores):
        if not alive[best]:
            continue
        kept.append(best)
        alive[best] = False
        near = around[alive[around]]
        repeats = iou_matrix(boxes[[best]], boxes[near])[0] > iou
        if ios is not None:
            repeats |= ios_matrix(boxes[[best]], boxes[near])[0] > ios
        alive[near[repeats]] = False
    return np.array(kept, dtype=np.int64)


def fuse(boxes: Sequence[npt.ArrayLike], scores: Sequence[npt.ArrayLike], iou: float) -> tuple[Floats, Floats, Ints]:
    """Fuse what several looks at one picture found (weighted boxes fusion).

    A sign that all looks agree on keeps its score, and one that a single look of three saw keeps a third of it; the box
    is the mean of all looks, weighted by score.

    Args:
        boxes: for each look its boxes (N_l, 4) in px of the picture.
        scores: for each look its scores (N_l,).
        iou: boxes above this intersection over union with the best of them are one sign.

    Returns:
        Boxes (K, 4), scores (K,), and the place (K,) of the best box in the concatenated input; best first.

    Source:
        Solovyev, Wang, Gabruseva 2021.
    """
    every = np.concatenate([np.zeros((0, 4)), *map(as_boxes, boxes)])
    score = np.concatenate([np.zeros(0), *(_scores(s, b) for s, b in zip(scores, boxes, strict=True))])
    look = np.repeat(np.arange(len(boxes)), [len(as_boxes(b)) for b in boxes])
    fused, means, index = [], [], []
    alive = np.ones(len(every), dtype=bool)
    for best, around in _near(every, score):
        if not alive[best]:
            continue
        near = around[alive[around]]
        same = near[iou_matrix(every[[best]], every[near])[0] > iou]
        same = same if best in same else np.append(same, best)  # a box without area overlaps nothing, itself included
        alive[same] = False
        share = score[same] / score[same].sum() if score[same].sum() > 0 else np.full(len(same), 1 / len(same))
        strongest = np.zeros(len(boxes))
        np.maximum.at(strongest, look[same], score[same])
        fused.append(share @ every[same])
        means.append(float(strongest.mean()))
        index.append(best)
    order = np.argsort(-np.array(means), kind="stable")
    return (
        np.array(fused, dtype=np.float64).reshape(-1, 4)[order],
        np.array(means, dtype=np.float64)[order],
        np.array(index, dtype=np.int64)[order],
    )


def _near(boxes_N4: Floats, scores_N: Floats) -> Iterator[tuple[int, Ints]]:
    """Yield each box, best first, with all that may overlap it: this keeps 20,000 boxes fast."""
    if not len(boxes_N4):
        return
    by_left = np.argsort(boxes_N4[:, 0], kind="stable")
    lefts = boxes_N4[by_left, 0]
    widest = float((boxes_N4[:, 2] - boxes_N4[:, 0]).max())
    for best in np.argsort(-scores_N, kind="stable").tolist():
        reach = np.searchsorted(lefts, [boxes_N4[best, 0] - widest, boxes_N4[best, 2]])
        yield best, by_left[reach[0] : reach[1]]


def merge(boxes_N4: npt.ArrayLike, scores_N: npt.ArrayLike, ios: float) -> tuple[Floats, Ints]:
    """Unite pieces of one sign into the box around them, best piece first.

    Args:
        boxes_N4: float (N, 4), px.
        scores_N: float (N,), higher is better.
        ios: pieces belong together when their intersection over the smaller one is above this.

    Returns:
        United boxes (K, 4), and for each the index (K,) of its best piece.
    """
    boxes, scores = as_boxes(boxes_N4), _scores(scores_N, boxes_N4)
    order = np.argsort(-scores, kind="stable")
    united: list[Floats] = []
    best: list[int] = []
    while order.size:
        box, rest = boxes[order[0]].copy(), order[1:]
        best.append(int(order[0]))
        # the box grows, so a piece that did not touch it before may do so now
        while (joins := ios_matrix(box[None], boxes[rest])[0] > ios).any():
            pieces = boxes[rest[joins]]
            box[:2], box[2:] = np.minimum(box[:2], pieces[:, :2].min(0)), np.maximum(box[2:], pieces[:, 2:].max(0))
            rest = rest[~joins]
        united.append(box)
        order = rest
    return np.array(united, dtype=np.float64).reshape(-1, 4), np.array(best, dtype=np.int64)


def match(
    pred_N4: npt.ArrayLike, true_M4: npt.ArrayLike, iou: float, scores_N: npt.ArrayLike | None = None
) -> list[tuple[int, int]]:
    """Pair predictions with true boxes one to one, greedily by score.

    Args:
        pred_N4: float (N, 4), px.
        true_M4: float (M, 4), px.
        iou: smallest intersection over union of a pair (inclusive).
        scores_N: float (N,); without it the given order counts as best first.

    Returns:
        Pairs ``(prediction, truth)``, best prediction first; each index occurs once at most.
    """
    pred, true = as_boxes(pred_N4), as_boxes(true_M4)
    if not len(pred) or not len(true):
        return []
    order = np.arange(len(pred)) if scores_N is None else np.argsort(-_scores(scores_N, pred), kind="stable")
    overlap = iou_matrix(pred, true)
    pairs = []
    for p in order:
        t = int(np.argmax(overlap[p]))
        if overlap[p, t] >= iou and overlap[p, t] > 0:
            pairs.append((int(p), t))
            overlap[:, t] = -1.0  # taken
    return pairs


def _scores(scores_N: npt.ArrayLike, boxes_N4: npt.ArrayLike) -> Floats:
    scores = np.asarray(scores_N, dtype=np.float64).reshape(-1)
    count = len(as_boxes(boxes_N4))
    if len(scores) != count:
        raise ValueError(f"{len(scores)} scores for {count} boxes; expected one score per box")
    return scores


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratio = np.zeros_like(part)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
