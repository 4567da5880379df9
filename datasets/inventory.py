"""The sign inventory: class id <-> glyph <-> sign name <-> catalogue numbers, with a version hash.

A classifier's outputs mean nothing without the list they index, so the list's hash travels in every checkpoint and a
mismatch is refused. Class ids follow ``classes.tsv`` of a data set; glyphs may be several code points (|ŠE.KAK|).

The hash is over glyph, name and MZL number alone. HZL and ABZ numbers are further names of a sign, not its identity:
adding or mending one changes no output of a network, and must not orphan weights that were trained before.
"""

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dubsar.datasets.tables import Row, read_rows

CATALOGUES = ("MZL", "HZL", "ABZ")
SEPARATOR = "|"  # between several numbers of one catalogue
_NOT_ABZ = "ḪZL"  # one of the tables behind abz_to_unicode.tsv gives HZL numbers where it knows no other


class InventoryMismatch(ValueError):
    """Two parts of a run were made for different sign inventories."""


@dataclass(frozen=True)
class SignClass:
    """One class: its glyph, Oracc sign name and catalogue numbers (several are separated by ``|``, none is empty).

    Attributes:
        mzl: Borger, Mesopotamisches Zeichenlexikon.
        hzl: Rüster and Neu, Hethitisches Zeichenlexikon, as its concordance writes it: ``256(1)``, ``(251)``, ``210?``.
        abz: Borger, Assyrisch-babylonische Zeichenliste, as eBL counts.
    """

    glyph: str
    name: str
    mzl: str = ""
    hzl: str = ""
    abz: str = ""

    @property
    def numbers(self) -> str:
        """All catalogue numbers on one line, ``MZL 839 · HZL 364/365 · ABZ 579``; empty where there is none."""
        named = [(c, getattr(self, c.lower()).replace(SEPARATOR, "/")) for c in CATALOGUES]
        return " · ".join(f"{catalogue} {number}" for catalogue, number in named if number)


@dataclass(frozen=True)
class Inventory:
    """An ordered list of sign classes; the position is the class id."""

    classes: tuple[SignClass, ...]

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, class_id: int) -> SignClass:
        if not 0 <= class_id < len(self.classes):
            raise IndexError(f"class id {class_id} is out of range; this inventory has ids 0 to {len(self) - 1}")
        return self.classes[class_id]

    @cached_property
    def id_of_glyph(self) -> dict[str, int]:
        """Map a glyph to its class id; the first class wins where a glyph stands twice."""
        ids: dict[str, int] = {}
        for class_id, sign in enumerate(self.classes):
            ids.setdefault(sign.glyph, class_id)
        return ids

    def of_glyph(self, glyph: str) -> SignClass | None:
        """Return the class of a glyph, or None where the inventory lacks it."""
        class_id = self.id_of_glyph.get(glyph)
        return None if class_id is None else self.classes[class_id]

    def by_number(self, catalogue: str, number: str) -> tuple[int, ...]:
        """Return the ids of the classes that a catalogue files under a number.

        A catalogue may put several classes under one number (HZL 335: ḪI and ŠÁR). Where no class has the very
        number, those count that have it with a mark of doubt or a part: 251 finds ``(251)``, 256 finds ``256(1)``.

        Args:
            catalogue: ``MZL``, ``HZL`` or ``ABZ``.
            number: as text, such as ``1`` or ``129a``.

        Returns:
            Class ids, ascending; empty where no class has that number.

        Raises:
            ValueError: another catalogue.
        """
        if catalogue.upper() not in CATALOGUES:
            raise ValueError(f"catalogue is {catalogue!r}, expected one of {', '.join(CATALOGUES)}")
        held = [getattr(c, catalogue.lower()).split(SEPARATOR) for c in self.classes]
        wanted = number.strip()
        exact = tuple(i for i, numbers in enumerate(held) if wanted and wanted in numbers)
        return exact or tuple(i for i, numbers in enumerate(held) if wanted in map(unmarked, numbers) and wanted)

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 over glyph, name and MZL number of all rows in order."""
        rows = "\n".join("\t".join((c.glyph, c.name, c.mzl)) for c in self.classes)
        return hashlib.sha256(rows.encode()).hexdigest()[:16]

    def require(self, other_hash: str, where: str) -> None:
        """Refuse a part that was made for another inventory.

        Raises:
            InventoryMismatch: ``other_hash`` is not this inventory's; both hashes and ``where`` are named.
        """
        if other_hash != self.hash:
            raise InventoryMismatch(
                f"{where}: made for sign inventory {other_hash}, but the one in use is {self.hash} "
                f"({len(self)} classes); "
                "train again on this inventory or use the data that the weights were made for"
            )

    def to_list(self) -> list[list[str]]:
        """Return plain rows for a checkpoint's JSON: glyph, name, MZL, HZL, ABZ."""
        return [[c.glyph, c.name, c.mzl, c.hzl, c.abz] for c in self.classes]

    @classmethod
    def from_list(cls, rows: list[list[Any]]) -> "Inventory":
        """Build an inventory from `to_list`'s rows; older rows end after the MZL number.

        Raises:
            ValueError: a row has neither 3 nor 5 cells.
        """
        for position, row in enumerate(rows):
            if len(row) not in {3, 5}:
                raise ValueError(
                    f"inventory row {position} has {len(row)} cells, expected glyph, name, MZL or these, HZL, ABZ"
                )
        return cls(tuple(SignClass(*map(str, row)) for row in rows))

    @classmethod
    def from_classes_tsv(cls, path: Path) -> "Inventory":
        """Read ``class_id, glyph, sign_name, mzl, …``; the ids must count up from 0.

        Raises:
            ValueError: with file and line: a column is absent, the ids have a gap, or a glyph is empty.
        """
        signs: list[SignClass] = []
        for row in read_rows(path, ("class_id", "glyph", "sign_name", "mzl")):
            if row["class_id"] != str(len(signs)):
                raise ValueError(f"{path}:{row.line}: class_id is {row['class_id']!r}, expected {len(signs)}")
            if not row["glyph"]:
                raise ValueError(f"{path}:{row.line}: class {row['class_id']} has no glyph")
            signs.append(SignClass(row["glyph"], row["sign_name"], row["mzl"]))
        return cls(tuple(signs))


def read_inventory(root: Path) -> Inventory:
    """Read the sign classes of a data folder, with the catalogue numbers of its sign list where that is there.

    MZL numbers are those of ``classes.tsv``. HZL numbers come from ``signs.tsv``: ``hzl`` (Oracc), then what
    ``hzl_extra`` adds, because Oracc gives none for some common signs (A). ABZ numbers come from
    ``abz_to_unicode.tsv``, which says how each is known: where the readings of texts confirm numbers for a glyph, only
    those count; else, of the numbers that concordances alone give it, those that most of them agree on and that none
    disputes. Concordances alone were wrong for common signs (KU, LU, TU, MEŠ).

    Args:
        root: holds ``tablet-signs/classes.tsv`` and, where it is there, ``sign-list/``.

    Raises:
        FileNotFoundError: there is no ``classes.tsv``.
        ValueError: a table is faulty; with file and line.
    """
    inventory = Inventory.from_classes_tsv(root / "tablet-signs" / "classes.tsv")
    hzl = _hzl_numbers(root / "sign-list" / "signs.tsv")
    abz = abz_numbers(root / "sign-list" / "abz_to_unicode.tsv")
    return Inventory(tuple(replace(c, hzl=hzl.get(c.glyph, ""), abz=abz.get(c.glyph, "")) for c in inventory.classes))


def _hzl_numbers(path: Path) -> dict[str, str]:
    """Map each glyph to its HZL numbers; a sign and its forms share a glyph, so their numbers are put together."""
    numbers: dict[str, dict[str, None]] = defaultdict(dict)
    for row in read_rows(path, ("glyph", "hzl", "hzl_extra")) if path.is_file() else []:
        for cell in (row["hzl"], row["hzl_extra"]):
            numbers[row["glyph"]].update(dict.fromkeys(filter(None, cell.split(SEPARATOR))))
    return {glyph: SEPARATOR.join(found) for glyph, found in numbers.items()}


def abz_numbers(path: Path) -> dict[str, str]:
    """Map each glyph to its ABZ numbers, by the rule that `read_inventory` states."""
    columns = ("abz", "glyph", "basis", "tables_agreeing", "tables_disagreeing")
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in read_rows(path, columns) if path.is_file() else []:
        if not row["abz"].startswith(_NOT_ABZ):
            rows[row["glyph"]].append(row)
    numbers = {}
    for glyph, found in rows.items():
        chosen = [r for r in found if r["basis"] == "readings"]
        if not chosen:
            undisputed = [r for r in found if not r["tables_disagreeing"]]
            most = max((_count(r) for r in undisputed), default=0)
            chosen = [r for r in undisputed if _count(r) == most]
        numbers[glyph] = SEPARATOR.join(r["abz"] for r in chosen)
    return numbers


def _count(row: Row) -> int:
    return sum(bool(name.strip()) for name in row["tables_agreeing"].split(","))


def unmarked(number: str) -> str:
    """Return a number without marks of doubt and part: ``(251)``, ``210?``, ``to 109``, ``256(1)``, ``209.2``."""
    marked = re.fullmatch(r"(?:to |\()?(\d+[A-Za-z]?)\)?(?:\(\d+\)|\.\d+)?\??", number)
    return marked[1] if marked else number
