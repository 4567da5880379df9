"""Reading order: sign boxes of one face to lines, top to bottom, each from left to right.

Lines on clay tilt, bend and fan out, and neighbouring lines nearly touch, so no fixed pixel gap and no horizontal
projection separates them. The way taken:

1. *Straighten.* Find tilt, bow and fan with which most near neighbours stand level, then refine them to a smooth
   surface ``f(x, y)`` by robust regression on pairs of signs. ``y - f`` is level along every line.
2. *Columns.* A stripe that hardly a sign crosses over the full height parts the face.
3. *Chain.* Join signs, and then chains of signs, that are level and do not stand in each other's way, cheapest first.

Everything is measured in median sign heights, so the resolution of the photograph does not matter.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dubsar.datasets.boxes import Floats, Ints, as_boxes

# trial slopes, the flattest first because the first of equal trials wins
_TILTS = np.array(sorted(np.tan(np.radians(np.arange(-30.0, 30.1, 2.0))), key=abs))
_BOWS = np.array(sorted(np.linspace(-0.35, 0.35, 15), key=abs))
_FANS = np.array(sorted(np.linspace(-0.15, 0.15, 7), key=abs))
_LEANS = np.array(sorted(np.linspace(-0.15, 0.15, 13), key=abs))
_LEVEL = 0.5  # two signs further apart than this (in sign heights, straightened) are not on one line
_PAIRS_PER_SIGN = 60


def group_lines(boxes_N4: npt.ArrayLike, face_box: npt.ArrayLike | None = None) -> list[list[int]]:
    """Group the signs of one face into lines in reading order.

    Args:
        boxes_N4: float (N, 4) xyxy px, any order.
        face_box: float (4,) xyxy px; signs whose centre lies outside are left out.

    Returns:
        Indices into ``boxes_N4``: each line from left to right, lines from top to bottom, columns from left to right.
    """
    return [line for column in group_columns(boxes_N4, face_box) for line in column]


def group_columns(boxes_N4: npt.ArrayLike, face_box: npt.ArrayLike | None = None) -> list[list[list[int]]]:
    """Group the signs of one face into columns of lines; arguments and indices are those of `group_lines`."""
    boxes = as_boxes(boxes_N4)
    index = np.arange(len(boxes)) if face_box is None else _inside(boxes, as_boxes(face_box)[0])
    if not index.size:
        return []
    straight = straighten(boxes[index])
    parts = _split_columns(straight, _chain(straight))
    return [[[int(index[part[i]]) for i in line] for line in _chain(straight[part])] for part in parts]


def gaps(line_boxes_N4: npt.ArrayLike, median_width: float, least: float = 1.5) -> list[int]:
    """Find where a stretch of a line is probably broken away.

    Args:
        line_boxes_N4: float (N, 4) xyxy px, the signs of one line from left to right.
        median_width: of the signs on this face, px.
        least: widest space that scribes leave between neighbours, in sign widths.

    Returns:
        Positions ``k``: the stretch lies between sign ``k - 1`` and sign ``k``.
    """
    boxes = as_boxes(line_boxes_N4)
    if len(boxes) < 2:
        return []
    reached = np.maximum.accumulate(boxes[:, 2])  # a short sign may stand inside a long one
    return [int(k) + 1 for k in np.flatnonzero(boxes[1:, 0] - reached[:-1] > least * median_width)]


def straighten(boxes_N4: npt.ArrayLike) -> Floats:
    """Shift boxes up or down so that lines become level.

    Args:
        boxes_N4: float (N, 4) xyxy px.

    Returns:
        The boxes (N, 4) in units of the median sign height: sizes keep their proportions, tilt and bend are gone, and
        column borders are upright.
    """
    boxes = as_boxes(boxes_N4)
    height = float(np.median(boxes[:, 3] - boxes[:, 1])) if len(boxes) else 0.0
    boxes = boxes / (height if height > 0 else 1.0)
    x, y = _centres(boxes)
    radius = max(float(np.hypot(np.ptp(x), np.ptp(y))) / 2, 1.0) if len(boxes) else 1.0
    terms = _surface((x - x.mean()) / radius, (y - y.mean()) / radius) if len(boxes) else np.zeros((0, 5))
    first, second = _neighbours(x, y)
    weights = _fit_surface(terms, x, y, first, second) * radius
    shifted = boxes - np.outer(terms @ weights, [0, 1, 0, 1])
    return np.asarray(shifted + np.outer(weights[0] / radius * y, [1, 0, 1, 0]))  # columns stand square to the lines


def _inside(boxes_N4: Floats, face: Floats) -> Ints:
    x, y = _centres(boxes_N4)
    return np.flatnonzero((x >= face[0]) & (x < face[2]) & (y >= face[1]) & (y < face[3]))


def _centres(boxes_N4: Floats) -> tuple[Floats, Floats]:
    return (boxes_N4[:, 0] + boxes_N4[:, 2]) / 2, (boxes_N4[:, 1] + boxes_N4[:, 3]) / 2


def _neighbours(x: Floats, y: Floats) -> tuple[Ints, Ints]:
    """Return pairs of signs, left one first, that could share a line: to the right, and not too steep."""
    dx, dy = x[None] - x[:, None], y[None] - y[:, None]
    possible = (dx > 0.3) & (np.abs(dy) < 0.6 * dx + 0.3) & (dx < 14)
    cost = np.where(possible, dx, np.inf)
    if len(x) > _PAIRS_PER_SIGN:  # keep the nearest ones: the fit stays linear in signs on large tablets
        limit = np.partition(cost, _PAIRS_PER_SIGN, axis=1)[:, _PAIRS_PER_SIGN]
        possible &= cost <= limit[:, None]
    first, second = np.nonzero(possible)
    return first, second


def _fit_surface(terms_N5: Floats, x: Floats, y: Floats, first: Ints, second: Ints) -> Floats:
    """Return the weights (5,), as slopes, of the surface that levels most pairs of neighbours."""
    weights = np.zeros(5)
    if not len(first):
        return weights
    dx, dy = x[second] - x[first], y[second] - y[first]
    # per unit of slope: the terms were made with coordinates divided by the radius
    scale = np.ptp(x) / max(np.ptp(terms_N5[:, 0]), 1e-9)
    d_terms = (terms_N5[second] - terms_N5[first]) * scale
    near = np.flatnonzero(dx < 5)
    bent = len(x) >= 12  # with fewer signs a bend cannot be told from chance
    weights[:3] = _best_votes(dy[near], d_terms[near, :3], bent)
    # a tilt alone costs nothing; the bent terms must be earned by many pairs
    ridge = np.diag([1e-6, 2.0, 2.0, 9.0, 9.0]) * (1 if bent else 1e3)
    prior = weights * np.array([1.0, 0.7, 0.7, 0.0, 0.0])
    for reach in (4, 5, 6, 8, 12, 12, 12):
        off = dy - d_terms @ weights
        trust = np.exp(-((off / 0.2) ** 2)) * (dx < reach)
        normal = d_terms.T @ (trust[:, None] * d_terms) + ridge
        weights = np.linalg.solve(normal, d_terms.T @ (trust * dy) + ridge @ prior)
    return weights


def _best_votes(dy: Floats, d_terms_P3: Floats, bent: bool) -> Floats:
    """Return tilt, bow and fan (3,) that level most pairs: all together, then each more finely.

    A vote cannot be led astray by the many pairs that do not share a line, as a regression from a wrong start would.
    """
    every = max(1, len(dy) // 3000)
    bows, fans = (_BOWS, _FANS) if bent else (_BOWS[:1], _FANS[:1])
    grid = np.stack(np.meshgrid(_TILTS, bows, fans, indexing="ij"), axis=-1).reshape(-1, 3)
    best = grid[np.argmax(_votes(dy[::every], d_terms_P3[::every], grid, 0.25))]
    for term in (0, 1, 2, 0) if bent else (0,):
        tries = np.repeat(best[None], 21, axis=0)
        tries[:, term] += np.linspace(-0.06, 0.06, 21)
        best = tries[np.argmax(_votes(dy, d_terms_P3, tries, 0.15))]
    return np.asarray(best)


def _votes(dy: Floats, d_terms_P3: Floats, weights_K3: Floats, width: float) -> Floats:
    """Return for each trial (K,) how many pairs it levels; flat and straight trials win ties."""
    votes = np.array([np.exp(-(((dy - d_terms_P3 @ w) / width) ** 2)).sum() for w in weights_K3])
    return np.asarray(votes * (1 - 0.05 * np.abs(weights_K3).sum(axis=1)))


def _surface(u: Floats, v: Floats) -> Floats:
    """Return the terms (N, 5) of the height of lines: tilt, bow, fan, double bend, and bow that changes with height."""
    return np.stack([u, u**2, u * v, u**3, u**2 * v], axis=1)


def _chain(straight_N4: Floats) -> list[list[int]]:
    """Join level signs to lines; boxes are in sign heights. Returns lines from top to bottom, each left to right."""
    count = len(straight_N4)
    x, y = _centres(straight_N4)
    pairs = _links(straight_N4)
    group = np.arange(count)
    members = [[i] for i in range(count)]
    for i, j in pairs:
        a, b = int(group[i]), int(group[j])
        if a == b or not _joinable(members[a], members[b], straight_N4, x, y):
            continue
        if len(members[a]) < len(members[b]):
            a, b = b, a
        members[a] += members[b]
        group[members[b]] = a
        members[b] = []
    lines = [sorted(m, key=lambda i: (x[i], y[i])) for m in members if m]
    return sorted(lines, key=lambda line: float(np.mean(y[line])))


def _links(straight_N4: Floats) -> list[tuple[int, int]]:
    """Return pairs of level signs, cheapest first: near before far, level before slightly off."""
    x, y = _centres(straight_N4)
    left, right = straight_N4[:, 0], straight_N4[:, 2]
    off = np.abs(y[None] - y[:, None])
    space = np.maximum(left[None] - right[:, None], 0.0)
    first, second = np.nonzero((x[None] > x[:, None]) & (off < _LEVEL))
    cost = (off[first, second] / 0.2) ** 2 + space[first, second]
    order = np.argsort(cost, kind="stable")
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _joinable(a: list[int], b: list[int], straight_N4: Floats, x: Floats, y: Floats) -> bool:
    """Tell whether two chains can be one line: level where they are nearest, and not above one another."""
    gap = np.abs(x[a][:, None] - x[b][None])
    i, j = np.unravel_index(np.argmin(gap), gap.shape)
    near_a = [k for k in a if abs(x[k] - x[a[int(i)]]) < 3]
    near_b = [k for k in b if abs(x[k] - x[b[int(j)]]) < 3]
    if abs(np.mean(y[near_a]) - np.mean(y[near_b])) > _LEVEL:
        return False
    left, right = straight_N4[:, 0], straight_N4[:, 2]
    shared = np.minimum(right[a][:, None], right[b][None]) - np.maximum(left[a][:, None], left[b][None])
    narrow = np.minimum((right - left)[a][:, None], (right - left)[b][None])
    return bool((shared <= 0.6 * narrow).all())


def _split_columns(straight_N4: Floats, lines: list[list[int]]) -> list[Ints]:
    """Part the signs (in sign heights) where a stripe is free of them over the full height.

    The stripe must be the wider the fewer lines vouch for it; one sign in twenty lines may cross it, and it may lean a
    little, for scribes ruled columns by eye.
    """
    everything = np.arange(len(straight_N4))
    if len(lines) < 4:
        return [everything]
    _, y = _centres(straight_N4)
    leaning = [straight_N4 - np.outer(lean * (y - y.mean()), [1, 0, 1, 0]) for lean in _LEANS]
    found = [_stripes(boxes, len(lines)) for boxes in leaning]
    best = int(np.argmax([sum(end - start for start, end in stripes) for stripes in found]))
    boxes, stripes = leaning[best], [(start + end) / 2 for start, end in found[best]]
    x, _ = _centres(boxes)
    borders: list[float] = []
    for stripe, following in pairwise([*stripes, np.inf]):
        before = (x > (borders[-1] if borders else -np.inf)) & (x < stripe)
        if _parts_columns(boxes[before], boxes[(x > stripe) & (x < following)]):
            borders.append(stripe)
    column = np.searchsorted(np.array(borders), x)
    return [np.flatnonzero(column == c) for c in range(len(borders) + 1)]


def _stripes(boxes_N4: Floats, line_count: int) -> list[tuple[float, float]]:
    """Return (start, end) in sign heights of upright stripes that hardly a sign crosses, from left to right."""
    origin = boxes_N4[:, 0].min()
    step = max(0.1, float(boxes_N4[:, 2].max() - origin) / 5000)  # hairline boxes must not make millions of bins
    bins = np.floor((boxes_N4[:, [0, 2]] - origin) / step).astype(np.int64)
    change = np.zeros(bins.max() + 2, dtype=np.int64)
    np.add.at(change, bins[:, 0], 1)
    np.add.at(change, bins[:, 1] + 1, -1)
    free = np.concatenate([[False], np.cumsum(change)[:-1] <= line_count // 20, [False]])
    starts, ends = np.flatnonzero(~free[:-1] & free[1:]), np.flatnonzero(free[:-1] & ~free[1:])
    needed = 0.25 + 2.5 / line_count
    return [
        (float(origin + step * start), float(origin + step * end))
        for start, end in zip(starts, ends, strict=True)
        # beyond the first or last sign of a few lines there is free space too
        if (end - start) * step > needed and start > 0 and end < len(free) - 2
    ]


def _parts_columns(left_N4: Floats, right_N4: Floats) -> bool:
    """Tell two columns from one text with a damaged stripe: lines of a column begin below one another."""
    if min(len(left_N4), len(right_N4)) < 6:
        return False
    (_, y_left), (_, y_right) = _centres(left_N4), _centres(right_N4)
    shared = min(y_left.max(), y_right.max()) - max(y_left.min(), y_right.min())
    if shared < 0.5 * min(np.ptp(y_left), np.ptp(y_right)):
        return False  # one above the other
    starts = np.array([right_N4[line, 0].min() for line in _chain(right_N4)])
    return len(starts) >= 3 and float(np.mean(np.abs(starts - np.median(starts)) < 0.7)) > 0.6
