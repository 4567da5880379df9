"""The sign list: names, glyphs and the numbers of several catalogues, and which signs a catalogue files under a label.

Catalogues count differently. HZL puts ḪI and ŠÁR under one number (335) and A under two (364, 365); its concordance
marks what it is not sure of: ``(251)``, ``210?``, ``to 109``, or a part of a number: ``256(1)``, ``209.2``. All of
that is kept: a label that stands for several signs has no glyph that could be taken for certain.
"""

from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from dubsar.datasets.inventory import SEPARATOR, Inventory, SignClass, abz_numbers, unmarked
from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import read_rows

FOLDER = "sign-list"
COLUMNS = ("sign_name", "form_of", "glyph", "mzl", "hzl", "hzl_extra")


@dataclass(frozen=True)
class ListedSign:
    """One sign with all its numbers; its forms with the same name and glyph are put together.

    Attributes:
        name: Oracc's.
        glyph: one or more code points; empty where Unicode has none.
        mzl, hzl, abz: as the concordances write them, in the order of the list.
    """

    name: str
    glyph: str
    mzl: tuple[str, ...] = ()
    hzl: tuple[str, ...] = ()
    abz: tuple[str, ...] = ()

    @property
    def codepoints(self) -> str:
        """``U+12038``, several separated by a space."""
        return " ".join(f"U+{ord(c):04X}" for c in self.glyph)

    def numbers(self, catalogue: str) -> tuple[str, ...]:
        """Return the numbers of ``MZL``, ``HZL`` or ``ABZ``."""
        found: tuple[str, ...] = getattr(self, catalogue.lower())
        return found


def read_sign_list(root: Path) -> tuple[ListedSign, ...]:
    """Read ``sign-list/signs.tsv`` and, for ABZ, ``abz_to_unicode.tsv`` below a data root, in file order.

    Raises:
        FileNotFoundError: there is no ``signs.tsv``; the message says what to set.
        ValueError: a table is faulty; with file and line.
    """
    path = require_data(root, FOLDER, "signs.tsv")
    abz = abz_numbers(root / FOLDER / "abz_to_unicode.tsv")
    found: dict[tuple[str, str], ListedSign] = {}
    for row in read_rows(path, COLUMNS):
        key = (row["sign_name"], row["glyph"])
        known = found.get(key, ListedSign(*key))
        found[key] = ListedSign(
            *key,
            mzl=_joined(known.mzl, row["mzl"]),
            hzl=_joined(known.hzl, row["hzl"], row["hzl_extra"]),
            abz=_joined((), abz.get(row["glyph"], "")) if row["glyph"] else (),
        )
    return tuple(found.values())


def look_up(signs: tuple[ListedSign, ...], catalogue: str, label: str) -> list[ListedSign]:
    """Return the signs that a label may stand for, in the order of the list.

    Args:
        signs: the sign list.
        catalogue: what labels are: ``MZL``, ``HZL``, ``ABZ`` (numbers as text, such as ``24`` or ``129a``), ``name``
            (of Oracc, with its case and diacritics), ``glyph``, or ``none``.
        label: looked up as it stands; where no sign has that very number, those count that have it with a mark of
            doubt or a part: 251 finds ``(251)``.
    """
    if catalogue == "none":
        return []
    if catalogue in {"name", "glyph"}:
        return [s for s in signs if getattr(s, catalogue) == label]
    exact = [s for s in signs if label in s.numbers(catalogue)]
    return exact or [s for s in signs if label in map(unmarked, s.numbers(catalogue))]


def label_inventory(labels: list[str], catalogue: str, signs: tuple[ListedSign, ...]) -> tuple[Inventory, list[str]]:
    """Make the inventory of a data set whose classes are labels, sorted, one class a label.

    The class's name is its label: case and diacritics are kept apart. Its glyph is that of the sign list where the
    label stands for one sign with a glyph, and no other label does for the same. Elsewhere the label stands in for the
    glyph too, since a class is known by it; such a class cannot be rendered by a font.

    Args:
        labels: of the data set, in any order; NFC or not.
        catalogue: what they are, see `look_up`.
        signs: the sign list; may be empty for catalogue ``none``.

    Returns:
        The inventory, and for each label without a sure glyph one line that says why.
    """
    wanted = sorted({normalize("NFC", label) for label in labels})
    found = {label: look_up(signs, catalogue, label) for label in wanted}
    glyphs = {label: {s.glyph for s in signs if s.glyph} for label, signs in found.items()}
    sharing: dict[str, list[str]] = {label: [label] for label in wanted}  # a label may be another one's glyph
    for label, options in glyphs.items():
        for glyph in options - {label} if len(options) == 1 else ():
            sharing.setdefault(glyph, []).append(label)
    classes, notes = [], []
    for label in wanted:
        own = next(iter(glyphs[label])) if len(glyphs[label]) == 1 else ""
        why = _why_none(label, catalogue, found[label], sharing.get(own, []))
        if why:
            notes.append(f"label {label!r} has no sure glyph: {why}")
        numbers = {c: _numbers(found[label], c) for c in ("mzl", "hzl", "abz")}
        if catalogue.lower() in numbers:
            numbers[catalogue.lower()] = label
        classes.append(SignClass(label if why else own or label, label, **numbers))
    return Inventory(tuple(classes)), notes


def _why_none(label: str, catalogue: str, found: list[ListedSign], sharing: list[str]) -> str:
    """Say why a label has no glyph of its own; empty where it has one, or where none was asked for."""
    if catalogue == "none":
        return ""
    named = ", ".join(f"{s.name} {s.glyph}".strip() for s in found)
    if not found:
        return f"the sign list has no {catalogue} {label}"
    glyphs = {s.glyph for s in found if s.glyph}
    if not glyphs:
        return f"{named} has no code point"
    if len(glyphs) > 1:
        return f"{catalogue} {label} is {named}"
    if len(sharing) > 1:
        return f"{named} is also {catalogue} {', '.join(s for s in sharing if s != label)}"
    return ""


def _numbers(signs: list[ListedSign], catalogue: str) -> str:
    return SEPARATOR.join(dict.fromkeys(n for s in signs for n in s.numbers(catalogue)))


def _joined(known: tuple[str, ...], *cells: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *(n for cell in cells for n in cell.split(SEPARATOR) if n)]))
