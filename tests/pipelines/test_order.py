"""Reading order on laid-out faces whose truth is known."""

import time

import numpy as np
import pytest

from dubsar.pipelines.reading.order import gaps, group_columns, group_lines, straighten


def lay_out(seed, *, lines=15, width=14.0, columns=1, tilt=0.0, bow=0.0, fan=0.0, spacing=1.15, drop=0.08, ragged=True):
    """Return shuffled sign boxes (N, 4) px and the line (N,) of each; lengths are in signs of 60 px.

    ``tilt`` and ``fan`` are degrees (fan: from the first line to the last), ``bow`` is the sagitta of each line.
    """
    rng = np.random.default_rng(seed)
    boxes, truth, line, left = [], [], 0, 0.0
    for _ in range(columns):
        top = rng.uniform(0, spacing)  # neighbouring columns do not share lines
        for k in range(lines):
            x, end = left + rng.uniform(0, 0.3), left + width * (rng.uniform(0.5, 1) if ragged else 1)
            while x < end:
                w, h = np.clip(rng.lognormal(0, 0.4), 0.35, 2.5), rng.uniform(0.6, 1.1)
                if x + w > left + width:
                    break
                if rng.random() > drop:
                    y = top + k * spacing + rng.normal(0, 0.08)
                    boxes.append([x, y - h / 2, x + w, y + h / 2])
                    truth.append(line)
                x += w + rng.uniform(-0.1, 0.3)
            line += 1
        left += width + 1.3
    order = rng.permutation(len(boxes))
    return bend(np.array(boxes)[order], tilt, bow, fan) * 60 + 500, np.array(truth)[order]


def bend(boxes, tilt, bow, fan):
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    u, v = x - x.mean(), (y - y.mean()) / max(np.ptp(y), 1)
    y = y + bow * (2 * u / np.ptp(x)) ** 2 + np.tan(np.radians(fan)) * u * v
    angle = np.radians(tilt)
    centre = np.stack([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], 1)
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    return np.concatenate([centre - half, centre + half], 1)


def pairwise_scores(groups, truth):
    """Return precision and recall over pairs of signs on one line."""
    found = np.full(len(truth), -1)
    for k, group in enumerate(groups):
        found[group] = k
    same_found, same_true = found[:, None] == found, truth[:, None] == truth
    hits = (same_found & same_true).sum() - len(truth)
    return hits / (same_found.sum() - len(truth)), hits / (same_true.sum() - len(truth))


LAYOUTS = {
    "level": {},
    "tight": {"spacing": 1.0, "tilt": 4},
    "tilted": {"tilt": -12},
    "steep": {"tilt": 20},
    "bowed": {"bow": 1.0},
    "bowed the other way": {"bow": -1.5},
    "fanned": {"fan": 6},
    "everything at once": {"tilt": 6, "bow": 1.0, "fan": 4, "drop": 0.2},
    "half lost": {"tilt": 4, "drop": 0.4, "lines": 20},
    "narrow": {"tilt": 6, "width": 4.0, "lines": 20},
    "two columns": {"columns": 2, "width": 9.0, "tilt": 5},
    "three bent columns": {"columns": 3, "width": 7.0, "lines": 20, "tilt": -4, "bow": 0.6},
    "few lines": {"lines": 3, "tilt": 7},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_lines_are_found(layout):
    scores, in_order = [], []
    for seed in range(8):
        boxes, truth = lay_out(seed, **layout)
        groups = group_lines(boxes)
        assert sorted(i for g in groups for i in g) == list(range(len(boxes)))
        scores.append(pairwise_scores(groups, truth))
        in_order.append(np.mean(np.diff([np.bincount(truth[g]).argmax() for g in groups]) > 0))
        centres = boxes[:, 0] + boxes[:, 2]
        assert np.mean([(np.diff(centres[g]) >= 0).all() for g in groups]) > 0.9
    assert np.mean(scores, axis=0).min() >= 0.98
    assert np.mean(in_order) >= 0.98


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_columns_are_counted(columns):
    for seed in range(8):
        boxes, truth = lay_out(seed, columns=columns, width=8.0, lines=14, tilt=3)
        parts = group_columns(boxes)
        assert len(parts) == columns
        assert all({int(t) // 14 for t in truth[line]} == {c} for c, part in enumerate(parts) for line in part)


def test_a_damaged_stripe_is_not_a_column_border():
    boxes, truth = lay_out(5, lines=12, ragged=False)
    x = (boxes[:, 0] + boxes[:, 2]) / 2
    y = (boxes[:, 1] + boxes[:, 3]) / 2
    # a hole with a slanting rim, wider than any sign, through all lines
    centre = x.mean() + 0.35 * (y - y.mean())
    keep = np.abs(x - centre) > 100
    groups = group_lines(boxes[keep])
    assert pairwise_scores(groups, truth[keep])[1] > 0.98


def test_one_line_stays_one():
    for seed in range(8):
        boxes, _ = lay_out(seed, lines=1, tilt=5, ragged=False, drop=0)
        assert group_lines(boxes) == [np.argsort(boxes[:, 0] + boxes[:, 2]).tolist()]


def test_none_one_and_two_boxes():
    a, beside, below = [10, 10, 60, 60], [70, 14, 120, 62], [10, 80, 60, 130]
    assert group_lines([]) == []
    assert group_lines([a]) == [[0]]
    assert group_lines([beside, a]) == [[1, 0]]
    assert group_lines([below, a]) == [[1], [0]]


def test_equal_boxes_are_all_kept():
    assert sorted(i for g in group_lines([[0, 0, 9, 9]] * 3) for i in g) == [0, 1, 2]


def test_boxes_without_height_are_all_kept():
    flat = [[100.0 * k, 90.0 * k, 100.0 * k + 50, 90.0 * k] for k in range(20)]
    thin = [[x0, y0, x1, y0 + 1e-7] for x0, y0, x1, _ in flat]
    assert [len(g) for g in group_lines(flat)] == [len(g) for g in group_lines(thin)] == [1] * 20


def test_only_signs_on_the_face_are_grouped():
    boxes = [[10, 10, 60, 60], [70, 10, 120, 60], [500, 10, 550, 60]]
    assert group_lines(boxes, face_box=[0, 0, 200, 200]) == [[0, 1]]


def test_a_thousand_signs_take_less_than_a_second():
    boxes, truth = lay_out(1, lines=55, width=24.0, tilt=5, bow=1, ragged=False)
    assert len(boxes) > 1000
    start = time.perf_counter()
    groups = group_lines(boxes)
    assert time.perf_counter() - start < 1.0
    assert min(pairwise_scores(groups, truth)) > 0.98


def test_scale_and_place_do_not_matter():
    boxes, _ = lay_out(2, tilt=4, bow=0.5)
    assert group_lines(boxes) == group_lines(boxes * 0.1 + 7) == group_lines(boxes * 20)


def test_straightened_lines_are_level():
    boxes, truth = lay_out(3, tilt=8, bow=1.0, fan=3)
    level = straighten(boxes)
    y = (level[:, 1] + level[:, 3]) / 2
    assert np.mean([np.std(y[truth == t]) for t in set(truth)]) < 0.15  # the layout's own scatter is 0.08


def test_gaps_wider_than_one_and_a_half_signs():
    line = [
        [0, 0, 50, 50],
        [60, 0, 110, 50],
        [190, 0, 240, 50],
        [250, 0, 400, 50],
        [260, 0, 300, 50],
        [420, 0, 470, 50],
    ]
    assert gaps(line, median_width=50) == [2]
    assert gaps(line, median_width=50, least=0.3) == [2, 5]  # the long sign reaches to 400, past the short one after it
    assert gaps([], 50) == gaps(line[:1], 50) == []
