"""The photograph around a tablet: ground, scale bar, museum number in ink, lens, sensor and JPEG."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy import ndimage

F32 = npt.NDArray[np.float32]
Box = tuple[int, int, int, int]

_PATCHES = ((10, 30, 120), (70, 150, 210), (20, 130, 80), (240, 225, 80), (205, 20, 40), (215, 60, 120))


def on_ground(rng: np.random.Generator, rgb_HW3: F32, body_HW: npt.NDArray[np.bool_]) -> F32:
    """Set the tablet on a ground: black as in museum composites, one in eight lighter.

    Args:
        rng: source of randomness.
        rgb_HW3: the clay, 0 to 255, everywhere.
        body_HW: where the tablet is.

    Returns:
        (H, W, 3) float32, 0 to 255, not clipped.
    """
    light = rng.random() < 0.125
    ground = rng.uniform(60, 235) * rng.normal(1, 0.02, 3) if light else rng.uniform(0, 9) * np.ones(3)
    cover_HW = ndimage.uniform_filter(body_HW.astype(np.float32), 3)[..., None]
    return np.asarray(rgb_HW3 * cover_HW + ground.astype(np.float32) * (1 - cover_HW))


def scale_bar(rng: np.random.Generator, rgb_HW3: F32, below: int) -> F32:
    """Draw a scale bar with colour patches under the tablet, in most pictures.

    Args:
        rng: source of randomness.
        rgb_HW3: picture, 0 to 255.
        below: row under which there is room.

    Returns:
        The picture, float32.
    """
    shown, place, unit = rng.random() < 0.8, rng.uniform(0.1, 0.6), rng.uniform(0.05, 0.09)
    height, width = rgb_HW3.shape[:2]
    room = height - below
    side = round(min(0.3 * room, unit * width / 2))
    if not shown or side < 5:
        return rgb_HW3
    image = Image.fromarray(np.clip(rgb_HW3, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    x, y = round(place * width), below + (room - 3 * side) // 2
    draw.rectangle((x, y, x + 3 * side, y + side - 2), fill=(225, 225, 218))
    draw.rectangle((x, y + side, x + 6 * side, y + 2 * side - 2), fill=(200, 200, 195))
    font = ImageFont.load_default(max(6, round(0.8 * side)))
    for number, label in enumerate(("0", "1", "2")):
        draw.text((x + 2.6 * side * number + 1, y + side), label, fill=(10, 10, 10), font=font)
    for k, colour in enumerate(_PATCHES):
        draw.rectangle((x + k * side, y + 2 * side, x + (k + 1) * side - 2, y + 3 * side - 2), fill=colour)
    return np.asarray(image, np.float32)


def number(rng: np.random.Generator, rgb_HW3: F32, blank: Sequence[Box]) -> F32:
    """Write a museum number in black ink on one of the blank faces, in half of the pictures that have one.

    Args:
        rng: source of randomness.
        rgb_HW3: picture, 0 to 255.
        blank: faces without signs, (x0, y0, x1, y1) pixels.

    Returns:
        The picture, float32.
    """
    wanted, text = rng.random() < 0.5, f"K.{int(rng.integers(100, 20000))}"
    if not blank or not wanted:
        return rgb_HW3
    x0, y0, x1, y1 = blank[int(rng.integers(len(blank)))]
    size = max(8, round(0.45 * min(x1 - x0, y1 - y0)))
    font = ImageFont.load_default(min(size, 40))
    left, top, right, bottom = font.getbbox(text)
    ink = Image.new("L", (round(right - left) + 8, round(bottom - top) + 8))
    ImageDraw.Draw(ink).text((4 - left, 4 - top), text, fill=220, font=font)
    ink = ink.rotate(float(rng.normal(0, 5)) + (90 if y1 - y0 > x1 - x0 else 0), expand=True)
    canvas = Image.new("L", (rgb_HW3.shape[1], rgb_HW3.shape[0]))
    canvas.paste(ink, ((x0 + x1 - ink.width) // 2, (y0 + y1 - ink.height) // 2))
    share_HW1 = np.asarray(canvas, np.float32)[..., None] / 255
    return np.asarray(rgb_HW3 * (1 - share_HW1) + 18 * share_HW1)


def develop(rng: np.random.Generator, rgb_HW3: F32, blur_px: tuple[float, float] = (0.0, 0.9)) -> npt.NDArray[np.uint8]:
    """Photograph the scene: exposure, mild blur, sensor noise, JPEG.

    Args:
        rng: source of randomness.
        rgb_HW3: scene, 0 to 255, may exceed it.
        blur_px: range of the blur's radius.

    Returns:
        (H, W, 3) uint8.
    """
    rgb_HW3 = rgb_HW3 * np.float32(rng.uniform(0.85, 1.15))
    # one plane of noise for all channels: luminance noise is what JPEG leaves over, and it is three times as fast
    grain_HW1 = rng.standard_normal((*rgb_HW3.shape[:2], 1), np.float32) * np.float32(rng.uniform(0.3, 4))
    image = Image.fromarray(np.clip(rgb_HW3 + grain_HW1, 0, 255).astype(np.uint8))
    radius = float(rng.uniform(*blur_px))
    if radius > 0.25:
        image = image.filter(ImageFilter.GaussianBlur(radius))
    quality = int(rng.integers(55, 97))
    if rng.random() < 0.7:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        image = Image.open(buffer)
    return np.asarray(image)
