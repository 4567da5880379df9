"""Clay: noise, pressed wedges, raking light and colour, on height maps in pixels.

A height map is a float32 array whose values are heights in pixels of the same picture, so that slopes are true slopes.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from dubsar.datasets.synthetic.glyphs import PAD_PX, REFERENCE_PX, GlyphShape

F32 = npt.NDArray[np.float32]

# clay as museum photographs show it: tan, ochre, red, pink, brown, dark brown, olive, grey, bluish grey, pale
_CLAYS = np.array(
    [
        (186, 148, 104),
        (205, 148, 84),
        (170, 92, 62),
        (190, 146, 138),
        (138, 100, 76),
        (104, 72, 62),
        (118, 106, 66),
        (120, 114, 110),
        (112, 118, 128),
        (214, 194, 160),
    ],
    np.float32,
)


@dataclass(frozen=True)
class Pose:
    """Where and how a sign is pressed.

    Attributes:
        x, y: centre of the ink, pixels.
        height_px: height of a full-size sign.
        stretch: width factor on top of the height's scale.
        shear: rightward lean, as a share of the height.
        angle: rotation, radians, clockwise on the picture.
    """

    x: float
    y: float
    height_px: float
    stretch: float = 1.0
    shear: float = 0.0
    angle: float = 0.0


@dataclass(frozen=True)
class Stylus:
    """How the signs of one tablet are cut: how far wedges are widened (reference pixels), and how deep they go."""

    grow: float = 2.0
    depth: float = 1.0
    deepest: float = 6.0


@dataclass(frozen=True)
class Impression:
    """A pressed sign: depth in pixels of a patch whose top left corner is (x0, y0)."""

    x0: int
    y0: int
    depth_HW: F32


@dataclass(frozen=True)
class Light:
    """A light: compass direction it comes from (degrees clockwise from the top), height, share of ambient light."""

    azimuth_deg: float = 315.0
    elevation_deg: float = 35.0
    ambient: float = 0.25


def noise(rng: np.random.Generator, shape_HW: tuple[int, int], cell_px: float) -> F32:
    """Make smooth noise of unit variance.

    Args:
        rng: source of randomness.
        shape_HW: height and width, pixels.
        cell_px: size of the features, pixels; 1 is white noise.

    Returns:
        (H, W) float32.
    """
    height, width = shape_HW
    rows, columns = max(2, math.ceil(height / cell_px)), max(2, math.ceil(width / cell_px))
    grid_HW = rng.standard_normal((rows, columns), np.float32)
    if cell_px <= 1:
        return grid_HW[:height, :width]
    # bicubic interpolation between independent values lowers the variance: 1.35 brings it back
    return np.asarray(Image.fromarray(grid_HW).resize((width, height), Image.Resampling.BICUBIC)) * np.float32(1.35)


def fractal(
    rng: np.random.Generator, shape_HW: tuple[int, int], cells_px: tuple[float, ...], falloff: float = 0.5
) -> F32:
    """Add up noise of several sizes, the first with weight 1, each following one with ``falloff`` times the last."""
    total_HW = np.zeros(shape_HW, np.float32)
    for octave, cell_px in enumerate(cells_px):
        total_HW += np.float32(falloff**octave) * noise(rng, shape_HW, cell_px)
    return total_HW


def bent(shape: GlyphShape, rng: np.random.Generator, amount: float = 0.035) -> GlyphShape:
    """Move a sign's parts against each other as no two scribes place their wedges alike; its frame stays.

    Args:
        shape: the sign.
        rng: source of randomness.
        amount: standard deviation of the shifts, as a share of the sign's width and height.
    """
    rows, columns = shape.distance_HW.shape
    xs, ys = [round(columns * k / 3) for k in range(4)], [round(rows * k / 3) for k in range(4)]
    shift = np.zeros((4, 4, 2))
    shift[1:3, 1:3] = rng.normal(0, amount, (2, 2, 2)).clip(-3 * amount, 3 * amount) * (columns, rows)
    points = [[(xs[i] + float(shift[j, i, 0]), ys[j] + float(shift[j, i, 1])) for i in range(4)] for j in range(4)]
    mesh = [
        (
            (xs[i], ys[j], xs[i + 1], ys[j + 1]),
            (*points[j][i], *points[j + 1][i], *points[j + 1][i + 1], *points[j][i + 1]),
        )
        for j in range(3)
        for i in range(3)
    ]
    image = shape.image.transform(
        (columns, rows), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR, fillcolor=-float(PAD_PX)
    )
    return GlyphShape(np.asarray(image), shape.rise_px)


def press(shape: GlyphShape, pose: Pose, stylus: Stylus) -> Impression:
    """Cut a sign's wedges: V-shaped grooves, deepest where the wedge is widest.

    Args:
        shape: the sign's distance field.
        pose: place, scale, lean and rotation on the picture.
        stylus: width and depth of the wedges.

    Returns:
        Depth patch, 0 outside the ink.
    """
    scale = pose.height_px / REFERENCE_PX
    cos, sin = math.cos(pose.angle), math.sin(pose.angle)
    x_scale = scale * pose.stretch
    a, b = cos * x_scale, (-pose.shear * cos - sin) * scale  # picture = [[a, b], [c, d]] @ reference
    c, d = sin * x_scale, (-pose.shear * sin + cos) * scale
    rows, columns = shape.distance_HW.shape
    half_w, half_h = (abs(a) * columns + abs(b) * rows) / 2, (abs(c) * columns + abs(d) * rows) / 2
    x0, y0 = math.floor(pose.x - half_w), math.floor(pose.y - half_h)
    width, height = math.ceil(pose.x + half_w) - x0 + 1, math.ceil(pose.y + half_h) - y0 + 1
    det = a * d - b * c
    ia, ib, ic, id_ = d / det, -b / det, -c / det, a / det
    dx, dy = x0 - pose.x, y0 - pose.y
    coefficients = (ia, ib, ia * dx + ib * dy + columns / 2, ic, id_, ic * dx + id_ * dy + rows / 2)
    warped = shape.image.transform(
        (width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR, fillcolor=-float(PAD_PX)
    )
    depth_HW = np.clip(np.asarray(warped) + np.float32(stylus.grow), 0, np.float32(stylus.deepest))
    return Impression(x0, y0, depth_HW * np.float32(stylus.depth * scale))


def stamp(groove_HW: F32, mark: Impression) -> tuple[slice, slice, F32]:
    """Press an impression into a map of grooves (in place); where two overlap, the deeper one stays.

    Returns:
        Row and column slices of the picture that the patch covers, and the patch cut to the picture.
    """
    height, width = groove_HW.shape
    y0, x0 = max(mark.y0, 0), max(mark.x0, 0)
    y1 = max(y0, min(mark.y0 + mark.depth_HW.shape[0], height))
    x1 = max(x0, min(mark.x0 + mark.depth_HW.shape[1], width))
    rows, columns = slice(y0, y1), slice(x0, x1)
    patch_HW = mark.depth_HW[y0 - mark.y0 : y1 - mark.y0, x0 - mark.x0 : x1 - mark.x0]
    np.maximum(groove_HW[rows, columns], patch_HW, out=groove_HW[rows, columns])
    return rows, columns, patch_HW


def shade(height_HW: F32, light: Light, shadow_steps: int = 5) -> F32:
    """Light a height map: Lambert's law, cast shadows over short distances, darker hollows.

    Args:
        height_HW: heights, pixels.
        light: the light.
        shadow_steps: how far a cast shadow reaches, in steps of about 1.5 pixels.

    Returns:
        (H, W) float32 brightness; a level surface has about 0.75.
    """
    azimuth, elevation = math.radians(light.azimuth_deg), math.radians(light.elevation_deg)
    lx, ly = math.sin(azimuth) * math.cos(elevation), -math.cos(azimuth) * math.cos(elevation)
    lz = math.sin(elevation)
    padded_HW = np.pad(height_HW, 1, mode="edge")
    gx_HW = (padded_HW[1:-1, 2:] - padded_HW[1:-1, :-2]) * np.float32(0.5)
    gy_HW = (padded_HW[2:, 1:-1] - padded_HW[:-2, 1:-1]) * np.float32(0.5)
    facing_HW = np.float32(lz) - np.float32(lx) * gx_HW - np.float32(ly) * gy_HW
    facing_HW /= np.sqrt(1 + gx_HW * gx_HW + gy_HW * gy_HW)
    lit_HW = np.clip(facing_HW, 0, 1)
    lit_HW *= _sunlit(height_HW, (lx, ly), lz / math.cos(elevation), shadow_steps)
    hollow_HW = ndimage.uniform_filter(height_HW, 9, mode="nearest") - height_HW
    open_HW = 1 - np.clip(hollow_HW * np.float32(0.12), -0.15, 0.6)
    ambient = light.ambient
    return np.asarray((np.float32(ambient) + np.float32((1 - ambient) / max(lz, 0.3) * 0.68) * lit_HW) * open_HW)


def _sunlit(height_HW: F32, towards: tuple[float, float], slope: float, steps: int) -> F32:
    """Share of the light that no neighbour towards it takes away."""
    norm = math.hypot(*towards) or 1.0
    over_HW = np.zeros_like(height_HW)
    rows, columns = height_HW.shape
    for step in range(1, steps + 1):
        distance = 1.5 * step
        dx, dy = round(towards[0] / norm * distance), round(towards[1] / norm * distance)
        if abs(dx) >= columns or abs(dy) >= rows:
            break
        here = (slice(max(0, -dy), rows - max(0, dy)), slice(max(0, -dx), columns - max(0, dx)))
        there = (slice(max(0, dy), rows - max(0, -dy)), slice(max(0, dx), columns - max(0, -dx)))
        rise_HW = height_HW[there] - height_HW[here] - np.float32(slope * distance)
        np.maximum(over_HW[here], rise_HW, out=over_HW[here])
    return np.asarray(1 - np.clip(over_HW * np.float32(0.7), 0, 0.8))


def blurred(map_HW: F32, size_px: int) -> F32:
    """Average a map over squares of ``size_px``."""
    return np.asarray(ndimage.uniform_filter(map_HW, size_px, mode="nearest"), np.float32)


def surface_noise(rng: np.random.Generator, shape_HW: tuple[int, int], roughness: float) -> F32:
    """Make the unevenness of a clay surface: waves, grain and a few pits, heights in pixels."""
    relief_HW = fractal(rng, shape_HW, (24, 9, 3.5), 0.45) * np.float32(roughness)
    relief_HW += noise(rng, shape_HW, 1) * np.float32(0.2 * roughness)
    pits_HW = np.clip(noise(rng, shape_HW, 5) - np.float32(2.2), 0, 1.5)
    return np.asarray(relief_HW - pits_HW * np.float32(3.0 * roughness))


def clay_colour(rng: np.random.Generator) -> F32:
    """Draw a clay colour near one of those that museum photographs show; (3,) float32, 0 to 255."""
    first, second = rng.integers(len(_CLAYS), size=2)
    mix = np.float32(rng.beta(0.5, 2.5))
    colour = (1 - mix) * _CLAYS[first] + mix * _CLAYS[second]
    return np.asarray(colour * rng.uniform(0.72, 1.12) * rng.normal(1, 0.03, 3), np.float32)


def paint_clay(rng: np.random.Generator, brightness_HW: F32, colour_3: F32) -> F32:
    """Colour a lit surface, with stains and a warmer or colder tint in the shadows.

    Returns:
        (H, W, 3) float32, 0 to 255, not clipped.
    """
    stain_HW = 1 + np.float32(rng.uniform(0.03, 0.09)) * fractal(rng, _shape(brightness_HW), (11, 37, 4), 0.7)
    contrast = np.float32(rng.uniform(0.9, 1.35))
    tone_HW = np.power(np.clip(brightness_HW, 0, 2) / np.float32(0.75), contrast) * stain_HW
    tint = rng.uniform(-0.05, 0.15)  # shadows of clay lose blue first
    rgb_HW3 = np.empty((*brightness_HW.shape, 3), np.float32)
    for channel, bend in enumerate((-tint, 0.0, tint)):
        toned_HW = tone_HW if bend == 0 else tone_HW * (1 + np.float32(bend) * (tone_HW - 1).clip(-1, 0.5))
        rgb_HW3[..., channel] = toned_HW * colour_3[channel]
    return rgb_HW3


def _shape(array_HW: F32) -> tuple[int, int]:
    return array_HW.shape[0], array_HW.shape[1]
