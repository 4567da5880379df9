"""Views of clay for self-supervision: windows measured in signs, and what differs between photographs of the same clay.

An image gives a few global and several local views. Windows are as many sign heights high as the settings say, so that
a view holds a few signs whatever the photograph's resolution; or they lie around one sign, stretched as a classifier's
crops are, so that a place in a view is a place in the sign. Light, colour, focus, grain and ground change; nothing is
mirrored or turned over, for a mirrored sign is another sign, or none.
"""

import math
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt

UInt8s = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Span = tuple[float, float]

_COARSE = 4  # px: window centres are drawn on a grid
_TRIES = 4
_SHIFTED = 0.08  # of a sign's side: how far the middle of a view around it moves
_FAINT = 0.05  # of Sobel's slope at 64 px: one or two grey levels a pixel
_GROUNDS = (*["black"] * 5, *["grey"] * 3, *["noise"] * 2)  # half of them black, as museums have it
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class ViewSettings:
    """How views are cut and changed.

    Attributes:
        global_px, local_px: sides of the views, px.
        globals_, locals_: how many of an image.
        global_signs, local_signs: sign heights that a window is high; drawn log-uniformly.
        global_boxes, local_boxes: sides of windows around a sign, as a share of its box's; for views of one sign.
        gram_px: side of a second picture of each global window, in the same light, without blur, grain and
            compression, for the anchor; 0 for none. It changes nothing of the other views.
        sign_px: height of a sign in the tiles, px.
        rotate: largest rotation, degrees.
        stretch: windows are up to 1 + stretch times wider or narrower than high.
        clay: least share of clay with writing in a window, where the tile has such a place.
        light: largest change of brightness across a view, as a share.
        relief: strength of the raking light that is laid over the picture's own relief.
        colour: largest change of brightness, contrast and, half of it, of single channels.
        grey, blur, grain, jpeg: probabilities.
    """

    global_px: int = 64
    local_px: int = 32
    globals_: int = 2
    locals_: int = 8
    global_signs: Span = (2.5, 6.0)
    local_signs: Span = (0.9, 2.5)
    global_boxes: Span = (1.0, 1.5)
    local_boxes: Span = (0.5, 0.9)
    gram_px: int = 0
    sign_px: float = 32.0
    rotate: float = 6.0
    stretch: float = 0.15
    clay: float = 0.6
    light: float = 0.5
    relief: float = 0.25
    colour: float = 0.3
    grey: float = 0.25
    blur: float = 0.4
    grain: float = 0.3
    jpeg: float = 0.2

    def __post_init__(self) -> None:
        if min(self.global_px, self.local_px) < 8 or self.globals_ < 1 or self.locals_ < 0 or self.gram_px < 0:
            raise ValueError(f"{self}: expected views of at least 8 px, and one global view or more")
        for name in ("global_signs", "local_signs", "global_boxes", "local_boxes"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} is {(low, high)}; expected (smallest, largest), above 0")
        if not (self.sign_px > 0 and 0 <= self.rotate <= 15 and 0 <= self.stretch <= 1):
            raise ValueError(f"{self}: expected sign_px above 0, rotate 0 to 15 degrees, stretch 0 to 1")


@dataclass(frozen=True)
class Views:
    """Views of one image, uint8 (n, px, px, 3)."""

    globals_G: UInt8s
    locals_L: UInt8s
    grams_G: UInt8s | None


@dataclass(frozen=True)
class _Window:
    """Where a view is cut: centre and size in px of the tile, and by how many degrees its content turns."""

    x: float
    y: float
    width: float
    height: float
    angle: float


@dataclass(frozen=True)
class _Light:
    """Ground, light and colour of a view; the same numbers fit any resolution."""

    ground: str
    level: float
    seed: int
    slope: tuple[float, float]
    raking: tuple[float, float]
    gain_3: F32
    contrast: float
    gamma: float
    grey: bool


def multi_crop(
    tile_SS3: UInt8s,
    clay_SS: UInt8s,
    settings: ViewSettings,
    rng: np.random.Generator,
    sign_4: npt.ArrayLike | None = None,
) -> Views:
    """Cut and change all views of a tile.

    Args:
        tile_SS3: uint8 (S, S, 3), signs ``settings.sign_px`` high.
        clay_SS: uint8 or bool (S, S), not 0 on clay and largest where there is writing, on which windows are centred;
            what is not clay becomes black, grey or noise.
        settings: sizes, numbers and strengths.
        rng: the source of all randomness.
        sign_4: the box xyxy px of a sign that all views are to show; without it they show what the tile has.

    Returns:
        Global, local and, where ``gram_px`` is set, anchor views.

    Raises:
        ValueError: tile and mask do not fit together.

    Source:
        Multi-crop: Caron et al. 2020 (SwAV), section 3.2. Larger views for the anchor: Siméoni et al. 2025 (DINOv3),
        section 4.3.
    """
    if tile_SS3.shape != (*clay_SS.shape, 3):
        raise ValueError(f"tile {tile_SS3.shape} with clay {clay_SS.shape}; expected (S, S, 3) and (S, S)")
    if sign_4 is None:
        tile_SS3, clay_SS = _image(tile_SS3, clay_SS, settings, rng)
        places = _Places(clay_SS)
        whole = partial(_draw_window, places, settings.global_signs, settings, rng)
        part = partial(_draw_window, places, settings.local_signs, settings, rng)
    else:
        box_4 = np.asarray(sign_4, np.float64)
        whole = partial(_draw_around, box_4, settings.global_boxes, settings, rng)
        part = partial(_draw_around, box_4, settings.local_boxes, settings, rng)
    wholes, parts, anchors = [], [], []
    for _ in range(settings.globals_):
        window, light = whole(), _draw_light(settings, rng)
        wholes.append(_photograph(_lit(_cut(tile_SS3, clay_SS, window, settings.global_px), light), settings, rng))
        if settings.gram_px:
            anchors.append(_developed(_lit(_cut(tile_SS3, clay_SS, window, settings.gram_px), light)))
    for _ in range(settings.locals_):
        window, light = part(), _draw_light(settings, rng)
        parts.append(_photograph(_lit(_cut(tile_SS3, clay_SS, window, settings.local_px), light), settings, rng))
    local_shape = (settings.locals_, settings.local_px, settings.local_px, 3)
    locals_L = np.stack(parts) if parts else np.zeros(local_shape, np.uint8)
    return Views(np.stack(wholes), locals_L, np.stack(anchors) if anchors else None)


def _image(
    tile_SS3: UInt8s, clay_SS: UInt8s, settings: ViewSettings, rng: np.random.Generator
) -> tuple[UInt8s, UInt8s]:
    """Cut the part of a tile that all views of an image are cut from, as high and wide as the largest of them.

    Views from all over a tile would have nothing in common, and nothing could be learned from one about another.
    """
    turned = math.cos(math.radians(settings.rotate)) + math.sin(math.radians(settings.rotate))
    side = settings.global_signs[1] * settings.sign_px * (1 + settings.stretch) * turned + 4
    rows, columns = clay_SS.shape
    places = _Places(clay_SS)
    best = max((places.draw(side, side, rng) for _ in range(_TRIES)), key=lambda place: place[2])
    x0, y0 = (max(0, math.floor(centre - side / 2)) for centre in best[:2])
    x1, y1 = min(columns, math.ceil(x0 + side)), min(rows, math.ceil(y0 + side))
    return tile_SS3[y0:y1, x0:x1], clay_SS[y0:y1, x0:x1]


class _Places:
    """Where windows may stand on a tile: sums over a coarse mask tell the writing in any of them at once."""

    def __init__(self, clay_SS: UInt8s) -> None:
        self.shape = clay_SS.shape
        coarse = np.ascontiguousarray(clay_SS[_COARSE // 2 :: _COARSE, _COARSE // 2 :: _COARSE])
        coarse = coarse == coarse.max()  # where nothing is known to be clay, anywhere will do
        self.sums = cv2.integral(coarse.astype(np.uint8))
        self.clay = np.flatnonzero(coarse)
        self.columns = coarse.shape[1]

    def draw(self, width: float, height: float, rng: np.random.Generator) -> tuple[float, float, float]:
        """Return a centre (x, y) on writing, moved into the tile where there is room, and the share of it there."""
        row, column = divmod(int(self.clay[rng.integers(len(self.clay))]), self.columns)
        x, y = ((value + 0.5 + rng.uniform(-0.5, 0.5)) * _COARSE for value in (column, row))
        x, y = _inside(x, width, self.shape[1]), _inside(y, height, self.shape[0])
        rows, columns = self.sums.shape
        x0, x1 = (min(max(round((x + side * width / 2) / _COARSE), 0), columns - 1) for side in (-1, 1))
        y0, y1 = (min(max(round((y + side * height / 2) / _COARSE), 0), rows - 1) for side in (-1, 1))
        held = int(self.sums[y1, x1]) - int(self.sums[y0, x1]) - int(self.sums[y1, x0]) + int(self.sums[y0, x0])
        return x, y, held * _COARSE**2 / (width * height)


def _inside(centre: float, side: float, length: int) -> float:
    return length / 2 if side >= length else min(max(centre, side / 2), length - side / 2)


def _draw_window(places: _Places, signs: Span, settings: ViewSettings, rng: np.random.Generator) -> _Window:
    """Draw a window with enough writing; the best of a few tries where none has."""
    height = settings.sign_px * math.exp(rng.uniform(math.log(signs[0]), math.log(signs[1])))
    width = height * math.exp(rng.uniform(-1, 1) * math.log1p(settings.stretch))
    angle = float(rng.uniform(-settings.rotate, settings.rotate))
    best = (0.0, 0.0, -1.0)
    for _ in range(_TRIES):
        found = places.draw(width, height, rng)
        best = max(best, found, key=lambda place: place[2])
        if best[2] >= settings.clay:
            break
    return _Window(best[0], best[1], width, height, angle)


def _draw_around(box_4: F64, shares: Span, settings: ViewSettings, rng: np.random.Generator) -> _Window:
    """Draw a window around a sign or, where it is smaller than the sign's box, of a part of it."""
    (x0, y0, x1, y1), share = box_4, math.exp(rng.uniform(math.log(shares[0]), math.log(shares[1])))
    stretch = math.exp(rng.uniform(-0.5, 0.5) * math.log1p(settings.stretch))
    free = max(0.0, 1 - share) / 2 + _SHIFTED
    shift_x, shift_y = rng.uniform(-free, free, 2)
    width, height = x1 - x0, y1 - y0
    return _Window(
        x=(x0 + x1) / 2 + shift_x * width,
        y=(y0 + y1) / 2 + shift_y * height,
        width=max(_COARSE, width * share * stretch),
        height=max(_COARSE, height * share / stretch),
        angle=float(rng.uniform(-settings.rotate, settings.rotate)),
    )


def _cut(tile_SS3: UInt8s, clay_SS: UInt8s, window: _Window, px: int) -> UInt8s:
    """Return a window as (px, px, 4); what lies beyond the tile is no clay.

    The region around is shrunk first, by averaging, so that the turn that follows does not alias.
    """
    radians = math.radians(window.angle)
    cos, sin = math.cos(radians), math.sin(radians)
    half_w = (abs(cos) * window.width + abs(sin) * window.height) / 2 + 2
    half_h = (abs(sin) * window.width + abs(cos) * window.height) / 2 + 2
    rows, columns = clay_SS.shape
    x0, y0 = max(0, math.floor(window.x - half_w)), max(0, math.floor(window.y - half_h))
    x1, y1 = min(columns, math.ceil(window.x + half_w)), min(rows, math.ceil(window.y + half_h))
    region = np.empty((y1 - y0, x1 - x0, 4), np.uint8)
    region[..., :3] = tile_SS3[y0:y1, x0:x1]
    region[..., 3] = np.where(clay_SS[y0:y1, x0:x1], 255, 0)
    fx, fy = min(1.0, px / window.width), min(1.0, px / window.height)
    if min(fx, fy) < 1:
        size = max(1, round((x1 - x0) * fx)), max(1, round((y1 - y0) * fy))
        fx, fy = size[0] / (x1 - x0), size[1] / (y1 - y0)
        region = cv2.resize(region, size, interpolation=cv2.INTER_AREA)
    # a view's pixel, from its middle, turned, in px of the tile and then of the region; pixels have their centre at .5
    a, b, c, d = (v / px for v in (cos * window.width, sin * window.height, -sin * window.width, cos * window.height))
    ax, bx, ay, by = a * fx, b * fx, c * fy, d * fy
    middle = (px - 1) / 2
    to_region = np.array(
        [
            [ax, bx, (window.x - x0) * fx - 0.5 - (ax + bx) * middle],
            [ay, by, (window.y - y0) * fy - 0.5 - (ay + by) * middle],
        ]
    )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(region, to_region, (px, px), flags=flags, borderMode=cv2.BORDER_CONSTANT))


def _draw_light(settings: ViewSettings, rng: np.random.Generator) -> _Light:
    """Draw ground, light and colour, always by the same number of draws."""
    ground = _GROUNDS[int(rng.integers(len(_GROUNDS)))]
    around, raked = rng.uniform(0, 2 * math.pi, 2)
    slope, strength = rng.uniform(0, settings.light), rng.uniform(0, settings.relief)
    colour = settings.colour
    gain_3 = np.exp(rng.uniform(-colour, colour) + rng.uniform(-colour / 2, colour / 2, 3)).astype(np.float32)
    return _Light(
        ground=ground,
        level=float(rng.uniform(30, 225)),
        seed=int(rng.integers(2**31)),
        slope=(slope * math.cos(around), slope * math.sin(around)),
        raking=(strength * math.cos(raked), strength * math.sin(raked)),
        gain_3=gain_3,
        contrast=float(np.exp(rng.uniform(-colour, colour))),
        gamma=float(np.exp(rng.uniform(-colour, colour))),
        grey=bool(rng.random() < settings.grey),
    )


def _lit(rgba_PP4: UInt8s, light: _Light) -> F32:
    """Light and colour a window, and put the ground around its clay; (P, P, 3) float32, 0 to 255, not clipped."""
    px = len(rgba_PP4)
    cover_PP = rgba_PP4[..., 3].astype(np.float32) * np.float32(1 / 255)
    rgb_PP3 = rgba_PP4[..., :3].astype(np.float32)
    mean_3 = np.array(cv2.mean(rgba_PP4, rgba_PP4[..., 3])[:3], np.float32)
    # contrast about the clay's mean, and exposure, in one step
    rgb_PP3 *= light.contrast / 255 * light.gain_3
    rgb_PP3 += (1 - light.contrast) / 255 * light.gain_3 * mean_3
    luma_PP = rgb_PP3 @ _LUMA
    across = np.arange(px, dtype=np.float32) / np.float32(px) - np.float32(0.5)
    shine_PP = np.float32(light.slope[0]) * across + np.float32(light.slope[1]) * across[:, None]
    shine_PP += 1 + _raked(luma_PP, cover_PP, light.raking)
    if light.grey:
        rgb_PP3 = cv2.merge([luma_PP, luma_PP, luma_PP])
    rgb_PP3 *= shine_PP[..., None]
    rgb_PP3 = cv2.pow(np.clip(rgb_PP3, 0, 1), light.gamma)
    cover_PP1 = cover_PP[..., None]
    return np.asarray(rgb_PP3 * (255 * cover_PP1) + _ground(px, light) * (1 - cover_PP1), np.float32)


def _raked(luma_PP: F32, cover_PP: F32, raking: tuple[float, float]) -> F32:
    """Take brightness for height, and light its slopes from one side; about as strong as ``raking`` is long."""
    smooth_PP = cv2.GaussianBlur(luma_PP, (0, 0), max(0.6, len(luma_PP) / 64))
    slope_PP = np.float32(raking[0]) * cv2.Sobel(smooth_PP, cv2.CV_32F, 1, 0)
    slope_PP += np.float32(raking[1]) * cv2.Sobel(smooth_PP, cv2.CV_32F, 0, 1)
    slope_PP *= cover_PP > 0.99  # at the rim there is no slope but the edge of the mask
    # where all slopes are faint they stay so: what is left is grain
    usual = math.sqrt(cv2.norm(slope_PP, cv2.NORM_L2SQR) / slope_PP.size) + _FAINT * 64 / len(luma_PP)
    strength = math.hypot(*raking)
    return np.asarray(np.clip(slope_PP * np.float32(strength / usual), -2.5 * strength, 2.5 * strength), np.float32)


def _ground(px: int, light: _Light) -> F32 | float:
    if light.ground == "black":
        return 0.0
    if light.ground == "grey":
        return light.level
    noise_PP3 = np.random.default_rng(light.seed).standard_normal((px, px, 3), np.float32)
    return np.asarray(np.clip(light.level + 40 * noise_PP3, 0, 255), np.float32)


def _photograph(rgb_PP3: F32, settings: ViewSettings, rng: np.random.Generator) -> UInt8s:
    """Add what lens, sensor and file do: blur, grain and compression."""
    if rng.random() < settings.blur:
        rgb_PP3 = cv2.GaussianBlur(rgb_PP3, (0, 0), rng.uniform(0.3, 1.1))
    if rng.random() < settings.grain:
        rgb_PP3 = rgb_PP3 + rng.standard_normal(rgb_PP3.shape, np.float32) * np.float32(rng.uniform(2, 12))
    rgb = _developed(rgb_PP3)
    if rng.random() < settings.jpeg:
        quality = int(rng.integers(40, 96))
        _, packed = cv2.imencode(".jpg", rgb[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
        rgb = np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR))[..., ::-1]
    return rgb


def _developed(rgb_PP3: F32) -> UInt8s:
    return np.clip(np.rint(rgb_PP3), 0, 255).astype(np.uint8)
