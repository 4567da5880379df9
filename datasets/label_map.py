"""The map HZL <-> MZL <-> ABZ <-> Unicode, a row for each sign that an HZL number may stand for, and its counts.

HZL = Rüster and Neu, Hethitisches Zeichenlexikon; MZL = Borger, Mesopotamisches Zeichenlexikon; ABZ = Borger,
Assyrisch-babylonische Zeichenliste. Which numbers HZL has is known from the tables of its readings; what they are in
Unicode from concordances, whose doubts are kept.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from dubsar.datasets.formats.collect import is_cuneiform
from dubsar.datasets.inventory import SEPARATOR, Inventory, unmarked
from dubsar.datasets.sign_list import FOLDER, ListedSign
from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import read_rows


@dataclass(frozen=True)
class MapRow:
    """One sign that an HZL number may stand for; of a number that no concordance knows, all but ``hzl`` is empty.

    Attributes:
        hzl: the number, without marks.
        written: the number as the concordance writes it, ``(251)``; several are separated by ``|``.
        doubt: ``doubtful`` (in brackets, or with a question mark), ``part`` (``256(1)``), or empty.
        mzl, abz: several numbers are separated by ``|``.
    """

    hzl: str
    written: str = ""
    doubt: str = ""
    sign_name: str = ""
    glyph: str = ""
    codepoints: str = ""
    mzl: str = ""
    abz: str = ""


def read_hzl_numbers(root: Path) -> tuple[str, ...]:
    """Return the numbers that HZL has, such as ``24`` and ``24L``, from the table of its readings.

    Raises:
        FileNotFoundError: there is no ``sign-list/hzl_readings.tsv``.
        ValueError: the table is faulty; with file and line.
    """
    rows = read_rows(require_data(root, FOLDER, "hzl_readings.tsv"), ("hzl",))
    return tuple(dict.fromkeys(row["hzl"] for row in rows))


def map_labels(signs: Iterable[ListedSign], numbers: Iterable[str] = ()) -> list[MapRow]:
    """Map HZL numbers to signs, ordered by number; of one number the certain signs stand first.

    Args:
        signs: the sign list.
        numbers: further HZL numbers, which get an empty row where no sign has them.
    """
    rows: dict[str, list[MapRow]] = defaultdict(list)
    for sign in signs:
        written_of: dict[str, list[str]] = defaultdict(list)
        for written in sign.hzl:
            written_of[unmarked(written)].append(written)
        for number, spellings in written_of.items():
            row = MapRow(
                number,
                SEPARATOR.join(spellings),
                min(map(_doubt, spellings), key=("", "part", "doubtful").index),
                sign.name,
                sign.glyph,
                sign.codepoints,
                SEPARATOR.join(sign.mzl),
                SEPARATOR.join(sign.abz),
            )
            rows[number].append(row)
    for number, found in rows.items():  # a form without a code point of its own says nothing beside its sign
        encoded = {row.sign_name for row in found if row.glyph}
        rows[number] = [row for row in found if row.glyph or row.sign_name not in encoded]
    for number in numbers:
        rows[number] = rows[number] or [MapRow(number)]
    return [row for number in sorted(rows, key=_order) for row in sorted(rows[number], key=lambda r: r.doubt != "")]


def count_labels(rows: Sequence[MapRow], signs: Iterable[ListedSign]) -> dict[str, int]:
    """Count what is known of the numbers of HZL and MZL; a number counts as doubtful where nothing surer is known.

    Numbers with a letter (``24L``), which stand for forms, are counted apart.
    """
    glyphs: dict[str, set[str]] = defaultdict(set)
    sure: dict[str, bool] = defaultdict(bool)
    forms = {row.hzl for row in rows if not row.hzl.isdigit()}
    for row in rows:
        if row.hzl in forms:
            continue
        glyphs[row.hzl] |= {row.glyph} - {""}
        sure[row.hzl] |= bool(row.glyph) and not row.doubt
    kinds = Counter(min(len(found), 2) for found in glyphs.values())
    mzl: dict[str, bool] = defaultdict(bool)
    for sign in signs:
        for number in sign.mzl:
            mzl[number] |= bool(sign.glyph)
    of_hzl = {n for row in rows for n in row.mzl.split(SEPARATOR) if n}
    return {
        "HZL numbers": len(glyphs),
        "with one sign in Unicode": kinds[1],
        "with several": kinds[2],
        "with none": kinds[0],
        "with a doubtful sign only": sum(not sure[n] for n, found in glyphs.items() if found),
        "forms with a letter": len(forms),
        "of them without a sign": sum(not row.glyph for row in rows if row.hzl in forms),
        "MZL numbers": len(mzl),
        "MZL numbers without a code point": sum(not known for known in mzl.values()),
        "MZL numbers that HZL shares": len(of_hzl),
    }


def without_code_point(inventory: Inventory) -> list[str]:
    """Return the labels of a data set whose glyph is not known for certain, in the order of the classes."""
    return [c.name for c in inventory.classes if not is_cuneiform(c.glyph)]


def to_tsv(rows: Sequence[MapRow]) -> str:
    """Return the map as a table with tabs: a header line, then a line a row."""
    header = "\t".join(f.name for f in fields(MapRow))
    return "\n".join([header, *("\t".join(astuple(row)) for row in rows)]) + "\n"


def _doubt(written: str) -> str:
    if written.startswith("(") or written.endswith("?") or written.startswith("to "):
        return "doubtful"
    return "" if written == unmarked(written) else "part"


def _order(number: str) -> tuple[int, str]:
    digits = re.match(r"\d+", number)
    return (int(digits[0]) if digits else 10**6, number)
