"""Splits by tablet: which records are one tablet, whether splits leak, and how to draw new ones.

Two records are one tablet if their numbers share a part: ``K 03323 + K 18186`` and ``K.18186`` are. Museum numbers are
compared in one spelling, since collections write them differently: ``K 09237`` = ``K.9237``, and for accession dates
``Ki 1904-10-9,098`` = ``1904,1009.98``, ``83-1-18,726`` = ``1883,0118.726``. A bare number after ``+`` takes the
letters before it: ``K.1+2`` is K.1 and K.2. What has no number is known by its file (`unnumbered`), as it is written.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dubsar.datasets.issues import Issue

SPLITS = ("train", "dev", "test")
_FILE = "file:"
_JOIN = re.compile(r"\(\s*\+\s*\)|\+")
_TOKEN = re.compile(r"[^\W\d_]+|\d+")
_ACCESSION_EBL = re.compile(r"(?:18|19)(\d\d),(\d\d)(\d\d)\.(\d+\w?)")
_ACCESSION_CDLI = re.compile(r"(?:[A-Za-z]+\s+)?(?:18|19)?(\d\d)-(\d+)-(\d+),(\d+\w?)")


@dataclass(frozen=True)
class Record:
    """One record of a split: every number it is known by, and where it stands."""

    identifiers: tuple[str, ...]
    split: str
    path: Path
    line: int

    @property
    def place(self) -> str:
        """File name and line."""
        return f"{self.path.name}:{self.line}"


def unnumbered(file: str) -> str:
    """Return the identifier of a picture whose tablet is not known; files differ in case and in each sign."""
    return _FILE + file


def tablet_parts(identifier: str) -> tuple[str, ...]:
    """Return the parts of a number in one spelling: ``"K 01292+"`` gives ``("K.1292",)``."""
    if identifier.startswith(_FILE):
        return (identifier,)
    parts: list[str] = []
    letters: list[str] = []
    for piece in _JOIN.split(identifier):
        tokens = _tokens(piece)
        if len(tokens) == 1 and tokens[0].isdigit() and letters:
            tokens = [*letters, *tokens]
        elif tokens:
            letters = tokens[:-1]
        if tokens:
            parts.append(".".join(tokens))
    return tuple(dict.fromkeys(parts))


def group_tablets(identifiers: Sequence[Iterable[str]]) -> list[int]:
    """Number the tablets behind a list of records.

    Args:
        identifiers: for each record the numbers it is known by; empty ones are ignored.

    Returns:
        One group number per record; records that share a part, directly or through others, share a number.
    """
    parent = list(range(len(identifiers)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[str, int] = {}
    for index, names in enumerate(identifiers):
        for part in {p for name in names for p in tablet_parts(name)}:
            parent[root(index)] = root(first.setdefault(part, index))
    return [root(index) for index in range(len(identifiers))]


def find_leaks(records: Sequence[Record]) -> list[Issue]:
    """List each tablet that stands in two splits, with both places named: one issue a tablet and further split."""
    groups = group_tablets([r.identifiers for r in records])
    first: dict[int, dict[str, Record]] = {}
    issues: list[Issue] = []
    for group, record in zip(groups, records, strict=True):
        known = first.setdefault(group, {})
        if record.split not in known:
            for other in known.values():
                same = _name(record) if _name(record) == _name(other) else f"{_name(record)} (there {_name(other)})"
                issues.append(
                    Issue(
                        record.path,
                        record.line,
                        f"tablet {same} is in split {record.split} here and in {other.split} on {other.place}; "
                        "keep a tablet with all its fragments in one split",
                    )
                )
            known[record.split] = record
    return issues


def draw_splits(
    identifiers: Sequence[Iterable[str]], *, dev: float = 0.1, test: float = 0.1, salt: str = "dubsar"
) -> list[str]:
    """Draw a split by tablet, the same for the same tablets in any order.

    Args:
        identifiers: for each record the numbers it is known by.
        dev: share of tablets for the development split.
        test: share of tablets for the test split.
        salt: another salt gives another draw.

    Returns:
        ``train``, ``dev`` or ``test`` for each record.

    Raises:
        ValueError: a share is negative or both together exceed 1.
    """
    if dev < 0 or test < 0 or dev + test > 1:
        raise ValueError(f"shares are dev {dev} and test {test}; expected both at least 0 and together at most 1")
    groups = group_tablets(identifiers)
    key_of: dict[int, str] = {}
    for group, names in zip(groups, identifiers, strict=True):
        for part in (p for name in names for p in tablet_parts(name)):
            key_of[group] = min(key_of.get(group, part), part)
    drawn: list[str] = []
    for group in groups:
        digest = hashlib.sha256(f"{salt}\t{key_of.get(group, '')}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        drawn.append("test" if share < test else "dev" if share < test + dev else "train")
    return drawn


def _tokens(number: str) -> list[str]:
    number = number.strip()
    date = _ACCESSION_EBL.fullmatch(number) or _ACCESSION_CDLI.fullmatch(number)
    if date:
        number = "{}.{}.{}.{}".format(*date.groups())
    return [t.upper() if not t.isdigit() else str(int(t)) for t in _TOKEN.findall(number)]


def _name(record: Record) -> str:
    return next((name for name in record.identifiers if name), "without a number")
