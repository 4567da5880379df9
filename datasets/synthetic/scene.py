"""Synthetic tablets with exact boxes, reading order and text: pressed, broken, lit and photographed.

A picture is made as a tablet is: a rounded body of clay, wedges pressed into it, pieces broken off, a lamp (from the
upper left, 315 degrees, by the field's convention), a camera. Boxes are those of the visible ink, taken from the
pressed signs themselves, so that they are exact whatever the slant and bend of the line.

No font has Hittite sign shapes: see `glyphs.py`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dubsar.datasets.synthetic import photo
from dubsar.datasets.synthetic.body import Mask, masks, median_height, press_ruling, relief
from dubsar.datasets.synthetic.clay import (
    F32,
    Light,
    Pose,
    Stylus,
    bent,
    blurred,
    clay_colour,
    paint_clay,
    press,
    shade,
    stamp,
    surface_noise,
)
from dubsar.datasets.synthetic.glyphs import REFERENCE_PX, FontError, GlyphFont, GlyphShape
from dubsar.datasets.synthetic.layout import (
    MAX_FACES,
    FacePlan,
    PlacedLine,
    damage_of,
    draw_style,
    fitted,
    invented,
    place_faces,
    plan_face,
)
from dubsar.datasets.synthetic.sentences import COMMON_SIGNS, LOST, attested_text, corpus_lines
from dubsar.datasets.tablet import BoxXYXY, Candidate, Face, Line, Sign, Tablet

PROVENANCE = "synthetic"

_FACE_ODDS = (0.34, 0.26, 0.14, 0.1, 0.08, 0.08)
_MIN_SHARE = 0.08  # less of a sign than this is taken for none
_MIN_INK_PX = 12  # and so are fewer visible pixels of ink


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
    return TabletPlan(seed, size, font, plans, draw_stylus(rng), draw_light(rng, light_deg))


def draw_stylus(rng: np.random.Generator) -> Stylus:
    """Draw how wide and deep the wedges of a hand are."""
    return Stylus(float(rng.uniform(1.5, 6.5)), float(rng.uniform(0.6, 1.2)), float(rng.uniform(7, 12)))


def draw_light(rng: np.random.Generator, light_deg: float | None = None) -> Light:
    """Draw a light: two in three from about 315 degrees, the rest from anywhere, unless the direction is given."""
    usual, spread, anywhere = rng.random() < 0.67, rng.normal(0, 18), rng.uniform(0, 360)
    azimuth = light_deg if light_deg is not None else (315.0 + spread if usual else anywhere)
    return Light(float(azimuth) % 360, float(rng.uniform(22, 52)), float(rng.uniform(0.12, 0.42)))


def paint_tablet(plan: TabletPlan) -> SyntheticTablet:
    """Paint a plan and label what remains visible of its signs."""
    rng = np.random.default_rng((plan.seed, 1))
    width, height = plan.size
    body_HW, gone_HW = masks(plan.size, plan.faces)
    groove_HW = np.zeros((height, width), np.float32)
    faces = tuple(_press_face(plan, face, groove_HW, body_HW & ~gone_HW) for face in plan.faces)
    for face in plan.faces:
        for line in face.rulings:
            press_ruling(groove_HW, line, 0.06 * median_height(face))
    height_HW = relief(rng, plan.faces, body_HW, gone_HW, groove_HW)
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


def render_sign(
    glyph: str,
    font: GlyphFont,
    rng: np.random.Generator,
    size_px: int = 64,
    *,
    neighbours: Sequence[str] = COMMON_SIGNS,
    keep_aspect: bool = True,
) -> npt.NDArray[np.uint8]:
    """Render one sign as a crop of a photograph: random hand, light, clay, margin, and parts of the signs around it.

    Args:
        glyph: the sign.
        font: has to cover it.
        rng: source of randomness.
        size_px: side of the crop.
        neighbours: signs that may stand beside, above and below; those that the font lacks are left out. Empty = none.
        keep_aspect: True: the sign's longer side fills the crop; False: its box is stretched to fill it.

    Returns:
        (size_px, size_px, 3) uint8.

    Raises:
        FontError: the font does not cover the sign.
    """
    shape = font.shape(glyph)
    stylus = draw_stylus(rng)
    pose = _crop_pose(rng, shape, font, size_px, keep_aspect)
    groove_HW = np.zeros((size_px, size_px), np.float32)
    stamp(groove_HW, press(bent(shape, rng), pose, stylus))
    for other, place in _around(rng, shape, pose, font, neighbours):
        stamp(groove_HW, press(other, place, stylus))
    height_HW = surface_noise(rng, (size_px, size_px), float(rng.uniform(0.15, 0.9)))
    slope_x, slope_y = rng.normal(0, 0.12, 2)
    ramp = np.arange(size_px, dtype=np.float32)
    height_HW += ramp * np.float32(slope_x) + ramp[:, None] * np.float32(slope_y)
    height_HW += np.float32(0.3) * blurred(groove_HW, 7) - groove_HW * np.float32(rng.uniform(0.7, 1))
    rgb_HW3 = paint_clay(rng, shade(height_HW, draw_light(rng)), clay_colour(rng))
    if rng.random() < 0.08:  # a crop at the rim of the tablet
        rgb_HW3 = photo.on_ground(rng, rgb_HW3, _rim(rng, size_px))
    return photo.develop(rng, rgb_HW3, (0.0, 1.6))


def write_tablets(
    count: int,
    out: Path,
    seed: int,
    fonts: Sequence[GlyphFont],
    lines: Sequence[tuple[str, str]] | None = None,
    *,
    watch: Callable[[range], Iterable[int]] = iter,
) -> list[Path]:
    """Render tablets into a folder: ``synthetic-000001.png`` and ``.json`` (`Tablet.to_dict`) and so on.

    Args:
        count: how many.
        out: folder, made if absent.
        seed: tablet number n gets seed ``seed + n - 1``.
        fonts: see `render_tablet`.
        lines: see `render_tablet`.
        watch: goes over the numbers of the tablets, and may show how far it is.

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
    for number in watch(range(1, count + 1)):
        made = render_tablet(seed + number - 1, fonts=fonts, lines=lines)
        path = out / f"synthetic-{number:06d}.png"
        Image.fromarray(made.rgb_HW3).save(path)
        tablet = made.tablet.model_copy(update={"image": path.name})
        path.with_suffix(".json").write_text(json.dumps(tablet.to_dict(), ensure_ascii=False), encoding="utf-8")
        paths.append(path)
    return paths


def _press_face(plan: TabletPlan, face: FacePlan, groove_HW: F32, visible_HW: Mask) -> Face:
    """Press a face's signs into ``groove_HW`` and label what is visible of them."""
    pressed = [_press_line(plan, line, groove_HW, visible_HW) for line in face.lines]
    seen = [k for k, line in enumerate(pressed) if any(s.box is not None for s in line.signs)]
    kept = pressed[seen[0] : seen[-1] + 1] if seen else []  # lines broken off above and below are not known
    prime = "′" if seen and seen[0] > 0 else ""
    lines = tuple(line.model_copy(update={"label": f"{n}{prime}"}) for n, line in enumerate(kept, 1))
    x0, y0, x1, y1 = face.box_px
    return Face(name=face.name, box=(float(x0), float(y0), float(x1), float(y1)), lines=lines)


def _press_line(plan: TabletPlan, line: PlacedLine, groove_HW: F32, visible_HW: Mask) -> Line:
    signs: list[Sign] = []
    lost: list[bool] = []
    for k, placed in enumerate(line.signs):
        box, share = None, 0.0
        if placed.glyph != LOST:
            shape = bent(plan.font.shape(placed.glyph), np.random.default_rng(placed.hand))
            mark = press(shape, placed.pose, plan.stylus)
            rows, columns, patch_HW = stamp(groove_HW, mark)
            ink_HW = patch_HW > 0
            seen_HW = ink_HW & visible_HW[rows, columns]
            share = float(seen_HW.sum()) / max(1, int((mark.depth_HW > 0).sum()))
            box = _box_of(seen_HW, columns.start, rows.start) if share >= _MIN_SHARE else None
        damage = damage_of(share)
        lost.append(damage == "broken")
        if box is not None:
            reading = line.text.readings[k] if line.text.readings and damage != "broken" else ""
            candidates = (Candidate(glyph=placed.glyph, probability=1.0),)
            signs.append(Sign(box=box, candidates=candidates, damage=damage, reading=reading, provenance=PROVENANCE))
        elif not (signs and signs[-1].box is None):
            signs.append(Sign(damage="broken", provenance=PROVENANCE))
    return Line(label="", signs=tuple(signs), text=attested_text(line.text, lost), provenance=PROVENANCE)


def _box_of(ink_HW: Mask, x0: int, y0: int) -> BoxXYXY | None:
    if int(ink_HW.sum()) < _MIN_INK_PX:
        return None
    rows, columns = np.flatnonzero(ink_HW.any(1)), np.flatnonzero(ink_HW.any(0))
    return float(x0 + columns[0]), float(y0 + rows[0]), float(x0 + columns[-1] + 1), float(y0 + rows[-1] + 1)


def _crop_pose(rng: np.random.Generator, shape: GlyphShape, font: GlyphFont, size_px: int, keep_aspect: bool) -> Pose:
    """Pose that makes the sign's box, drawn a little loosely as annotators do, fill the crop."""
    stretch = float(rng.uniform(0.8, 1.4)) / font.aspect
    # low signs such as AŠ are often boxed with the height of the line
    spare = max(0.0, REFERENCE_PX - shape.height_px) * (float(rng.uniform(0, 1)) if rng.random() < 0.5 else 0.0)
    loose = 1 + float(rng.uniform(0, 0.3))
    box_w, box_h = shape.width_px * stretch * loose, (shape.height_px + spare) * loose
    scale = size_px / (max(box_w, box_h) if keep_aspect else box_h)
    if not keep_aspect:
        stretch *= box_h / box_w
    x, y = size_px / 2 + rng.normal(0, 0.03, 2) * size_px
    shear, angle = rng.normal(0, 0.07), rng.normal(0, 0.035)
    return Pose(float(x), float(y), min(scale * REFERENCE_PX, 3.0 * size_px), stretch, float(shear), float(angle))


def _around(
    rng: np.random.Generator, shape: GlyphShape, pose: Pose, font: GlyphFont, neighbours: Sequence[str]
) -> list[tuple[GlyphShape, Pose]]:
    """Signs to the left and right, and of the lines above and below."""
    unit = pose.height_px / REFERENCE_PX
    pitch = float(rng.uniform(0.9, 1.25)) * pose.height_px
    middle = pose.y + shape.rise_px * unit
    placed: list[tuple[GlyphShape, Pose]] = []
    for side, row in ((-1, 0), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1)):
        if not neighbours or rng.random() < (0.2 if row == 0 else 0.4):
            continue
        glyph = neighbours[int(rng.integers(len(neighbours)))]
        if not font.covers(glyph):
            continue
        other = font.shape(glyph)
        inner = (shape.width_px / 2 if row == 0 else 0) * pose.stretch * unit + float(
            rng.uniform(0, 0.15)
        ) * pose.height_px
        x = pose.x + side * (inner + other.width_px / 2 * pose.stretch * unit)
        y = middle + row * pitch - other.rise_px * unit
        placed.append((other, Pose(x, y, pose.height_px, pose.stretch, pose.shear, pose.angle)))
    return placed


def _rim(rng: np.random.Generator, size_px: int) -> Mask:
    """A half plane that leaves out a corner or side of the crop."""
    angle = rng.uniform(0, 2 * np.pi)
    at = np.arange(size_px) - size_px / 2
    wave = np.cumsum(rng.normal(0, 0.4, size_px))
    far = np.cos(angle) * at[None, :] + np.sin(angle) * at[:, None] + (wave - wave.mean())[None, :]
    return np.asarray(far < size_px * rng.uniform(0.34, 0.6))
