"""Cut a large photograph into tiles of one shape, and put what was found in them together again.

A 10,000 px scan does not fit into a detector, and shrinking it would make the wedges vanish. So the picture is covered
with overlapping square tiles. Three things go wrong at their borders, and `merge_tiles` settles each:

* a sign in the overlap is found twice -> the better find stays (intersection over union);
* a sign on a border is cut in one tile and whole in the next -> the cut piece is dropped, the whole view decides;
* a sign wider than the overlap is cut in both -> its pieces are united (intersection over the smaller piece).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dubsar.datasets.boxes import Floats, Ints, as_boxes, clip, ios_matrix, merge, nms

PAD_VALUE = 114  # the neutral grey that YOLO detectors pad with


@dataclass(frozen=True)
class Tile:
    """One square window on the picture.

    Attributes:
        x: left border in the picture, px.
        y: top border in the picture, px.
        size: side of the tile, px.
        width: how much of ``size`` the picture fills; the rest is padding on the right.
        height: how much of ``size`` the picture fills; the rest is padding at the bottom.
        inner: whether the left, top, right, bottom border runs through the picture (true) or is the picture's own end.
    """

    x: int
    y: int
    size: int
    width: int
    height: int
    inner: tuple[bool, bool, bool, bool]

    def to_picture(self, boxes_N4: npt.ArrayLike) -> Floats:
        """Map boxes (N, 4) xyxy px from this tile to the picture, clipped to what the tile shows of it."""
        shift = np.array([self.x, self.y, self.x, self.y], dtype=np.float64)
        return np.asarray(clip(boxes_N4, self.width, self.height) + shift)

    def to_tile(self, boxes_N4: npt.ArrayLike) -> Floats:
        """Map boxes (N, 4) xyxy px from the picture to this tile; they are not clipped."""
        return np.asarray(as_boxes(boxes_N4) - np.array([self.x, self.y, self.x, self.y], dtype=np.float64))


def tile_grid(width: int, height: int, tile: int, overlap: int) -> list[Tile]:
    """Cover a picture with tiles of one size.

    Args:
        width: of the picture, px.
        height: of the picture, px.
        tile: side of a tile, px.
        overlap: least overlap of neighbours, px; take about the longest sign.

    Returns:
        Tiles from top left to bottom right, evenly spread;
        none reaches beyond the picture unless the picture is smaller.

    Raises:
        ValueError: a size is below 1, or the overlap is not in 0 <= overlap < tile.
    """
    if width < 1 or height < 1 or tile < 1:
        raise ValueError(f"cannot tile {width} x {height} px with tiles of {tile} px; each must be at least 1")
    if not 0 <= overlap < tile:
        raise ValueError(f"overlap is {overlap} px with tiles of {tile} px; expected 0 <= overlap < tile")
    shown_w, shown_h = min(tile, width), min(tile, height)
    return [
        Tile(x, y, tile, shown_w, shown_h, (x > 0, y > 0, x + shown_w < width, y + shown_h < height))
        for y in _starts(height, tile, overlap)
        for x in _starts(width, tile, overlap)
    ]


def cut(rgb_HW3: npt.NDArray[np.uint8], tile: Tile, pad_value: int = PAD_VALUE) -> npt.NDArray[np.uint8]:
    """Return the tile's pixels, uint8 (size, size, 3), padded on the right and at the bottom; always a copy."""
    out = np.full((tile.size, tile.size, 3), pad_value, dtype=np.uint8)
    out[: tile.height, : tile.width] = rgb_HW3[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width]
    return out


def is_empty(tile_HW3: npt.NDArray[np.uint8], contrast: float = 10.0) -> bool:
    """Tell whether a tile shows plain ground, so that a detector need not look at it.

    Args:
        tile_HW3: uint8 pixels of a tile.
        contrast: grey levels (of 255); below this between the darkest and the brightest block, the tile is plain.

    Returns:
        True where block means of 8 x 8 px hardly differ: black or white ground, sensor noise included.
    """
    height, width = (max(8, side - side % 8) for side in tile_HW3.shape[:2])
    grey = tile_HW3[:height, :width].mean(axis=2, dtype=np.float32)
    if min(grey.shape) < 8:
        return bool(np.ptp(grey) < contrast)
    blocks = grey.reshape(height // 8, 8, width // 8, 8).mean(axis=(1, 3))
    return bool(np.ptp(blocks) < contrast)


def merge_tiles(
    tiles: Sequence[Tile],
    boxes: Sequence[npt.ArrayLike],
    scores: Sequence[npt.ArrayLike],
    *,
    iou: float = 0.5,
    ios: float = 0.6,
    margin: float = 2.0,
) -> tuple[Floats, Floats, Ints]:
    """Put the detections of all tiles together, each sign once.

    Args:
        tiles: the tiles that the detector saw; leave skipped ones out, for they cannot vouch for anything.
        boxes: for each tile its boxes (N_t, 4) xyxy in px of the tile.
        scores: for each tile its scores (N_t,).
        iou: two whole finds above this are one sign.
        ios: a cut piece is part of another find above this (intersection over the smaller).
        margin: px; a box this near to an inner border counts as cut.

    Returns:
        Boxes (K, 4) xyxy in px of the picture, their scores (K,), and their place (K,) in the concatenated input, so
        that labels can follow. Best first.
    """
    in_picture = [tile.to_picture(b) for tile, b in zip(tiles, boxes, strict=True)]
    all_boxes = np.concatenate([np.zeros((0, 4)), *in_picture])
    all_scores = np.concatenate([np.zeros(0), *(np.asarray(s, dtype=np.float64).reshape(-1) for s in scores)])
    if len(all_boxes) != len(all_scores):
        raise ValueError(f"{len(all_scores)} scores for {len(all_boxes)} boxes; expected one score per box")
    cut_off = np.concatenate(
        [np.zeros(0, bool), *(_touches(t, b, margin) for t, b in zip(tiles, in_picture, strict=True))]
    )
    has_area = ((all_boxes[:, 2:] - all_boxes[:, :2]) > 0).all(axis=1)  # padding was clipped away

    whole = np.flatnonzero(~cut_off & has_area)
    whole = whole[nms(all_boxes[whole], all_scores[whole], iou)]
    pieces = np.flatnonzero(cut_off & has_area)
    pieces = pieces[~_seen_whole(tiles, all_boxes[pieces], margin)]
    covered = (ios_matrix(all_boxes[pieces], all_boxes[whole]) > ios).any(axis=1)
    pieces = pieces[~covered]
    united, best = merge(all_boxes[pieces], all_scores[pieces], ios)

    index = np.concatenate([whole, pieces[best]]).astype(np.int64)
    found = np.concatenate([all_boxes[whole], united])
    order = np.argsort(-all_scores[index], kind="stable")
    return found[order], all_scores[index][order], index[order]


def _starts(length: int, tile: int, overlap: int) -> list[int]:
    if length <= tile:
        return [0]
    count = -(-(length - overlap) // (tile - overlap))
    return [round(s) for s in np.linspace(0, length - tile, count).tolist()]


def _frame(tile: Tile, margin: float) -> Floats:
    """Return the region (4,) whose boxes the tile sees whole: the tile, less a margin along inner borders."""
    inset = margin * np.array([1.0, 1.0, -1.0, -1.0])
    corners = np.array([tile.x, tile.y, tile.x + tile.width, tile.y + tile.height], dtype=np.float64)
    return np.asarray(np.where(tile.inner, corners + inset, corners))


def _touches(tile: Tile, boxes_N4: Floats, margin: float) -> npt.NDArray[np.bool_]:
    frame = _frame(tile, margin)
    outside = np.concatenate([boxes_N4[:, :2] <= frame[:2], boxes_N4[:, 2:] >= frame[2:]], axis=1)
    return np.asarray((outside & np.array(tile.inner)).any(axis=1))


def _seen_whole(tiles: Sequence[Tile], boxes_N4: Floats, margin: float) -> npt.NDArray[np.bool_]:
    """Tell for each cut piece whether a tile shows its surroundings too, and so had the better view of that sign."""
    seen = np.zeros(len(boxes_N4), dtype=bool)
    for tile in tiles:
        # a piece ends where its own tile ended; the sign goes on beyond, so ask for some clay more than the piece
        around = boxes_N4 + 2 * margin * np.array([-1.0, -1.0, 1.0, 1.0])
        frame = _frame(tile, margin)
        inside = np.concatenate([around[:, :2] > frame[:2], around[:, 2:] < frame[2:]], axis=1)
        seen |= (inside | ~np.array(tile.inner)).all(axis=1)
    return seen
