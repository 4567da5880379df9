"""The sign inventory: class id <-> glyph <-> sign name <-> catalogue numbers, with a version hash.

A classifier's outputs mean nothing without the list they index, so the list's hash travels in every checkpoint and a
mismatch is refused. Class ids follow ``classes.tsv`` of a data set; glyphs may be several code points (|ŠE.KAK|).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dubsar.datasets.tables import read_rows


class InventoryMismatch(ValueError):
    """Two parts of a run were made for different sign inventories."""


@dataclass(frozen=True)
class SignClass:
    """One class: its glyph, Oracc sign name and MZL number (empty where there is none)."""

    glyph: str
    name: str
    mzl: str = ""


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

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 over all rows in order."""
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
        """Return plain rows for a checkpoint's JSON."""
        return [[c.glyph, c.name, c.mzl] for c in self.classes]

    @classmethod
    def from_list(cls, rows: list[list[Any]]) -> "Inventory":
        """Build an inventory from `to_list`'s rows."""
        return cls(tuple(SignClass(str(g), str(n), str(m)) for g, n, m in rows))

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
