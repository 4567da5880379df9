"""Canonical ATF (CDLI, Oracc) as a reference for reading: what is still on the tablet, as the line tables spell it.

Restored text (``[ ]``) is not on the clay, so each run of it becomes one ``…``; editors' additions (``< >``) are left
out. ASCII becomes Unicode (``sz`` š, ``s,`` ṣ, ``t,`` ṭ, ``'`` ʾ), logograms between underscores become capitals,
joined by ``.`` as Oracc's own data writes them, except before MEŠ. Marks of damage, doubt and collation are dropped.

The reader is total: a line that it does not understand is kept as text.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from dubsar.datasets.tablet import FaceName
from dubsar.datasets.text import canonical

_FACES: dict[str, FaceName] = {
    "@obverse": "obverse",
    "@reverse": "reverse",
    "@left": "left",
    "@right": "right",
    "@top": "top",
    "@bottom": "bottom",
}
_LINE = re.compile(r"([0-9a-z]+'{0,2}(?:[.+-][0-9a-z']+)*)\.\s+(.*)")
_UNITS = {"u": 10, "gesz2": 60}
# a number is sought from its first digit only, and a comment up to the next opening: either keeps the time linear
_NUMBER = re.compile(r"(?:(?<!\d)\d{1,9}\((?:u|disz|asz|gesz2)\)[\s.]*)+")
_PART = re.compile(r"(\d+)\((\w+)\)")
_ASCII = (
    ("sz", "š"),
    ("SZ", "Š"),
    ("s,", "ṣ"),
    ("S,", "Ṣ"),
    ("t,", "ṭ"),
    ("T,", "Ṭ"),
    ("j", "ŋ"),
    ("—", "--"),
    ("'", "ʾ"),
)
_LOWER_DETERMINATIVES = frozenset({"d", "m", "f", "1"})


@dataclass(frozen=True)
class AtfLine:
    """One numbered line: face, its label, and the attested text in canonical form (empty where all of it is lost)."""

    face: FaceName
    label: str
    text: str
    line: int


def read_catf(path: Path) -> list[AtfLine]:
    """Read the numbered lines of one text in file order."""
    face: FaceName = "unknown"
    lines = []
    for number, raw in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        text = raw.strip()
        if text.startswith("@"):
            face = _FACES.get(text.split()[0].rstrip("?!*'"), face)
        elif text and text[0] not in "#$&>|" and (match := _LINE.match(text)):
            lines.append(AtfLine(face, match[1], attested(match[2]), number))
    return lines


def attested(atf: str) -> str:
    """Return what a line of ATF says is on the tablet, in canonical form.

    >>> attested("_{d}nin-lil2_ ina gu-um# _[sza3-_bi-sza2 x x]")
    '{d}NIN.LIL₂ ina gu-um …'
    """
    text = re.sub(r"\(\$(?:(?!\(\$).)*?\$\)|<<|>>|<\(|\)>", " ", atf)
    text = re.sub(r"<[^<>]*>", "", text)
    text = re.sub(r"%\w+\s", "", text)
    text = _drop_restored(_capitals(text))
    text = re.sub(r"[#?!*°]|\((?=[^()]*$)", "", text)
    text = _NUMBER.sub(_decimal, text)
    for ascii_form, letter in _ASCII:
        text = text.replace(ascii_form, letter)
    text = re.sub(r"\{(\w+)\}", _determinative, text)
    text = re.sub(r"\.\.\.|…", "…", text)
    text = re.sub(r"\{…|…\}", "…", re.sub(r"…(?:[\s.]*…)+", "…", text))
    text = canonical(text)
    return "" if not text.strip("… ") else text


def _capitals(text: str) -> str:
    """Write logograms, which stand between underscores, in capitals joined by dots."""
    parts = text.split("_")
    for i in range(1, len(parts), 2):
        upper = re.sub(r"(?<=[^-\s\[\]{}])-(?=[^-\s{}])(?!mesz)", ".", parts[i])
        parts[i] = re.sub(r"\((U|DISZ|ASZ|GESZ2)\)", lambda m: m[0].lower(), upper.upper())
    return "".join(parts)


def _drop_restored(text: str) -> str:
    """Replace each stretch in square brackets by an ellipsis; an unclosed bracket reaches to the end of the line."""
    out: list[str] = []
    depth = 0
    for letter in text:
        if letter == "[":
            out += ["…"] if depth == 0 else []
            depth += 1
        elif letter == "]":
            if depth == 0:  # opened on an earlier line: all before it is lost
                out = ["…"]
            depth = max(0, depth - 1)
        elif depth == 0:
            out.append(letter)
    return "".join(out)


def _determinative(match: re.Match[str]) -> str:
    name = match[1]
    return "{" + (name.lower() if name.lower() in _LOWER_DETERMINATIVES else name.upper()) + "}"


def _decimal(match: re.Match[str]) -> str:
    total = sum(int(n) * _UNITS.get(unit, 1) for n, unit in _PART.findall(match[0]))
    tail = match[0][len(match[0].rstrip(" .")) :]
    return f"{total}{tail}"
