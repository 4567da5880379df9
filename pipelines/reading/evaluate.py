"""Score reading from photograph to text: signs found, signs named, lines, and text, against boxes and ATF.

How text is aligned: per tablet, all lines found (faces and lines in reading order, less faces
that are ``aside``) are joined by spaces and compared
with all attested lines of its ATF, joined in file order, by one global edit distance over characters of the canonical
form. Wrong order therefore counts; a tablet that failed or came out empty counts as all deletions. ``…`` stands for
lost text in both.

How lines are compared: found and attested lines of a tablet are paired in order so that the summed edit distance is
least; a pair counts as the same line where at least `SAME_LINE` of the characters agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from dubsar.datasets.boxes import match
from dubsar.datasets.formats.catf import AtfLine
from dubsar.datasets.tablet import Tablet
from dubsar.datasets.text import canonical

SAME_LINE = 0.3


@dataclass
class ReadScores:
    """Sums over photographs; `summary` turns them into rates."""

    edits: int = 0
    reference: int = 0
    texts: int = 0
    true_lines: int = 0
    found_lines: int = 0
    same_lines: int = 0
    true_signs: int = 0
    matched: int = 0
    top1: int = 0
    top5: int = 0
    found_signs: int = 0
    seconds: list[dict[str, float]] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return percentages, counts and median seconds."""

        def share(part: int, whole: int) -> float:
            return 100 * part / whole if whole else 0.0

        # no reference at all: all that was written is wrong; no text at all: there is nothing to say
        cer = share(self.edits, self.reference) if self.reference else 100.0 * self.edits
        text = {"cer": cer} if self.texts else {}
        totals = [sum(s.values()) for s in self.seconds]
        steps = {k: float(np.sum([s.get(k, 0.0) for s in self.seconds])) for s in self.seconds[:1] for k in s}
        whole = sum(steps.values())
        return {
            **text,
            "tablets_with_text": self.texts,
            "line_precision": share(self.same_lines, self.found_lines),
            "line_recall": share(self.same_lines, self.true_lines),
            "sign_recall50": share(self.matched, self.true_signs),
            "signs_found": self.found_signs,
            "matched_top1": share(self.top1, self.matched),
            "matched_top5": share(self.top5, self.matched),
            "median_seconds": float(np.median(totals)) if totals else 0.0,
            **{f"share_{k}": 100 * v / whole if whole else 0.0 for k, v in steps.items()},
        }


def add_signs(
    scores: ReadScores, tablet: Tablet | None, true_boxes_N4: npt.NDArray[np.float64], true_glyphs: Sequence[str]
) -> None:
    """Count a photograph's signs: found at IoU 0.5, and named right among those that were found."""
    scores.true_signs += len(true_glyphs)
    signs = [s for s in tablet.signs() if s.box is not None] if tablet else []
    scores.found_signs += len(signs)
    boxes = np.array([s.box for s in signs], dtype=np.float64).reshape(-1, 4)
    for found, true in match(boxes, true_boxes_N4, 0.5, np.array([s.confidence for s in signs])):
        glyphs = [c.glyph for c in signs[found].candidates[:5]]
        scores.matched += 1
        scores.top1 += glyphs[:1] == [true_glyphs[true]]
        scores.top5 += true_glyphs[true] in glyphs


def add_text(scores: ReadScores, tablet: Tablet | None, reference: Sequence[AtfLine]) -> None:
    """Count a tablet's text against its ATF."""
    true = [line.text for line in reference if line.text]
    found = [comparable(line.text) for line in tablet.text()] if tablet else []
    found = [line for line in found if line.strip("… ")]
    whole = " ".join(true)
    scores.texts += 1
    scores.reference += len(whole)
    scores.edits += Levenshtein.distance(" ".join(found), whole)
    scores.true_lines += len(true)
    scores.found_lines += len(found)
    scores.same_lines += same_lines(found, true)


def comparable(text: str) -> str:
    """Return a line's text without marks of doubt, broken stretches as ``…``."""
    return canonical(text.replace("[...]", "…").replace("?", ""))


def same_lines(found: Sequence[str], true: Sequence[str]) -> int:
    """Pair lines in order at least summed distance and count the pairs that are the same line."""
    rows, columns = len(found), len(true)
    distance = np.array([[Levenshtein.distance(f, t) for t in true] for f in found]).reshape(rows, columns)
    best = np.zeros((rows + 1, columns + 1))
    best[1:, 0] = np.cumsum([len(f) for f in found])
    best[0, 1:] = np.cumsum([len(t) for t in true])
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            skip = min(best[i - 1, j] + len(found[i - 1]), best[i, j - 1] + len(true[j - 1]))
            best[i, j] = min(best[i - 1, j - 1] + distance[i - 1, j - 1], skip)
    i, j, same = rows, columns, 0
    while i and j:
        if best[i, j] == best[i - 1, j - 1] + distance[i - 1, j - 1]:
            i, j = i - 1, j - 1
            same += distance[i, j] <= (1 - SAME_LINE) * max(len(found[i]), len(true[j]))
        elif best[i, j] == best[i - 1, j] + len(found[i - 1]):
            i -= 1
        else:
            j -= 1
    return int(same)
