"""Align a transliteration with its signs: one piece of text per sign.

Most lines have exactly one reading per sign; the rest (numerals, ligatures, MEŠ written with two code points) are
aligned by dynamic programming over a reading table counted from the lines that do. Worked example::

    signs      𒀭      𒌨      𒈨      𒌈   …
    translit   {d}taš-me-tum …
    pieces     "{d}"  "taš"  "-me"  "-tum"  " …"          pieces always join to the transliteration

The pieces make the transliterator's alignment explicit (`dubsar.models.transliterator`), and tell the report which
boxes a reading came from.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

READING = re.compile(r"…|[^\s\-.+:{}…]+")
_OPENING = re.compile(r"[\s\-.+:{]*$")
UNREAD = "…x▒�"  # signs that stand for lost or unread ones


def pieces(translit: str) -> list[str]:
    """Split canonical text at each reading; separators go to the reading they precede, ``}`` to the one it closes."""
    spans = [m.span() for m in READING.finditer(translit)]
    if not spans:
        return []
    cuts = [0]
    for (_, end), (start, _) in pairwise(spans):
        between = translit[end:start]
        opening = _OPENING.search(between)
        cuts.append(end + (opening.start() if opening else len(between)))
    cuts.append(len(translit))
    return [translit[a:b] for a, b in pairwise(cuts)]


def bare(piece: str) -> str:
    """Return the reading in a piece, without separators and braces."""
    match = READING.search(piece)
    return match[0] if match else ""


@dataclass
class ReadingTable:
    """How often each sign is read how; for `align` where counts differ, and for the floor: the commonest reading."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def count(cls, lines: Iterable[tuple[Sequence[str], str]]) -> "ReadingTable":
        """Count the readings of all lines whose numbers of signs and readings agree."""
        table = cls()
        for signs, translit in lines:
            parts = pieces(translit)
            if len(parts) == len(signs):
                for sign, part in zip(signs, parts, strict=True):
                    table.counts[sign][bare(part)] += 1
        return table

    def cost(self, sign: str, reading: str) -> float:
        """Return -log of the smoothed share of ``reading`` among the readings of ``sign``, at most 7.

        The bound keeps a reading that no single sign has (UGU, written with two) cheaper to give to one than to skip.
        """
        seen = self.counts.get(sign)
        if sign in UNREAD or reading in UNREAD:
            return 0.0 if sign == reading else 8.0
        if not seen:
            return 5.0
        return min(7.0, -math.log((seen[reading] + 0.01) / (sum(seen.values()) + 1.0)))

    def commonest(self, sign: str) -> str:
        """Return the most frequent reading, or ``x`` for a sign never seen."""
        seen = self.counts.get(sign)
        return seen.most_common(1)[0][0] if seen else "x"


def align(signs: Sequence[str], translit: str, table: ReadingTable, *, skip_cost: float = 6.0) -> list[str] | None:
    """Give each sign its piece of the transliteration.

    Args:
        signs: code points in order.
        translit: canonical text.
        table: reading counts for lines whose numbers differ.
        skip_cost: cost of a sign without a reading (its piece is empty) or a reading without a sign of its own.

    Returns:
        One piece per sign, joining to ``translit``; None where the numbers are too far apart to be aligned.
    """
    parts = pieces(translit)
    n, m = len(signs), len(parts)
    if n == m:
        return parts
    if n == 0 or m == 0 or abs(n - m) > 2 + max(n, m) // 3:
        return None
    best = [[math.inf] * (m + 1) for _ in range(n + 1)]
    step = [[""] * (m + 1) for _ in range(n + 1)]
    best[0][0] = 0.0
    for i in range(n + 1):
        for j in range(m + 1):
            if i and j and best[i - 1][j - 1] + (c := table.cost(signs[i - 1], bare(parts[j - 1]))) < best[i][j]:
                best[i][j], step[i][j] = best[i - 1][j - 1] + c, "match"
            if i and best[i - 1][j] + skip_cost < best[i][j]:
                best[i][j], step[i][j] = best[i - 1][j] + skip_cost, "sign"
            if i and j and best[i][j - 1] + skip_cost < best[i][j]:
                best[i][j], step[i][j] = best[i][j - 1] + skip_cost, "reading"
    return _trace(signs, parts, step)


def _trace(signs: Sequence[str], parts: list[str], step: list[list[str]]) -> list[str]:
    aligned = [""] * len(signs)
    i, j = len(signs), len(parts)
    while i or j:
        match step[i][j]:
            case "match":
                i, j = i - 1, j - 1
                aligned[i] = parts[j] + aligned[i]
            case "sign":
                i -= 1
            case _:
                j -= 1
                aligned[i - 1] = parts[j] + aligned[i - 1]
    return aligned
