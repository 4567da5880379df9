"""Synthetic tablets with exact boxes, reading order and text: pressed, broken, lit and photographed.

A picture is made as a tablet is: a rounded body of clay, wedges pressed into it, pieces broken off, a lamp (from the upper
left, 315 degrees, by the field's convention), a camera. Boxes are those of the visible ink, taken from the pressed signs
themselves, so that they are exact whatever the slant and bend of the line.

No font has Hittite sign shapes: see `glyphs.py`.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from scipy import ndimage

from dubsar.datasets.synthetic import photo
from dubsar.datasets.synthetic.clay import (
    F32,
    Light,
    Stylus,
    clay_colour,
    fractal,
    noise,
    paint_clay,
    press,
    shade,
    stamp,
    surface_noise,
)
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont
from dubsar.datasets.synthetic.layout import (
    MAX_FACES,
    FacePlan,
    PlacedLine,
    Polygon,
    damage_of,
    draw_style,
    fitted,
    invented,
    place_faces,
    plan_face,
)
from dubsar.datasets.synthetic.sentences import LOST, attested_text, corpus_lines
from dubsar.datasets.tablet import BoxXYXY, Candidate, Face, Line, Sign, Tablet

PROVENANCE = "synthetic"

_FACE_ODDS = (0.34, 0.26, 0.14, 0.1, 0.08, 0.08)
_MIN_INK_PX = 12  # fewer visible pixels of ink are no sign
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SyntheticTablet:
    """A picture and what stands on it."""

    rgb_HW3: npt.NDArray[np.uint8]
    tablet: Tablet


@dataclass(frozen=True)
class TabletPlan:
    """Everything that is decided before painting; the same plan always gives the same picture."""

    seed: int
    size: tuple[int, int]
    font: GlyphFont
    faces: tuple[FacePlan, ...]
    stylus: Stylus
    light: Light


def render_tablet(
    seed: int,
    *,
    fonts: Sequence[GlyphFont],
    lines: Sequence[tuple[str, str]] | None = None,
    size: tuple[int, int] = (900, 1100),
    light_deg: float | None = None,
    faces: int | None = None,
    sign_height_px: tuple[float, float] = (30.0, 62.0),
    glyphs: Collection[str] = (),
) -> SyntheticTablet:
    """Render one tablet; the same arguments always give the same bytes.

    Args:
        seed: identifies the tablet.
        fonts: one is chosen for the tablet.
        lines: pairs of signs and transliteration to draw from; None = a small own grammar; empty = a blank tablet.
        size: width and height of the picture, pixels.
        light_deg: where the light comes from, degrees clockwise from the top; None = mostly about 315, else any.
        faces: how many views of the tablet, 1 to 6; None = random.
        sign_height_px: smallest and largest height of a full-size sign.
        glyphs: glyphs of several code points that count as one sign, added to those that the fonts' tables know.

    Returns:
        The picture, (H, W, 3) uint8, and its tablet. Signs that are lost altogether have no box and no candidate;
        runs of them are one sign with damage "broken". A line's text holds only what is not lost.

    Raises:
        FontError: ``fonts`` is empty.
        ValueError: a size, height or number of faces that no tablet can have.
    """
    plan = plan_tablet(
        seed,
        fonts=fonts,
        lines=lines,
        size=size,
        light_deg=light_deg,
        faces=faces,
        sign_height_px=sign_height_px,
        glyphs=glyphs,
    )
    return paint_tablet(plan)


def plan_tablet(
    seed: int,
    *,
    fonts: Sequence[GlyphFont],
    lines: Sequence[tuple[str, str]] | None,
    size: tuple[int, int],
    light_deg: float | None,
    faces: int | None,
    sign_height_px: tuple[float, float],
    glyphs: Collection[str],
) -> TabletPlan:
    """Decide everything about a tablet; for the arguments see `render_tablet`.

    Raises:
        FontError: ``fonts`` is empty.
        ValueError: a size, height or number of faces that no tablet can have.
    """
    if not fonts:
        raise FontError("no font given; expected at least one GlyphFont (see available_fonts)")
    if not 4 <= sign_height_px[0] <= sign_height_px[1]:
        raise ValueError(f"sign_height_px is {sign_height_px}; expected (smallest, largest), at least 4 pixels")
    rng = np.random.default_rng((seed, 0))
    font = fonts[int(rng.integers(len(fonts)))]
    style = draw_style(rng, font, sign_height_px)
    if lines is None:
        source = invented(rng, style, font, font.covers)
    else:
        sequences = frozenset(g for g in glyphs if len(g) > 1).union(*(f.sequences for f in fonts))
        source = fitted(corpus_lines(rng, lines, sequences, font.covers), style, font)
    n_faces = faces if faces is not None else 1 + int(rng.choice(MAX_FACES, p=_FACE_ODDS))
    places = place_faces(rng, size, n_faces)
    plans = tuple(plan_face(rng, name, box, style, font, source) for name, box in places)
    stylus = Stylus(float(rng.uniform(0.8, 3.2)), float(rng.uniform(0.7, 1.4)), float(rng.uniform(4, 8)))
    return TabletPlan(seed, size, font, plans, stylus, draw_light(rng, light_deg))


def draw_light(rng: np.random.Generator, light_deg: float | None = None) -> Light:
    """Draw a light: two in three from about 315 degrees, the rest from anywhere, unless the direction is given."""
    usual, spread, anywhere = rng.random() < 0.67, rng.normal(0, 18), rng.uniform(0, 360)
    azimuth = light_deg if light_deg is not None else (315.0 + spread if usual else anywhere)
    return Light(float(azimuth) % 360, float(rng.uniform(22, 52)), float(rng.uniform(0.12, 0.42)))


def paint_tablet(plan: TabletPlan) -> SyntheticTablet:
    """Paint a plan and label what remains visible of its signs."""
    rng = np.random.default_rng((plan.seed, 1))
    width, height = plan.size
    body_HW, gone_HW = _masks(plan)
    groove_HW = np.zeros((height, width), np.float32)
    faces = tuple(_press_face(plan, face, groove_HW, body_HW & ~gone_HW) for face in plan.faces)
    for face in plan.faces:
        for line in face.rulings:
            _rule(groove_HW, line, 0.06 * _median_height(face))
    height_HW = _relief(rng, plan, body_HW, gone_HW, groove_HW)
    rgb_HW3 = paint_clay(rng, shade(height_HW, plan.light), clay_colour(rng))
    rgb_HW3 = photo.number(rng, rgb_HW3, [f.box_px for f in plan.faces if not f.lines])
    rgb_HW3 = photo.on_ground(rng, rgb_HW3, body_HW)
    bottom = max(f.box_px[3] for f in plan.faces)
    rgb_HW3 = photo.scale_bar(rng, rgb_HW3, bottom)
    tablet = Tablet(
        identifier=f"synthetic-{plan.seed}",
        width=width,
        height=height,
        faces=faces,
        provenance={"renderer": PROVENANCE, "font": plan.font.name, "light_deg": f"{plan.light.azimuth_deg:.1f}"},
    )
    return SyntheticTablet(photo.develop(rng, rgb_HW3), tablet)


def write_tablets(
    count: int,
    out: Path,
    seed: int,
    fonts: Sequence[GlyphFont],
    lines: Sequence[tuple[str, str]] | None = None,
) -> list[Path]:
    """Render tablets into a folder: ``synthetic-000001.png`` and ``.json`` (`Tablet.to_dict`) and so on.

    Args:
        count: how many.
        out: folder, made if absent.
        seed: tablet number n gets seed ``seed + n - 1``.
        fonts: see `render_tablet`.
        lines: see `render_tablet`.

    Returns:
        The pictures' paths.

    Raises:
        FileExistsError: ``out`` holds something already.
        FontError: ``fonts`` is empty.
    """
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise FileExistsError(
            f"{out} is not empty; synthetic tablets are never mixed with other files: name a new folder"
        )
    paths = []
    for number in range(1, count + 1):
        made = render_tablet(seed + number - 1, fonts=fonts, lines=lines)
        path = out / f"synthetic-{number:06d}.png"
        Image.fromarray(made.rgb_HW3).save(path)
        tablet = made.tablet.model_copy(update={"image": path.name})
        path.with_suffix(".json").write_text(json.dumps(tablet.to_dict(), ensure_ascii=False), encoding="utf-8")
        paths.append(path)
    return paths


def _masks(plan: TabletPlan) -> tuple[_Mask, _Mask]:
    """Where there is clay, and where its surface is broken away."""
    width, height = plan.size
    body_HW, gone_HW = np.zeros((height, width), bool), np.zeros((height, width), bool)
    for face in plan.faces:
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


def _fill(image: Image.Image, polygon: Polygon, box_px: tuple[int, int, int, int], value: int) -> None:
    points = polygon - np.array(box_px[:2])
    ImageDraw.Draw(image).polygon([(float(x), float(y)) for x, y in points], fill=value)


def _press_face(plan: TabletPlan, face: FacePlan, groove_HW: F32, visible_HW: _Mask) -> Face:
    """Press a face's signs into ``groove_HW`` and label what is visible of them."""
    pressed = [_press_line(plan, line, groove_HW, visible_HW) for line in face.lines]
    seen = [k for k, line in enumerate(pressed) if any(s.box is not None for s in line.signs)]
    kept = pressed[seen[0] : seen[-1] + 1] if seen else []  # lines broken off above and below are not known
    prime = "′" if seen and seen[0] > 0 else ""
    lines = tuple(line.model_copy(update={"label": f"{n}{prime}"}) for n, line in enumerate(kept, 1))
    x0, y0, x1, y1 = face.box_px
    return Face(name=face.name, box=(float(x0), float(y0), float(x1), float(y1)), lines=lines)


def _press_line(plan: TabletPlan, line: PlacedLine, groove_HW: F32, visible_HW: _Mask) -> Line:
    signs: list[Sign] = []
    lost: list[bool] = []
    for k, placed in enumerate(line.signs):
        box, share = None, 0.0
        if placed.glyph != LOST:
            mark = press(plan.font.shape(placed.glyph), placed.pose, plan.stylus)
            rows, columns, patch_HW = stamp(groove_HW, mark)
            ink_HW = patch_HW > 0
            seen_HW = ink_HW & visible_HW[rows, columns]
            share = float(seen_HW.sum()) / max(1, int((mark.depth_HW > 0).sum()))
            box = _box_of(seen_HW, columns.start, rows.start)
        damage = damage_of(share)
        lost.append(damage == "broken")
        if box is not None:
            reading = line.text.readings[k] if line.text.readings and damage != "broken" else ""
            candidates = (Candidate(glyph=placed.glyph, probability=1.0),)
            signs.append(Sign(box=box, candidates=candidates, damage=damage, reading=reading, provenance=PROVENANCE))
        elif not (signs and signs[-1].box is None):
            signs.append(Sign(damage="broken", provenance=PROVENANCE))
    return Line(label="", signs=tuple(signs), text=attested_text(line.text, lost), provenance=PROVENANCE)


def _box_of(ink_HW: _Mask, x0: int, y0: int) -> BoxXYXY | None:
    if int(ink_HW.sum()) < _MIN_INK_PX:
        return None
    rows, columns = np.flatnonzero(ink_HW.any(1)), np.flatnonzero(ink_HW.any(0))
    return float(x0 + columns[0]), float(y0 + rows[0]), float(x0 + columns[-1] + 1), float(y0 + rows[-1] + 1)


def _rule(groove_HW: F32, line: Polygon, width_px: float) -> None:
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


def _median_height(face: FacePlan) -> float:
    heights = [sign.pose.height_px for line in face.lines for sign in line.signs]
    return float(np.median(heights)) if heights else 30.0


def _relief(rng: np.random.Generator, plan: TabletPlan, body_HW: _Mask, gone_HW: _Mask, groove_HW: F32) -> F32:
    """Height map of all faces: rounded body, uneven surface, wedges with raised rims, breaks."""
    height, width = body_HW.shape
    small_HW = body_HW[::4, ::4]
    inward_HW = ndimage.distance_transform_edt(np.pad(small_HW, 1))[1:-1, 1:-1].astype(np.float32) * 4
    inward_HW = np.asarray(Image.fromarray(inward_HW).resize((width, height), Image.Resampling.BILINEAR))
    smallest = min(min(f.box_px[2] - f.box_px[0], f.box_px[3] - f.box_px[1]) for f in plan.faces)
    round_px = float(rng.uniform(0.1, 0.3)) * smallest
    rim_HW = 1 - np.clip(inward_HW / np.float32(round_px), 0, 1)
    relief_HW = np.sqrt(np.clip(1 - rim_HW * rim_HW, 0, 1)) * np.float32(round_px * rng.uniform(0.4, 0.8))
    shape_HW = (height, width)
    roughness = float(rng.uniform(0.12, 0.5))
    wear_HW = np.clip(0.9 + np.float32(rng.uniform(0, 0.25)) * noise(rng, shape_HW, 70), 0.35, 1.0)
    relief_HW += surface_noise(rng, shape_HW, roughness)
    pressed_HW = groove_HW * wear_HW
    bulge_HW = ndimage.uniform_filter(pressed_HW, 7, mode="nearest")
    floor_HW = np.float32(-rng.uniform(2, 6)) + fractal(rng, shape_HW, (30, 10, 4, 2), 0.6) * np.float32(2.2)
    broken_HW = ndimage.uniform_filter(gone_HW.astype(np.float32), 3)
    written_HW = np.float32(0.3) * bulge_HW - pressed_HW
    return np.asarray(relief_HW + written_HW * (1 - broken_HW) + floor_HW * broken_HW)
