"""The labelled signs that a config names, and the fonts that show them."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dubsar.configs.schema import ClassifyData
from dubsar.datasets.signs import SignSource
from dubsar.datasets.sources import data_root
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont, assyrian_table, available_fonts, load_font

FONT = "assyrian"  # the name that `load_assyrian` gives it


def open_signs(data: ClassifyData, root: Path | None = None) -> SignSource:
    """Return the data set that a config names.

    Args:
        data: the stage's data block.
        root: data folder that holds ``tablet-signs/`` and ``sign-list/``; `data_root()` where None. ``data.root`` comes
            before it.
    """
    shared = root or data_root()
    own = Path(data.root) if data.root else shared
    more = Path(data.more_signs) if data.more_signs else None
    return SignSource(own, data.source, data.catalogue, shared, data.tablet_pattern, more)


def open_common_signs(asked: Sequence[tuple[Path, ClassifyData]]) -> SignSource:
    """Return the data set that several classifiers were trained on, as people labelled it.

    Args:
        asked: files of weights, one or more, each with the data block that it was trained by.

    Raises:
        ValueError: they name different data sets; `SignSource` tells by what data sets differ.
    """
    (first, _), *_ = asked
    found = [replace(open_signs(data), more=None) for _, data in asked]
    for (path, _), signs in zip(asked, found, strict=True):
        if signs != found[0]:
            raise ValueError(
                f"{path}: trained on the {signs.layout} signs in {signs.root}, but {first} on the {found[0].layout} "
                f"signs in {found[0].root}; what is compared or votes together must know one data set"
            )
    return found[0]


def training_font(root: Path, own: str) -> GlyphFont:
    """Load the user's own font, or that of the shapes on the photographs, which are Neo-Assyrian, or warn.

    Args:
        root: data root that holds ``sign-list/``.
        own: the user's font file; empty for none.

    Raises:
        FontError: the font is none, or none is installed.
    """
    if own:
        return load_font(own)
    table = assyrian_table(root)
    try:
        fonts = available_fonts(table)
    except FontError as error:
        raise FontError(f"data.synthetic_fraction: {error}; or set it to 0") from error
    font = next((f for f in fonts if f.name == FONT), fonts[0])
    if font.name != FONT:
        print(
            f"data.synthetic_fraction: signs are rendered with the shapes of {font.name}, not Neo-Assyrian ones: "
            f"the font Assyrian (Debian: fonts-ancient-scripts) or {table} is not there",
            file=sys.stderr,
        )
    return font


def sign_font(data: ClassifyData) -> GlyphFont | None:
    """Load the font that draws signs as the photographs show them, as far as one is known and installed."""
    table = assyrian_table(data_root()) if data.source == "tablet-signs" else None
    try:
        return available_fonts(table, [Path(data.font)] if data.font else [])[0]
    except FontError:
        return None
