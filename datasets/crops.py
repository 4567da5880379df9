"""Sign crops: one square picture per sign, its box with a margin, stretched to a square.

Stretching loses the sign's proportions but says without doubt where it begins and ends; a square cut around the longer
side shows parts of the lines above and below a wide sign as large as the sign itself. What lies beyond the photograph
repeats its border.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from dubsar.datasets.boxes import as_boxes


@dataclass(frozen=True)
class CropSize:
    """How crops are cut. ``border`` more is cut on each side in training, as room for rotation and shift."""

    crop_px: int
    context: float
    border: float = 0.0

    @property
    def side_px(self) -> int:
        """Side of the crop with its border, px."""
        return 2 * round(self.crop_px * (0.5 + self.border))


def cut_crops(rgb_HW3: npt.NDArray[np.uint8], boxes_N4: npt.ArrayLike, size: CropSize) -> npt.NDArray[np.uint8]:
    """Cut one crop per box.

    Args:
        rgb_HW3: uint8 photograph.
        boxes_N4: xyxy px in it.
        size: side and margin.

    Returns:
        uint8 (N, S, S, 3) with S = ``size.side_px``.
    """
    boxes = as_boxes(boxes_N4)
    out = np.zeros((len(boxes), size.side_px, size.side_px, 3), np.uint8)
    picture = Image.fromarray(rgb_HW3)
    for row, (x0, y0, x1, y1) in enumerate(boxes):
        reach = (0.5 + size.context) * size.side_px / size.crop_px
        x, y, half_w, half_h = (x0 + x1) / 2, (y0 + y1) / 2, max(x1 - x0, 1.0) * reach, max(y1 - y0, 1.0) * reach
        out[row] = _window(picture, (x - half_w, y - half_h, x + half_w, y + half_h), size.side_px)
    return out


def _window(picture: Image.Image, box: tuple[float, float, float, float], side: int) -> npt.NDArray[np.uint8]:
    """Resize a window to (side, side, 3); it may reach beyond the picture."""
    x0, y0 = max(0, int(np.floor(box[0]))), max(0, int(np.floor(box[1])))
    x1, y1 = min(picture.width, int(np.ceil(box[2]))), min(picture.height, int(np.ceil(box[3])))
    if x1 <= x0 or y1 <= y0:
        return np.zeros((side, side, 3), np.uint8)
    before, after = (x0 - box[0], y0 - box[1]), (box[2] - x1, box[3] - y1)
    pads = [(max(0, round(before[i])), max(0, round(after[i]))) for i in (1, 0)]
    window = np.asarray(picture.crop((x0, y0, x1, y1)))
    if any(p for pair in pads for p in pair):
        window = np.pad(window, (*pads, (0, 0)), mode="edge")
    return np.asarray(Image.fromarray(window).resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0))


def relit(crops_NSS3: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Return crops as another exposure would show them: a change of gamma and of contrast, without chance.

    Args:
        crops_NSS3: uint8, any shape.
        number: which change; 0 is none, odd ones are darker and harder, even ones lighter and softer, growing.

    Returns:
        uint8 of the same shape.
    """
    step = (number + 1) // 2 * (1 if number % 2 else -1)
    grey = (np.arange(256) / 255) ** 2 ** (0.3 * step)
    grey = (grey - grey.mean()) * 1.1**step + grey.mean()
    return np.rint(255 * np.clip(grey, 0, 1)).astype(np.uint8)[crops_NSS3] if number else crops_NSS3
