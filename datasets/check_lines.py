"""Checks of the line tables: text form, brackets, repeated rows, splits."""

import re
import unicodedata
from collections import Counter
from pathlib import Path

from dubsar.datasets.issues import Issue, Severity
from dubsar.datasets.lines import COLLECTIONS, SPLITS, Collection
from dubsar.datasets.splits import Record
from dubsar.datasets.tables import Row, read_rows

MISSING_WORDS = frozenset({"NA", "NAN", "N/A", "NULL", "NONE", "TRUE", "FALSE"})
_PAIRS = {"]": "[", "}": "{", "⸣": "⸢", ")": "(", "⟩": "⟨"}
_MARKED = ("translit", "translit_marked", "translit_full", "atf")
# a publication number with its joins at the head of a source reference: "KUB 30.21 + KUB 39.7 I 2-4"
_NUMBER = r"[A-Z]\w+ \d+(?:\.\d+)?"
_SOURCE_REFERENCE = re.compile(rf"{_NUMBER}(?:\s*\(?\+\)?\s*{_NUMBER})*")
_UNMAPPED = re.compile("[□\ufffd]")


def check_lines(root: Path) -> tuple[list[Issue], list[Record]]:
    """Check every line collection below ``root`` that is there; return the issues and one record per row."""
    issues: list[Issue] = []
    records: list[Record] = []
    for collection in COLLECTIONS.values():
        if not (root / collection.folder).is_dir():
            continue
        signs_of: dict[str, list[str]] = {split: [] for split in SPLITS}
        for name, table_split in collection.tables(None):
            path = root / collection.folder / name
            if not path.is_file():
                issues.append(Issue(path, 0, "the table is missing; expected it beside its README"))
                continue
            rows = read_rows(path, collection.columns(), issues=issues)
            issues.extend(check_missing_words(path, rows))
            issues.extend(_check_rows(path, rows, collection))
            for row in rows:
                split = table_split or row["split"]
                if split not in SPLITS:
                    fault = f"split is {split!r}, expected one of {', '.join(SPLITS)}"
                    issues.append(Issue(path, row.line, fault))
                    continue
                signs_of[split].append(row[collection.signs])
                records.append(Record(tablet_numbers(row, collection), split, path, row.line))
        issues.extend(_shared_signs(root / collection.folder, signs_of))
    return issues, records


def tablet_numbers(row: Row, collection: Collection) -> tuple[str, ...]:
    """Return the tablet numbers of a row: its text, or for a treebank (no digit in its name) the source reference."""
    text_id = row[collection.text_id]
    if any(c.isdigit() for c in text_id):
        return (text_id,)
    found = _SOURCE_REFERENCE.match(" ".join(row[c] for c in collection.label))
    return (found[0],) if found else ()


def check_missing_words(path: Path, rows: list[Row]) -> list[Issue]:
    """Note how many cells are spelled like a missing value (a sign may be called NA); they were read as text."""
    found = Counter(
        cell for row in rows for cell in row.cells.values() if cell.upper() in MISSING_WORDS and not cell.islower()
    )
    if not found:
        return []
    names = ", ".join(f"{word} {count}x" for word, count in sorted(found.items()))
    return [Issue(path, 0, f"cells spelled like a missing value were kept as text: {names}", "note")]


def text_faults(text: str) -> list[str]:
    """Name what is wrong with the form of a text: not NFC, NUL, BOM, lone surrogate. Any string is accepted."""
    faults = []
    if not unicodedata.is_normalized("NFC", text):
        faults.append("not NFC (composed characters expected)")
    if "\x00" in text:
        faults.append("a NUL character")
    if "\ufeff" in text:
        faults.append("a byte order mark inside the text")
    if any("\ud800" <= c <= "\udfff" for c in text):
        faults.append("a lone surrogate")
    return faults


def unbalanced(text: str) -> str:
    """Return the first bracket of ``text`` without its partner, or an empty string.

    Kinds are counted apart, since lost and damaged stretches overlap in editions (``[a ⸢b] c⸣``).
    """
    open_counts: Counter[str] = Counter()
    for char in text:
        if char in _PAIRS.values():
            open_counts[char] += 1
        elif char in _PAIRS:
            if not open_counts[_PAIRS[char]]:
                return char
            open_counts[_PAIRS[char]] -= 1
    return next((char for char, count in open_counts.items() if count), "")


def _check_rows(path: Path, rows: list[Row], collection: Collection) -> list[Issue]:
    issues: list[Issue] = []
    seen: dict[tuple[str, ...], int] = {}
    unmapped = 0
    key = tuple(c for c in collection.columns() if c != "split")
    for row in rows:
        for column, text in row.cells.items():
            issues.extend(Issue(path, row.line, f"{column}: {f}", "warning") for f in text_faults(text))
            lone = unbalanced(text) if column in _MARKED else ""
            if lone:
                # a lost stretch may go on over lines; a determinative cannot
                severity: Severity = "warning" if lone in "{}" else "note"
                issues.append(Issue(path, row.line, f"{column}: {lone} without its partner on this line", severity))
        for column in (collection.signs, collection.translit):
            if not row[column].strip():
                issues.append(Issue(path, row.line, f"{column} is empty; nothing can be learned from it", "warning"))
        unmapped += bool(_UNMAPPED.search(row[collection.signs]))
        first = seen.setdefault(tuple(row[c] for c in key), row.line)
        if first != row.line:
            issues.append(Issue(path, row.line, f"the same row as on line {first}", "warning"))
    if unmapped:
        issues.append(Issue(path, 0, f"{unmapped} lines hold a sign without a known code point (□ or U+FFFD)", "note"))
    return issues


def _shared_signs(folder: Path, signs_of: dict[str, list[str]]) -> list[Issue]:
    train = {signs for signs in signs_of["train"] if signs}
    issues = []
    for split in ("dev", "test"):
        shared = sum(signs in train for signs in signs_of[split])
        if shared:
            total = len(signs_of[split])
            message = f"{shared} of {total} {split} lines ({100 * shared / total:.1f} %) have a sign string of train"
            issues.append(Issue(folder, 0, message, "note"))
    return issues
