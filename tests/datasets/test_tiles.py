"""Boxes and tiles: a sign on a border is found once, wherever the tiles happen to lie."""

import itertools

import numpy as np
import pytest

from dubsar.datasets.boxes import as_boxes, clip, ios_matrix, iou_matrix, match, merge, nms
from dubsar.datasets.tiles import PAD_VALUE, Tile, cut, is_empty, merge_tiles, tile_grid

EMPTY = np.zeros((0, 4))


def test_iou_and_ios_of_known_pairs():
    a = [[0, 0, 10, 10], [0, 0, 4, 10], [5, 5, 5, 9]]
    b = [[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30]]
    assert iou_matrix(a, b) == pytest.approx(np.array([[1, 1 / 3, 0], [0.4, 0, 0], [0, 0, 0]]))
    assert ios_matrix(a, b) == pytest.approx(np.array([[1, 0.5, 0], [1, 0, 0], [0, 0, 0]]))


def test_box_functions_accept_nothing():
    box = [[0, 0, 1, 1]]
    assert iou_matrix([], box).shape == (0, 1)
    assert ios_matrix(box, EMPTY).shape == (1, 0)
    assert clip([], 5, 5).shape == (0, 4)
    assert nms([], [], 0.5).shape == (0,)
    assert merge([], [], 0.5)[0].shape == (0, 4)
    assert match([], box, 0.5) == match(box, [], 0.5) == []


def test_as_boxes_refuses_another_shape():
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(N, 4\)"):
        as_boxes(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"expected \(N, 4\)"):
        as_boxes(np.zeros((4, 3)))  # twelve values, but not boxes


def test_clip_keeps_order_and_number():
    assert clip([[-5, 2, 30, 9], [40, 1, 50, 2]], 20, 8).tolist() == [[0, 2, 20, 8], [20, 1, 20, 2]]


def test_nms_keeps_the_best_of_repeats_and_ios_removes_pieces():
    boxes = [[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 3, 10], [50, 50, 60, 60]]
    scores = [0.8, 0.9, 0.95, 0.1]
    assert nms(boxes, scores, 0.5).tolist() == [2, 1, 3]
    assert nms(boxes, [0.8, 0.9, 0.5, 0.1], 0.5, ios=0.6).tolist() == [1, 3]


def test_nms_ties_keep_the_earlier_box():
    assert nms([[0, 0, 9, 10], [0, 0, 10, 10]], [0.5, 0.5], 0.5).tolist() == [0]


def test_nms_equals_comparing_every_pair():
    rng = np.random.default_rng(4)
    corner = rng.uniform(0, 300, (400, 2))
    boxes, scores = np.concatenate([corner, corner + rng.uniform(5, 90, (400, 2))], 1), rng.random(400)
    for ios in (None, 0.7):
        kept = []
        for i in np.argsort(-scores):
            repeats = [iou_matrix(boxes[i], boxes[k])[0, 0] > 0.3 for k in kept]
            repeats += [ios is not None and ios_matrix(boxes[i], boxes[k])[0, 0] > ios for k in kept]
            if not any(repeats):
                kept.append(i)
        assert nms(boxes, scores, 0.3, ios=ios).tolist() == kept


def test_scores_must_fit():
    with pytest.raises(ValueError, match="1 scores for 2 boxes"):
        nms([[0, 0, 1, 1]] * 2, [0.5], 0.5)


def test_merge_unites_pieces_that_meet_only_after_growing():
    pieces = [[0, 0, 10, 10], [9, 0, 30, 10], [5, 0, 15, 10]]
    united, best = merge(pieces, [0.9, 0.2, 0.3], 0.05)
    assert united.tolist() == [[0, 0, 30, 10]]
    assert best.tolist() == [0]


def test_match_is_one_to_one_and_best_first():
    true = [[0, 0, 10, 10], [100, 0, 110, 10]]
    pred = [[1, 0, 11, 10], [0, 0, 10, 10], [100, 0, 109, 10], [50, 50, 60, 60]]
    assert match(pred, true, 0.5) == [(0, 0), (2, 1)]
    assert match(pred, true, 0.5, scores_N=[0.1, 0.9, 0.5, 1.0]) == [(1, 0), (2, 1)]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (100, 640), (640, 640), (641, 900), (1999, 3001), (10_000, 700)])
def test_grid_covers_every_pixel_with_one_shape(width, height):
    seen = np.zeros((height, width), dtype=np.uint8)
    tiles = tile_grid(width, height, 640, 128)
    for tile in tiles:
        assert tile.size == 640
        assert 0 <= tile.x <= max(0, width - 640)
        assert 0 <= tile.y <= max(0, height - 640)
        seen[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width] = 1
    assert seen.all()
    columns = sorted({t.x for t in tiles})
    assert all(b - a <= 640 - 128 for a, b in itertools.pairwise(columns))
    assert len(columns) == max(1, -(-(width - 128) // 512))


@pytest.mark.parametrize(("args", "message"), [((0, 5, 9, 1), "at least 1"), ((9, 9, 5, 5), "0 <= overlap < tile")])
def test_grid_refuses_impossible_sizes(args, message):
    with pytest.raises(ValueError, match=message):
        tile_grid(*args)


def test_cut_pads_and_copies():
    rgb = np.full((4, 6, 3), 200, dtype=np.uint8)
    (tile,) = tile_grid(6, 4, 8, 2)
    out = cut(rgb, tile)
    assert out.shape == (8, 8, 3)
    assert (out[:4, :6] == 200).all()
    assert (out[4:] == PAD_VALUE).all()
    assert (out[:, 6:] == PAD_VALUE).all()
    out[0, 0] = 0
    assert rgb[0, 0, 0] == 200


def test_boxes_map_there_and_back():
    tile = Tile(100, 50, 64, 64, 64, (True, True, True, True))
    boxes = np.array([[110.0, 60.0, 120.0, 70.0]])
    assert tile.to_tile(boxes).tolist() == [[10, 10, 20, 20]]
    assert tile.to_picture(tile.to_tile(boxes)).tolist() == boxes.tolist()


def test_plain_ground_is_empty_and_clay_is_not():
    rng = np.random.default_rng(0)
    black = rng.integers(0, 9, (64, 64, 3), dtype=np.uint8)  # a scanner's noise
    assert is_empty(black)
    assert is_empty(np.full((64, 64, 3), 255, np.uint8))
    assert is_empty(np.zeros((3, 5, 3), np.uint8))
    sliver = black.copy()
    sliver[:, 56:] = 90  # a strip of tablet at the border
    assert not is_empty(sliver)


def detect(signs, tile):
    """A detector that sees every sign of which the tile shows a third, clipped to the tile; whole ones score better."""
    local = tile.to_tile(signs)
    seen = clip(local, tile.width, tile.height)
    share = (seen[:, 2:] - seen[:, :2]).prod(1) / (local[:, 2:] - local[:, :2]).prod(1)
    keep = share > 1 / 3
    return seen[keep], 0.3 + 0.6 * share[keep]


def layout(rng, width, height):
    x, y = np.meshgrid(np.arange(20, width - 130, 110), np.arange(20, height - 110, 95))
    corner = np.stack([x.ravel(), y.ravel()], 1) + rng.uniform(0, 10, (x.size, 2))
    return np.concatenate([corner, corner + rng.uniform([30, 25], [95, 80], (x.size, 2))], 1)


@pytest.mark.parametrize("shift", [0, 1, 37, 64, 129, 300])
def test_each_sign_is_found_once_wherever_the_tiles_lie(shift):
    signs = layout(np.random.default_rng(3), 1700, 1300) + shift
    tiles = tile_grid(1700 + shift, 1300 + shift, 400, 128)
    boxes, scores = zip(*(detect(signs, t) for t in tiles), strict=True)
    assert sum(len(b) for b in boxes) > 1.3 * len(signs)  # there is something to merge
    found, found_scores, index = merge_tiles(tiles, boxes, scores)
    assert len(found) == len(signs)
    assert len(match(found, signs, 0.9)) == len(signs)
    assert (np.diff(found_scores) <= 0).all()
    assert np.concatenate(scores)[index] == pytest.approx(found_scores)


def test_sign_wider_than_the_overlap_is_united():
    tiles = tile_grid(700, 400, 400, 100)
    sign = np.array([[290.0, 50.0, 420.0, 90.0]])
    views = [detect(sign, t) for t in tiles]
    assert [len(b) for b, _ in views] == [1, 1]
    found, _, _ = merge_tiles(tiles, [b for b, _ in views], [s for _, s in views])
    assert found.tolist() == sign.tolist()


def test_piece_of_a_sign_that_begins_at_the_neighbour_s_border_is_dropped():
    tiles = tile_grid(700, 400, 400, 100)
    sign = np.array([[303.0, 50.0, 420.0, 90.0]])  # 3 px into the second tile, cut off in the first
    views = [detect(sign, t) for t in tiles]
    found, _, _ = merge_tiles(tiles, [b for b, _ in views], [s for _, s in views])
    assert found.tolist() == sign.tolist()


def test_cut_piece_is_dropped_when_the_neighbour_saw_the_place_whole_and_found_nothing():
    tiles = tile_grid(700, 400, 400, 100)
    piece = np.array([[380.0, 50.0, 400.0, 90.0]])
    assert len(merge_tiles(tiles, [piece, EMPTY], [[0.9], []])[0]) == 0
    # a neighbour that was skipped as empty ground vouches for nothing
    assert len(merge_tiles(tiles[:1], [piece], [[0.9]])[0]) == 1


def test_sign_at_the_picture_border_is_not_taken_for_a_cut_one():
    tiles = tile_grid(700, 400, 400, 100)
    sign = np.array([[0.0, 350.0, 40.0, 400.0]])
    assert len(merge_tiles(tiles, [sign, EMPTY], [[0.4], []])[0]) == 1


def test_merge_of_no_tiles_is_empty():
    found, scores, index = merge_tiles([], [], [])
    assert (found.shape, scores.shape, index.shape) == ((0, 4), (0,), (0,))
