"""Where everything is on a synthetic tablet: faces on the picture, lines on the faces, signs in the lines, and breaks.

A plan holds geometry only, in pixels of the picture; `scene.py` paints it. Lines are dense and signs nearly touch, as
on real tablets; each line is slanted and bent a little, and each sign is turned with it, so that boxes taken from the
pressed signs are exact.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dubsar.datasets.synthetic.clay import Pose
from dubsar.datasets.synthetic.glyphs import REFERENCE_PX, GlyphFont
from dubsar.datasets.synthetic.sentences import LOST, TextLine, grammar_line
from dubsar.datasets.tablet import Damage, FaceName

INTACT_SHARE = 0.85  # a sign is intact where at least this share of its ink is visible
BROKEN_SHARE = 0.3  # and broken where less than this share is

Box = tuple[int, int, int, int]
Polygon = npt.NDArray[np.float64]  # (N, 2), x and y in pixels

_ORDER: tuple[FaceName, ...] = ("obverse", "reverse", "bottom", "right", "top", "left")
MAX_FACES = len(_ORDER)


class _Source(Protocol):
    def __call__(self, width: float) -> TextLine | None: ...


@dataclass(frozen=True)
class Style:
    """The hand of one tablet: sizes in pixels, condensing, gaps and slants as shares of the sign height."""

    sign_height_px: float
    pitch_px: float
    condense: float
    gap: float
    shear: float
    tilt: float
    bend: float


@dataclass(frozen=True)
class PlacedSign:
    """A glyph with its place; `LOST` as glyph is a lost stretch. ``hand`` seeds the shape that the scribe gave it."""

    glyph: str
    pose: Pose
    hand: int = 0


@dataclass(frozen=True)
class PlacedLine:
    """A line of text, one placed sign for each of its glyphs."""

    text: TextLine
    signs: tuple[PlacedSign, ...]


@dataclass(frozen=True)
class FacePlan:
    """One view of the tablet.

    Attributes:
        box_px: (x0, y0, x1, y1) of the unbroken face.
        outline: its rounded outline.
        cuts: polygons where clay is missing altogether.
        breaks: polygons where the surface is gone.
        rulings: polylines pressed between the lines.
    """

    name: FaceName
    box_px: Box
    outline: Polygon
    cuts: tuple[Polygon, ...] = ()
    breaks: tuple[Polygon, ...] = ()
    lines: tuple[PlacedLine, ...] = ()
    rulings: tuple[Polygon, ...] = ()


def damage_of(visible_share: float) -> Damage:
    """Name the damage of a sign by the visible share of its ink, 0 to 1."""
    if visible_share >= INTACT_SHARE:
        return "intact"
    return "damaged" if visible_share >= BROKEN_SHARE else "broken"


def draw_style(rng: np.random.Generator, font: GlyphFont, sign_height_px: tuple[float, float]) -> Style:
    """Draw the hand of a tablet; signs are condensed to the proportions of real ones, whatever the font's."""
    height = float(rng.uniform(*sign_height_px))
    return Style(
        sign_height_px=height,
        pitch_px=height * float(rng.uniform(1.0, 1.25)),
        condense=float(rng.uniform(1.0, 1.5)) / font.aspect,
        gap=float(rng.uniform(0.02, 0.16)),
        shear=float(rng.normal(0, 0.05)),
        tilt=float(rng.normal(0, 0.015)),
        bend=float(rng.normal(0, 0.012)),
    )


def place_faces(rng: np.random.Generator, size: tuple[int, int], n_faces: int) -> list[tuple[FaceName, Box]]:
    """Share out a picture among the views of a tablet, as on museum composites.

    Obverse in the middle, edges beside, above and below it, the reverse under (or, on wide pictures, beside) it.

    Args:
        rng: source of randomness.
        size: width and height of the picture, pixels.
        n_faces: 1 to 6.

    Returns:
        Names and boxes in reading order.

    Raises:
        ValueError: ``n_faces`` is not 1 to 6, or the picture is too small for a tablet.
    """
    width, height = size
    if not 1 <= n_faces <= MAX_FACES:
        raise ValueError(f"faces is {n_faces}; expected 1 to {MAX_FACES}")
    if min(size) < 64:
        raise ValueError(f"size is {width} x {height} px; expected at least 64 x 64")
    names = _ORDER[:n_faces]
    wide = width > height and n_faces > 1
    edge = float(rng.uniform(0.13, 0.2))
    columns = [("left", edge), ("obverse", 1.0), ("right", edge)] + ([("reverse", 1.0)] if wide else [])
    rows = [("top", edge), ("obverse", 1.0), ("bottom", edge)] + ([] if wide else [("reverse", 1.0)])
    rim = 0.04 * min(size)
    bar = 0.09 * height  # the scale bar stands below
    x_spans = _spans([(n, s) for n, s in columns if n in names], rim, width - rim, rng.uniform(0.86, 1))
    y_spans = _spans([(n, s) for n, s in rows if n in names], rim, height - rim - bar, rng.uniform(0.88, 1))
    boxes = {}
    for name in names:
        x0, x1 = x_spans.get(name, x_spans["obverse"])
        y0, y1 = y_spans.get(name, y_spans["obverse"])
        boxes[name] = (round(x0), round(y0), round(x1), round(y1))
    return [(name, boxes[name]) for name in names]


def plan_face(
    rng: np.random.Generator, name: FaceName, box_px: Box, style: Style, font: GlyphFont, source: _Source
) -> FacePlan:
    """Lay out one face: outline, text, rulings, breaks.

    Args:
        rng: source of randomness.
        name: which face; left and right edges stay blank, top and bottom hold a line or two at most.
        box_px: its place.
        style: the hand.
        font: gives the signs' widths.
        source: gives a line that fits a width (in sign heights), or None when there is no more text.
    """
    x0, y0, x1, y1 = box_px
    lines: list[PlacedLine] = []
    rulings: list[Polygon] = []
    if name not in ("left", "right") and not (name == "reverse" and rng.random() < 0.15):
        lines, rulings = _write(rng, name, box_px, style, font, source)
    size = min(x1 - x0, y1 - y0)
    cuts = [_cut(rng, box_px) for _ in range(int(rng.choice(4, p=(0.35, 0.35, 0.2, 0.1))))]
    breaks = [
        _blob(rng, rng.uniform(x0, x1), rng.uniform(y0, y1), size * float(rng.uniform(0.04, 0.16)))
        for _ in range(int(rng.integers(0, 4)))
    ]
    for line in lines:
        breaks += [_lost_patch(rng, sign, style) for sign in line.signs if sign.glyph == LOST]
    outline = _outline(rng, box_px, 0.02 * size)
    return FacePlan(name, box_px, outline, tuple(cuts), tuple(breaks), tuple(lines), tuple(rulings))


def natural_width(glyphs: Sequence[str], style: Style, font: GlyphFont) -> float:
    """Width of a line before it is fitted, in sign heights."""
    return sum(_glyph_width(g, style, font) + style.gap for g in glyphs)


def fitted(lines: Iterator[TextLine], style: Style, font: GlyphFont) -> _Source:
    """Make a source of corpus lines: short ones are joined, too long ones passed over, and cut if there are only such.

    A cut line has no text: it is not known which part of the transliteration belongs to the signs that are left.
    """

    def source(width: float) -> TextLine | None:
        chosen: TextLine | None = None
        overlong: TextLine | None = None
        for _, line in zip(range(12), lines, strict=False):
            joined = line if chosen is None else _join(chosen, line)
            need = natural_width(joined.glyphs, style, font)
            if need * 0.72 > width:
                overlong = overlong or line
                if chosen is not None:
                    break
                continue
            chosen = joined
            if need > 0.75 * width:
                break
        return chosen or (_shorten(overlong, width, style, font) if overlong else None)

    return source


def invented(rng: np.random.Generator, style: Style, font: GlyphFont, covered: Callable[[str], bool]) -> _Source:
    """Make a source of lines from the small grammar, as long as fits."""

    def source(width: float) -> TextLine | None:
        line: TextLine | None = None
        for _ in range(40):
            word = grammar_line(rng, 1, covered)
            longer = word if line is None else _join(line, word)
            if natural_width(longer.glyphs, style, font) > 1.15 * width:
                break
            line = longer
        return line if line and line.glyphs else None

    return source


def _glyph_width(glyph: str, style: Style, font: GlyphFont) -> float:
    return 1.5 if glyph == LOST else font.shape(glyph).width_px / REFERENCE_PX * style.condense


def _join(first: TextLine, second: TextLine) -> TextLine:
    known = len(first.readings) == len(first.glyphs) and len(second.readings) == len(second.glyphs)
    text = " ".join(t for t in (first.text, second.text) if t)
    return TextLine(first.glyphs + second.glyphs, text, first.readings + second.readings if known else ())


def _shorten(line: TextLine, width: float, style: Style, font: GlyphFont) -> TextLine:
    glyphs = line.glyphs
    while len(glyphs) > 1 and natural_width(glyphs, style, font) * 0.72 > width:
        glyphs = glyphs[:-1]
    return TextLine(glyphs, "")


def _write(
    rng: np.random.Generator, name: FaceName, box_px: Box, style: Style, font: GlyphFont, source: _Source
) -> tuple[list[PlacedLine], list[Polygon]]:
    x0, y0, x1, y1 = box_px
    height, pitch = style.sign_height_px, style.pitch_px
    side = 0.03 * (x1 - x0) + 0.15 * height
    left, right = x0 + side, x1 - side
    # the line's middle at column x: slanted by tilt, bent by bend (sagitta as a share of the width)
    half = max(1.0, (x1 - x0) / 2)
    centre = (x0 + x1) / 2
    slack = abs(style.tilt) * half + abs(style.bend) * half
    top, bottom = y0 + 0.75 * height + slack, y1 - 0.75 * height - slack
    room = int((bottom - top) // pitch) + 1 if bottom >= top else 0
    if name in ("top", "bottom"):
        room = min(room, int(rng.integers(0, 3)))
    elif name == "reverse" or rng.random() < 0.3:
        room = round(room * float(rng.uniform(0.3, 1)))
    lines: list[PlacedLine] = []
    rulings: list[Polygon] = []
    ruled = rng.random() < 0.35
    for row in range(room):
        text = source((right - left) / height) if right - left > height else None
        if text is None:
            break
        middle = top + row * pitch + float(rng.normal(0, 0.03)) * height

        def curve(x: float, base: float = middle) -> tuple[float, float]:
            u = (x - centre) / half
            return base + half * (style.tilt * u + style.bend * u * u), math.atan(style.tilt + 2 * style.bend * u)

        lines.append(PlacedLine(text, _place(rng, text, (left, right), curve, style, font)))
        if ruled and rng.random() < (1.0 if pitch > 1.2 * height else 0.25):
            xs = np.linspace(x0 - 2, x1 + 2, 24)
            for offset in (0.0, 0.07) if rng.random() < 0.2 else (0.0,):
                rulings.append(np.array([(x, curve(x)[0] + pitch / 2 + offset * height) for x in xs]))
    return lines, rulings


def _place(
    rng: np.random.Generator,
    text: TextLine,
    span: tuple[float, float],
    curve: Callable[[float], tuple[float, float]],
    style: Style,
    font: GlyphFont,
) -> tuple[PlacedSign, ...]:
    height, (left, right) = style.sign_height_px, span
    widths = [_glyph_width(g, style, font) * height * float(rng.normal(1, 0.04)) for g in text.glyphs]
    gaps = [style.gap * height + abs(float(rng.normal(0, 0.03))) * height for _ in widths]
    ratio = (right - left) / max(1.0, sum(widths) + sum(gaps[:-1]))
    squeeze = min(ratio, 1.0) if ratio < 1 or ratio > 1.5 else min(ratio, 1.12)
    justified = 1 < ratio <= 1.5
    spare = (right - left) - squeeze * (sum(widths) + sum(gaps[:-1]))
    extra = spare / max(1, len(widths) - 1) if justified else 0.0
    signs: list[PlacedSign] = []
    x = left
    for glyph, width, gap in zip(text.glyphs, widths, gaps, strict=True):
        centre = x + width * squeeze / 2
        y, angle = curve(centre)
        size = height * float(rng.normal(1, 0.03))
        rise = 0.0 if glyph == LOST else font.shape(glyph).rise_px / REFERENCE_PX * size
        ink = 1.0 if glyph == LOST else font.shape(glyph).width_px / REFERENCE_PX
        pose = Pose(
            x=centre + rise * math.sin(angle),
            y=y - rise * math.cos(angle) + float(rng.normal(0, 0.02)) * height,
            height_px=size,
            stretch=width * squeeze / (ink * size),
            shear=style.shear + float(rng.normal(0, 0.02)),
            angle=angle + float(rng.normal(0, 0.012)),
        )
        signs.append(PlacedSign(glyph, pose, int(rng.integers(1 << 31))))
        x += (width + gap) * squeeze + extra
    return tuple(signs)


def _spans(parts: list[tuple[str, float]], start: float, stop: float, fill: float) -> dict[str, tuple[float, float]]:
    gap = 0.02 * (stop - start)
    unit = ((stop - start) * fill - gap * (len(parts) - 1)) / sum(share for _, share in parts)
    at = start + (stop - start) * (1 - fill) / 2
    spans = {}
    for name, share in parts:
        spans[name] = (at, at + unit * share)
        at += unit * share + gap
    return spans


def _outline(rng: np.random.Generator, box_px: Box, jitter_px: float) -> Polygon:
    """A rounded rectangle (superellipse) with a wavy rim that stays inside the box."""
    x0, y0, x1, y1 = box_px
    angles = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    power = 2 / rng.uniform(5, 14)
    cos, sin = np.cos(angles), np.sin(angles)
    unit = np.stack((np.sign(cos) * np.abs(cos) ** power, np.sign(sin) * np.abs(sin) ** power), 1)
    wave = sum(rng.normal() / k * np.cos(k * angles + rng.uniform(0, 6.3)) for k in range(2, 9))
    half = np.array(((x1 - x0) / 2, (y1 - y0) / 2))
    radius = 1 - np.clip(np.abs(wave) * jitter_px / half.min() + rng.uniform(0, 0.004, 96), 0, 0.2)[:, None]
    return np.asarray(np.array(((x0 + x1) / 2, (y0 + y1) / 2)) + unit * half * radius)


def _cut(rng: np.random.Generator, box_px: Box) -> Polygon:
    """A jagged half plane that takes away a corner or a side."""
    x0, y0, x1, y1 = box_px
    centre = np.array(((x0 + x1) / 2, (y0 + y1) / 2))
    half = np.array(((x1 - x0) / 2, (y1 - y0) / 2))
    angle = rng.uniform(0, 2 * np.pi)
    normal = np.array((math.cos(angle), math.sin(angle)))
    reach = float(np.abs(normal) @ half)
    along = np.array((-normal[1], normal[0]))
    length = 2.2 * float(half.max())
    steps = np.linspace(-length, length, 60)
    jag = np.cumsum(rng.normal(0, 1, 60))
    jag = (jag - np.linspace(jag[0], jag[-1], 60)) * 0.012 * length
    depth = reach * rng.uniform(0.62, 0.98) + jag
    rim = centre + steps[:, None] * along + depth[:, None] * normal
    far = centre + normal * 3 * length
    return np.concatenate((rim, [far + along * length, far - along * length]))


def _blob(rng: np.random.Generator, x: float, y: float, radius_px: float, stretch: float = 1.0) -> Polygon:
    """An irregular patch around a point."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    wave = sum(rng.normal() / k * np.cos(k * angles + rng.uniform(0, 6.3)) for k in range(2, 8))
    radius = radius_px * np.clip(1 + 0.25 * wave + rng.normal(0, 0.05, 40), 0.4, 1.8)
    return np.stack((x + radius * np.cos(angles) * stretch, y + radius * np.sin(angles)), 1)


def _lost_patch(rng: np.random.Generator, sign: PlacedSign, style: Style) -> Polygon:
    height = style.sign_height_px
    half_width = sign.pose.stretch * height / 2
    return _blob(rng, sign.pose.x, sign.pose.y, 0.55 * height, max(0.6, half_width / (0.55 * height)))
