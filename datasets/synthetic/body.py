"""The body of a tablet: where its clay is, where its surface is gone, and its height map."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from scipy import ndimage

from dubsar.datasets.synthetic.clay import F32, blurred, fractal, noise, surface_noise
from dubsar.datasets.synthetic.layout import Box, FacePlan, Polygon

Mask = npt.NDArray[np.bool_]


def masks(size: tuple[int, int], faces: Sequence[FacePlan]) -> tuple[Mask, Mask]:
    """Where there is clay, and where its surface is broken away."""
    width, height = size
    body_HW, gone_HW = np.zeros((height, width), bool), np.zeros((height, width), bool)
    for face in faces:
        x0, y0, x1, y1 = face.box_px
        clay, gone = Image.new("L", (x1 - x0, y1 - y0)), Image.new("L", (x1 - x0, y1 - y0))
        _fill(clay, face.outline, face.box_px, 1)
        for polygon in face.cuts:
            _fill(clay, polygon, face.box_px, 0)
        for polygon in face.breaks:
            _fill(gone, polygon, face.box_px, 1)
        body_HW[y0:y1, x0:x1] |= np.asarray(clay, bool)
        gone_HW[y0:y1, x0:x1] |= np.asarray(gone, bool)
    return body_HW, gone_HW


def _fill(image: Image.Image, polygon: Polygon, box_px: Box, value: int) -> None:
    points = polygon - np.array(box_px[:2])
    ImageDraw.Draw(image).polygon([(float(x), float(y)) for x, y in points], fill=value)


def press_ruling(groove_HW: F32, line: Polygon, width_px: float) -> None:
    """Press a ruling along a polyline (in place)."""
    height, width = groove_HW.shape
    first, last = max(0, int(line[0, 0])), min(width, int(line[-1, 0]) + 1)
    xs = np.arange(first, last)
    ys = np.interp(xs, line[:, 0], line[:, 1])
    top, bottom = max(0, int(ys.min() - width_px - 1)), min(height, int(ys.max() + width_px + 2))
    if first >= last or top >= bottom:
        return
    distance_HW = np.abs(np.arange(top, bottom)[:, None] - ys[None, :])
    depth_HW = np.clip(width_px - distance_HW, 0, None).astype(np.float32)
    np.maximum(groove_HW[top:bottom, first:last], depth_HW, out=groove_HW[top:bottom, first:last])


def median_height(face: FacePlan) -> float:
    """Return the usual height of a face's signs, pixels."""
    heights = [sign.pose.height_px for line in face.lines for sign in line.signs]
    return float(np.median(heights)) if heights else 30.0


def relief(rng: np.random.Generator, faces: Sequence[FacePlan], body_HW: Mask, gone_HW: Mask, groove_HW: F32) -> F32:
    """Height map of all faces: rounded body, uneven surface, wedges with raised rims, breaks."""
    height, width = body_HW.shape
    small_HW = body_HW[::4, ::4]
    inward_HW = ndimage.distance_transform_edt(np.pad(small_HW, 1))[1:-1, 1:-1].astype(np.float32) * 4
    inward_HW = np.asarray(Image.fromarray(inward_HW).resize((width, height), Image.Resampling.BILINEAR))
    smallest = min(min(f.box_px[2] - f.box_px[0], f.box_px[3] - f.box_px[1]) for f in faces)
    round_px = float(rng.uniform(0.1, 0.3)) * smallest
    steep_HW = np.asarray(1 - np.clip(inward_HW / np.float32(round_px), 0, 1), np.float32)
    rim_HW = blurred(steep_HW, 9)  # else the skeleton of the outline shows as creases
    relief_HW = np.sqrt(np.clip(1 - rim_HW * rim_HW, 0, 1)) * np.float32(round_px * rng.uniform(0.4, 0.8))
    shape_HW = (height, width)
    roughness = float(rng.uniform(0.15, 0.75))
    wear_HW = np.clip(0.9 + np.float32(rng.uniform(0, 0.25)) * noise(rng, shape_HW, 70), 0.35, 1.0)
    relief_HW += surface_noise(rng, shape_HW, roughness)
    pressed_HW = groove_HW * wear_HW
    bulge_HW = blurred(pressed_HW, 7)
    depth_px, coarse_px = np.float32(rng.uniform(2, 6)), np.float32(rng.uniform(0.8, 2.0))
    floor_HW = coarse_px * fractal(rng, shape_HW, (26, 11, 5), 0.5) - depth_px
    broken_HW = blurred(gone_HW.astype(np.float32), 3)
    written_HW = np.float32(0.3) * bulge_HW - pressed_HW
    return np.asarray(relief_HW + written_HW * (1 - broken_HW) + floor_HW * broken_HW)
