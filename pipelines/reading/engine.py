"""The three trained networks at work: find signs, name them, read a line. The only part of reading that knows torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dubsar.datasets.boxes import Floats
from dubsar.datasets.tiles import cut, is_empty, merge_tiles, tile_grid
from dubsar.datasets.windows import resize, sign_size
from dubsar.models.detector import Detector

FIRST_GUESS_PX = 66.0  # median sign size of the training photographs
_CLEAR = 0.4  # detections above this are taken to be signs when their size is measured


@dataclass(frozen=True)
class Detections:
    """Signs of one photograph: boxes (N, 4) xyxy px of the upright picture, scores (N,), class ids (N,), best first."""

    boxes_N4: Floats
    scores_N: Floats
    classes_N: npt.NDArray[np.int64]
    sign_px: float  # size of a sign on the photograph, as found


@dataclass(frozen=True)
class TileSettings:
    """How a photograph is shown to the detector: tile side, overlap share, and the sign size that it was trained for."""

    tile: int
    overlap: float
    sign_px: float
    batch_size: int = 4
    precision: str = "fp32"


def find_signs(detector: Detector, rgb_HW3: npt.NDArray[np.uint8], settings: TileSettings, threshold: float = 0.05) -> Detections:
    """Find all signs on a photograph of any scale.

    The scale is not known beforehand: a first pass assumes the usual sign size, and where what it finds is another size, the
    photograph is scaled anew. Where next to nothing is found, twice and half the size are tried as well.

    Args:
        detector: in evaluation mode.
        rgb_HW3: uint8, upright.
        settings: as the detector was trained.
        threshold: smallest score that is kept; there is no cap on the number.
    """
    best = _at_size(detector, rgb_HW3, FIRST_GUESS_PX, settings, threshold)
    if _evidence(best) < 8:
        others = [_at_size(detector, rgb_HW3, FIRST_GUESS_PX * f, settings, threshold) for f in (0.5, 2.0, 3.5)]
        best = max([best, *others], key=_evidence)
    for _ in range(2):
        clear = best.boxes_N4[best.scores_N >= min(_CLEAR, best.scores_N.max(initial=0))]
        found = sign_size(clear) if len(clear) >= 3 else best.sign_px
        if 0.87 < found / best.sign_px < 1.15:
            break
        again = _at_size(detector, rgb_HW3, found, settings, threshold)
        if _evidence(again) < _evidence(best):
            break
        best = again
    return best


def _evidence(found: Detections) -> float:
    return float(found.scores_N[found.scores_N > 0.3].sum())


def _at_size(
    detector: Detector, rgb_HW3: npt.NDArray[np.uint8], sign_px: float, settings: TileSettings, threshold: float
) -> Detections:
    """Detect with the photograph scaled as if its signs were ``sign_px`` large."""
    factor = settings.sign_px / sign_px
    scaled = resize(rgb_HW3, factor)
    height, width = scaled.shape[:2]
    tiles, boxes, scores, classes = [], [], [], []
    grid = [t for t in tile_grid(width, height, settings.tile, round(settings.overlap * settings.tile))]
    grid = [t for t in grid if not is_empty(scaled[t.y : t.y + t.height, t.x : t.x + t.width])]
    for first in range(0, len(grid), settings.batch_size):
        batch = grid[first : first + settings.batch_size]
        pixels = [cut(scaled, t, pad_value=0) for t in batch]
        pixels += [np.zeros_like(pixels[0])] * (settings.batch_size - len(batch))  # one shape for every call
        for tile, found in zip(batch, detect_tiles(detector, np.stack(pixels), settings.precision), strict=False):
            score, label = found[:, 4:].max(1)
            keep = score >= threshold
            tiles.append(tile)
            boxes.append(found[keep, :4].double().numpy())
            scores.append(score[keep].double().numpy())
            classes.append(label[keep].numpy())
    merged, merged_scores, index = merge_tiles(tiles, boxes, scores)
    labels = np.concatenate([np.zeros(0, np.int64), *classes])[index]
    return Detections(merged / factor, merged_scores, labels, sign_px)


def detect_tiles(detector: Detector, tiles_BHW3: npt.NDArray[np.uint8], precision: str = "fp32") -> torch.Tensor:
    """Run the detector over uint8 tiles (B, H, W, 3); returns (B, anchors, 4 + classes) on the CPU."""
    device = next(detector.parameters()).device
    pixels = torch.from_numpy(tiles_BHW3).to(device).permute(0, 3, 1, 2).float() / 255
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return detector.detect(pixels).cpu()
