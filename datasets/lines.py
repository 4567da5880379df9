"""Line pairs: the signs of a line and its transliteration, from the three text collections.

Only attested columns are read: ``signs_full`` and ``translit_full``, which hold an editor's restorations, are never a
target. Two collections cannot be told apart that way, and their READMEs say so: in ``hittite`` and ``ebl`` the signs of
restored text are part of ``signs`` (in ``hittite``, ``translit`` is aligned with them, so the pairs are consistent).
The Hittite collection also holds Hurrian lines: select by ``language`` (``hit``, ``xhu``).
"""

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import Row, read_rows
from dubsar.datasets.text import canonical

Source = Literal["oracc", "hittite", "ebl"]
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class LinePair:
    """One line: Unicode signs without spaces, and the transliteration in the canonical form.

    Attributes:
        signs: as in the table, NFC; ``…`` lost, ``▒`` or ``x`` illegible, ``□`` and U+FFFD no sign known.
        language: code of the table (``akk-x-neoass``, ``hit``, ``xhu``); for eBL ``sux`` where the line opens with a
            shift to Sumerian, else ``akk``.
        text_id: text, document or fragment: what splits are drawn by.
    """

    signs: str
    translit: str
    language: str
    text_id: str
    label: str
    split: str
    source: str


@dataclass(frozen=True)
class Collection:
    """Where a collection lies and what its columns are called. ``by_file``: one table per split, no split column."""

    folder: str
    signs: str
    translit: str
    language: str
    text_id: str
    label: tuple[str, ...]
    by_file: bool

    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read."""
        names = (self.signs, self.translit, self.language, self.text_id, *self.label, "" if self.by_file else "split")
        return tuple(n for n in names if n)

    def tables(self, split: str | None) -> list[tuple[str, str]]:
        """Return (file name, split of all its rows or empty) for the tables that can hold rows of ``split``."""
        if not self.by_file:
            return [("lines.tsv", "")]
        return [(f"{s}.tsv", s) for s in SPLITS if split in (None, s)]


COLLECTIONS: dict[Source, Collection] = {
    "oracc": Collection("akkadian-oracc-lines", "signs", "translit", "lang", "text_id", ("line_label",), True),
    "hittite": Collection("hittite-lines", "signs", "translit", "lang", "document", ("line_label",), False),
    "ebl": Collection("akkadian-ebl-lines", "signs", "atf", "", "fragment_id", ("surface", "line_label"), False),
}


def read_line_pairs(root: Path, source: Source, split: str | None = None) -> list[LinePair]:
    """Read the line pairs of a collection in file order.

    Args:
        root: data folder that holds the collection's folder.
        source: ``oracc`` (Akkadian), ``hittite`` (Hittite and Hurrian) or ``ebl`` (mixed, with ATF marks).
        split: ``train``, ``dev`` or ``test``; all where None.

    Raises:
        FileNotFoundError: the folder or a table is absent.
        ValueError: unknown source or split, or with file and line a row that cannot be used.
    """
    if source not in COLLECTIONS:
        raise ValueError(f"line source is {source!r}, expected one of {', '.join(COLLECTIONS)}")
    if split is not None and split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    collection = COLLECTIONS[source]
    pairs: list[LinePair] = []
    for name, table_split in collection.tables(split):
        path = require_data(root, collection.folder, name)
        for row in read_rows(path, collection.columns()):
            row_split = table_split or row["split"]
            if row_split not in SPLITS:
                raise ValueError(f"{path}:{row.line}: split is {row_split!r}, expected one of {', '.join(SPLITS)}")
            if split in (None, row_split):
                pairs.append(_pair(row, collection, row_split, source))
    return pairs


def _pair(row: Row, collection: Collection, split: str, source: str) -> LinePair:
    text = row[collection.translit]
    return LinePair(
        signs=unicodedata.normalize("NFC", row[collection.signs]),
        translit=canonical(text),
        language=row[collection.language] if collection.language else _ebl_language(text),
        text_id=row[collection.text_id],
        label=" ".join(row[c] for c in collection.label if row[c]),
        split=split,
        source=source,
    )


def _ebl_language(atf: str) -> str:
    return "sux" if atf.startswith(("%sux", "%es")) else "akk"
