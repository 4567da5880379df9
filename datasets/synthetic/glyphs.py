"""Sign shapes from fonts that are installed on the machine: no font is shipped with dubsar.

Three sources: "Assyrian" (Neo-Assyrian shapes in private-use code points, mapped by the table ``assyrian_font.tsv`` of
the sign list), Noto Sans Cuneiform (all Unicode signs, monumental Ur III-like shapes), and users' own Unicode fonts.

**No font in a registry has Hittite sign shapes.** AN, LU₂, WA or DUMU of Noto look nothing like those of a Hittite
tablet: pictures rendered with these fonts help a detector and a Neo-Assyrian classifier, and mislead a Hittite
classifier. Users who have a font with Hittite shapes should bring it (`load_font`).

Glyphs are never mirrored here or anywhere else: a flipped sign is another sign.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFont
from scipy import ndimage

REFERENCE_PX = 64  # height of a full-size sign in a GlyphShape
PAD_PX = 8  # clay around the ink in a GlyphShape: the distance field must reach beyond the edge of a widened wedge

_CACHE_LIMIT = 4096
_OVERSAMPLE = 2
_FULL_HEIGHT_SIGNS = "𒂗𒈠𒆠𒈾𒊏𒌝𒀭𒂍𒈗𒆷"  # common signs as high as the line: they set a font's scale
_NOT_A_CHARACTER = "\U0010fffe"

ASSYRIAN = (("Assyrian_hint.ttf", "Assyrian.ttf", "Assyrian.otf"), "fonts-ancient-scripts")
NOTO = (
    ("NotoSansCuneiform-Regular.ttf", "NotoSansCuneiform-Regular.otf", "noto-sans-cuneiform-cuneiform-400-normal.woff"),
    "fonts-noto-core",
)


class FontError(ValueError):
    """No usable font: not installed, not readable, or without the sign that was asked for."""


@dataclass(frozen=True)
class GlyphShape:
    """A sign's outline as a signed distance field, from which wedges of any width and depth are cut.

    Attributes:
        distance_HW: distance to the edge of the ink, float32, in pixels at REFERENCE_PX per full sign height; positive
            inside. The ink is centred: PAD_PX of clay on each side.
        rise_px: how far the ink's centre lies above the middle of the line, in the same pixels.
    """

    distance_HW: npt.NDArray[np.float32]
    rise_px: float

    @property
    def width_px(self) -> int:
        """Width of the ink."""
        return int(self.distance_HW.shape[1]) - 2 * PAD_PX

    @property
    def height_px(self) -> int:
        """Height of the ink."""
        return int(self.distance_HW.shape[0]) - 2 * PAD_PX

    @cached_property
    def image(self) -> Image.Image:
        """The distance field as a Pillow image, for its affine transform."""
        return Image.fromarray(self.distance_HW)


class GlyphFont:
    """One font, asked by Unicode glyph (one or more code points) and not by its own code points.

    Args:
        path: .ttf, .otf, .woff or .woff2 file.
        name: what to call it; the file's stem by default.
        mapping: glyph -> text to set in this font, for fonts that are not encoded in Unicode.
        fallback: a font for signs that this one lacks.

    Raises:
        FontError: the file is missing or no font.
    """

    def __init__(
        self,
        path: Path | str,
        name: str = "",
        mapping: Mapping[str, str] | None = None,
        fallback: "GlyphFont | None" = None,
    ) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self._mapping = None if mapping is None else dict(mapping)
        self._fallback = fallback
        self._sizes: dict[int, ImageFont.FreeTypeFont] = {}
        self._texts: dict[str, str | None] = {}
        self._masks: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        self._shapes: dict[str, GlyphShape] = {}
        self._missing = bytes(self._at(REFERENCE_PX).getmask(_NOT_A_CHARACTER))

    def __reduce__(self) -> tuple[Callable[..., "GlyphFont"], tuple[object, ...]]:
        return GlyphFont, (self.path, self.name, self._mapping, self._fallback)  # caches stay behind

    def __repr__(self) -> str:
        return f"GlyphFont({self.name!r})"

    @property
    def sequences(self) -> frozenset[str]:
        """Glyphs of several code points that the mapping knows."""
        return frozenset(g for g in self._mapping or () if len(g) > 1)

    def covers(self, glyph: str) -> bool:
        """Tell whether the font, or its fallback, can draw ``glyph``."""
        return self._text(glyph) is not None or (self._fallback is not None and self._fallback.covers(glyph))

    def mask(self, glyph: str, height_px: int) -> npt.NDArray[np.uint8]:
        """Draw a glyph.

        Args:
            glyph: one or more code points; several are set side by side.
            height_px: height of a full-size sign, pixels; a low sign such as AŠ stays lower.

        Returns:
            (H, W) uint8, 255 = ink, cropped to the ink.

        Raises:
            FontError: the sign is not covered, or ``height_px`` is below 1.
        """
        if height_px < 1:
            raise FontError(f"height_px is {height_px}; expected at least 1")
        key = (glyph, height_px)
        if key not in self._masks:
            _bound(self._masks)
            self._masks[key] = self._draw(glyph, height_px)[0]
        return self._masks[key]

    def shape(self, glyph: str) -> GlyphShape:
        """Return a glyph's distance field, cached.

        Raises:
            FontError: the sign is not covered.
        """
        if glyph not in self._shapes:
            _bound(self._shapes)
            ink_HW, rise_px = self._draw(glyph, REFERENCE_PX * _OVERSAMPLE)
            self._shapes[glyph] = GlyphShape(_distance(ink_HW), rise_px / _OVERSAMPLE)
        return self._shapes[glyph]

    @cached_property
    def aspect(self) -> float:
        """Typical width of a sign over its height."""
        shapes = [self.shape(g) for g in _FULL_HEIGHT_SIGNS if self.covers(g)]
        return median(s.width_px / s.height_px for s in shapes) if shapes else 1.0

    def _draw(self, glyph: str, height_px: int) -> tuple[npt.NDArray[np.uint8], float]:
        text = self._text(glyph)
        if text is None:
            if self._fallback is None:
                raise FontError(
                    f"font {self.name} has no glyph for {glyph!r} ({_codepoints(glyph)}); bring another font"
                )
            return self._fallback._draw(glyph, height_px)
        scale, middle = self._metrics
        font = self._at(max(1, round(height_px * scale)))
        mask, (_, dy) = font.getmask2(text, mode="L", anchor="ls")
        ink_HW = np.frombuffer(bytes(mask), np.uint8).reshape(mask.size[1], mask.size[0])
        rows, columns = np.flatnonzero(ink_HW.any(1)), np.flatnonzero(ink_HW.any(0))
        if not rows.size:
            raise FontError(f"font {self.name} draws nothing for {glyph!r} ({_codepoints(glyph)})")
        centre = dy + (rows[0] + rows[-1] + 1) / 2
        return ink_HW[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy(), float(middle * height_px - centre)

    @cached_property
    def _metrics(self) -> tuple[float, float]:
        """Font size over full sign height, and the line's middle below the baseline over full sign height."""
        size = 200
        boxes = [self._at(size).getmask2(t, anchor="ls") for t in map(self._text, _FULL_HEIGHT_SIGNS) if t]
        if not boxes:
            return 1.2, -0.5
        height = median(mask.size[1] for mask, _ in boxes)
        return size / height, median(offset[1] + mask.size[1] / 2 for mask, offset in boxes) / height

    def _at(self, size: int) -> ImageFont.FreeTypeFont:
        if size not in self._sizes:
            _bound(self._sizes, 64)
            try:
                self._sizes[size] = ImageFont.truetype(str(self.path), size, layout_engine=ImageFont.Layout.BASIC)
            except OSError as error:
                raise FontError(
                    f"{self.path}: no readable font ({error}); expected a .ttf, .otf or .woff file"
                ) from None
        return self._sizes[size]

    def _text(self, glyph: str) -> str | None:
        """The text to set in this font, None where it lacks a part of the glyph."""
        if glyph not in self._texts:
            self._texts[glyph] = self._lookup(glyph)
        return self._texts[glyph]

    def _lookup(self, glyph: str) -> str | None:
        if self._mapping is not None:
            text = self._mapping.get(glyph) or "".join(self._mapping.get(c, _NOT_A_CHARACTER) for c in glyph)
        else:
            text = glyph
        if not text or any(c.isspace() for c in text):
            return None
        font = self._at(REFERENCE_PX)
        return None if any(bytes(font.getmask(c)) in (b"", self._missing) for c in text) else text


def font_folders() -> list[Path]:
    """List the folders in which systems keep fonts (Linux, macOS, Windows), existing ones only."""
    home = Path.home()
    folders = [
        home / ".fonts",
        home / ".local/share/fonts",
        Path("/usr/local/share/fonts"),
        Path("/usr/share/fonts"),
        home / "Library/Fonts",
        Path("/Library/Fonts"),
        Path("/System/Library/Fonts"),
        home / "AppData/Local/Microsoft/Windows/Fonts",
        Path("C:/Windows/Fonts"),
    ]
    return [folder for folder in folders if folder.is_dir()]


def find_font(wanted: tuple[Sequence[str], str], folders: Sequence[Path] | None = None) -> Path:
    """Find a font file by name below the system's font folders.

    Args:
        wanted: accepted file names, and the Debian package that brings them (`ASSYRIAN`, `NOTO`).
        folders: where to look, `font_folders()` by default.

    Raises:
        FontError: not found; the package to install is named.
    """
    names, package = wanted
    searched = font_folders() if folders is None else folders
    for folder in searched:
        for name in names:
            for path in sorted(folder.rglob(name)):
                return path
    places = ", ".join(map(str, searched)) or "no font folder"
    raise FontError(f"font {names[0]} not found in {places}; install it (Debian: apt install {package}) or give a file")


def load_noto(folders: Sequence[Path] | None = None) -> GlyphFont:
    """Load Noto Sans Cuneiform.

    Raises:
        FontError: not installed.
    """
    return GlyphFont(find_font(NOTO, folders), "noto")


def load_font(path: Path | str) -> GlyphFont:
    """Load a user's own font, encoded in Unicode.

    Raises:
        FontError: the file is missing or no font.
    """
    return GlyphFont(path)


def assyrian_table(root: Path) -> Path:
    """Return where a data root holds the table of the Assyrian font; whether it is there is not looked at."""
    return root / "sign-list" / "assyrian_font.tsv"


def load_assyrian(table: Path, folders: Sequence[Path] | None = None) -> GlyphFont:
    """Load the Assyrian font; signs that it lacks are drawn with Noto where that is installed.

    Args:
        table: ``assyrian_font.tsv`` with columns ``glyph`` and ``font_codepoint`` (``U+F5200``, or two of them).
        folders: where to look for fonts, `font_folders()` by default.

    Raises:
        FontError: the font is not installed, or the table is missing or malformed.
    """
    path, mapping = find_font(ASSYRIAN, folders), _read_table(table)
    try:
        fallback = load_noto(folders)
    except FontError:
        fallback = None
    return GlyphFont(path, "assyrian", mapping, fallback)


def available_fonts(
    table: Path | None = None, extra: Sequence[Path] = (), folders: Sequence[Path] | None = None
) -> tuple[GlyphFont, ...]:
    """Load every font there is: the user's own first, then Assyrian (if its table is given), then Noto.

    Raises:
        FontError: none is found (the packages are named), or one of ``extra`` is not readable.
    """
    fonts = [load_font(path) for path in extra]
    missing: list[str] = []
    loaders: list[Callable[[], GlyphFont]] = [lambda: load_noto(folders)]
    if table is not None:
        loaders.insert(0, lambda: load_assyrian(table, folders))
    for load in loaders:
        try:
            fonts.append(load())
        except FontError as error:
            missing.append(str(error))
    if not fonts:
        raise FontError("; ".join(missing))
    return tuple(fonts)


def _read_table(table: Path) -> dict[str, str]:
    mapping: dict[str, str] = {}
    try:
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                text = "".join(chr(int(point.removeprefix("U+"), 16)) for point in row["font_codepoint"].split())
                mapping.setdefault(row["glyph"], text)
    except OSError as error:
        raise FontError(
            f"{table}: not readable ({error.strerror}); expected the sign list's assyrian_font.tsv"
        ) from None
    except (KeyError, ValueError) as error:
        raise FontError(
            f"{table}: malformed ({error}); expected columns glyph and font_codepoint, such as U+F5200"
        ) from None
    return mapping


def _distance(ink_HW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Signed distance at half the resolution of ``ink_HW``, with PAD_PX around the ink."""
    pad = PAD_PX * _OVERSAMPLE
    height, width = ink_HW.shape
    inside_HW = np.pad(ink_HW > 127, ((pad, pad + height % 2), (pad, pad + width % 2)))
    signed_HW = ndimage.distance_transform_edt(inside_HW) - ndimage.distance_transform_edt(~inside_HW)
    rows, columns = signed_HW.shape[0] // 2, signed_HW.shape[1] // 2
    halved_HW = signed_HW.reshape(rows, 2, columns, 2).mean((1, 3)) / _OVERSAMPLE
    return np.asarray(halved_HW, np.float32)


def _bound(cache: dict[Any, Any], limit: int = _CACHE_LIMIT) -> None:
    if len(cache) >= limit:
        cache.clear()


def _codepoints(glyph: str) -> str:
    return " ".join(f"U+{ord(c):04X}" for c in glyph)
