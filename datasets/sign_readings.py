"""Which sign a reading stands for: the way back from a transliteration to the signs on the clay.

A reading with its index belongs to one sign nearly always; numerals are written as figures in transliterations, and
those that are one sign have a class. What is left (``TA@V``, ``x``, 15) is a sign that nothing is known of.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dubsar.datasets.alignment import bare, pieces
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.sign_list import FOLDER
from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import read_rows

LOST = "…"
_NUMERALS = {"1": "𒁹", "2": "𒈫", "3": "𒐈", "4": "𒐉", "5": "𒐊", "10": "𒌋", "20": "𒎙", "30": "𒌍"}
Readings = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TextSign:
    """A sign that a text says is there.

    Attributes:
        reading: as the text has it; `LOST` for a stretch of any number of lost signs.
        classes: ids that the sign may be; empty where nothing is known of it.
    """

    reading: str
    classes: tuple[int, ...] = ()

    @property
    def lost(self) -> bool:
        """Whether this is a lost stretch."""
        return self.reading == LOST


def read_readings(root: Path, inventory: Inventory) -> Readings:
    """Return the classes (ids, ascending) that each reading or sign name may stand for, in lower case.

    Args:
        root: data root that holds ``sign-list/``.
        inventory: the classes; readings of other signs are left out.

    Raises:
        FileNotFoundError, ValueError: the sign list is absent or faulty.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for row in read_rows(require_data(root, FOLDER, "signs.tsv"), ("sign_name", "glyph", "readings")):
        class_id = inventory.id_of_glyph.get(row["glyph"])
        if class_id is not None:
            for reading in (row["sign_name"], *row["readings"].split()):
                found[reading.lower()].add(class_id)
    for numeral, glyph in _NUMERALS.items():
        if glyph in inventory.id_of_glyph:
            found[numeral].add(inventory.id_of_glyph[glyph])
    return {reading: tuple(sorted(ids)) for reading, ids in found.items()}


def text_signs(text: str, readings: Readings) -> list[TextSign]:
    """Return the signs of a line of canonical text, in order.

    >>> [(s.reading, s.classes) for s in text_signs("a-na {m}KUR …", {"a": (0,), "na": (7,), "kur": (5, 9)})]
    [('a', (0,)), ('na', (7,)), ('m', ()), ('KUR', (5, 9)), ('…', ())]
    """
    read = [bare(piece) for piece in pieces(text)]
    return [TextSign(r) if r == LOST else TextSign(r, readings.get(r.lower(), ())) for r in read]
