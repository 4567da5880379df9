"""What every box format shares: which boxes are kept, which are refused, which are listed.

A box that cannot be right (swapped corners, no area, outside the picture, not finite, unknown class) is refused with
file and line. With ``ignore_unknown`` that one *box* is dropped and listed instead, and the total is counted; the rest
of the picture stays. A box that stands twice is counted once; two labels on one box are a conflict, and the first is
kept.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import BoxXYXY, Candidate, Sign

EDGE_TOLERANCE_PX = 1.0
_CUNEIFORM = ("\U00012000", "\U0001254f")


@dataclass
class BoxCollector:
    """Collect the boxes of one picture.

    Attributes:
        path: the file that is read, for messages.
        size: (width, height) of the picture in pixels; None where it is not known.
        ignore_unknown: drop and list a bad box instead of refusing the file.
        refuse_duplicates: a repeated row is refused too; otherwise it is listed and counted once.
    """

    path: Path
    size: tuple[int, int] | None
    ignore_unknown: bool = False
    refuse_duplicates: bool = False
    signs: list[Sign] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    n_dropped: int = 0
    _label_of: dict[BoxXYXY, tuple[str, int]] = field(default_factory=dict)

    def add(self, line: int, box_xyxy: BoxXYXY, label: str, sign: Sign) -> bool:
        """Keep ``sign`` at ``box_xyxy`` (pixels) unless the box is bad or was met before; return whether it was kept.

        Raises:
            ValueError: the box is bad and ``ignore_unknown`` is off.
        """
        fault = box_fault(box_xyxy, self.size)
        if fault:
            self.reject(line, fault)
            return False
        if box_xyxy in self._label_of:
            self._repeated(line, box_xyxy, label)
            return False
        self._label_of[box_xyxy] = (label, line)
        self.signs.append(sign.model_copy(update={"box": box_xyxy}))
        return True

    def reject(self, line: int, fault: str) -> None:
        """Refuse the row, or with ``ignore_unknown`` drop and list it.

        Raises:
            ValueError: with file and line, where ``ignore_unknown`` is off.
        """
        if not self.ignore_unknown:
            raise ValueError(f"{self.path}:{line}: {fault}; correct the row, or drop such boxes with ignore_unknown")
        self.n_dropped += 1
        self.issues.append(Issue(self.path, line, f"{fault}; the box was dropped"))

    def skip(self, line: int, reason: str) -> None:
        """List a row that is not a sign by the format's own rules."""
        self.issues.append(Issue(self.path, line, reason, "note"))

    def finish(self) -> list[Issue]:
        """Return the issues, with the number of dropped boxes at the end where there are any."""
        if self.n_dropped:
            total = self.n_dropped + len(self.signs)
            self.issues.append(Issue(self.path, 0, f"{self.n_dropped} of {total} boxes were dropped", "warning"))
            self.n_dropped = 0
        return self.issues

    def _repeated(self, line: int, box: BoxXYXY, label: str) -> None:
        first_label, first_line = self._label_of[box]
        place = f"{box[0]:g}, {box[1]:g}, {box[2]:g}, {box[3]:g}"
        if label != first_label:
            fault = f"box {place} is {label!r} here and {first_label!r} on line {first_line}"
            self.issues.append(Issue(self.path, line, f"{fault}; the first was kept"))
        elif self.refuse_duplicates:
            self.reject(line, f"duplicate row: box {place}, {label!r} stands on line {first_line} already")
        else:
            fault = f"duplicate row: box {place}, {label!r} stands on line {first_line} already"
            self.issues.append(Issue(self.path, line, f"{fault}; counted once", "warning"))


def box_fault(box_xyxy: BoxXYXY, size: tuple[int, int] | None) -> str:
    """Say what is wrong with a box in pixels, or return an empty string.

    Args:
        box_xyxy: (x0, y0, x1, y1) in pixels.
        size: (width, height) of the picture; the edge is not checked where it is None.
    """
    x0, y0, x1, y1 = box_xyxy
    place = f"box {x0:g}, {y0:g}, {x1:g}, {y1:g}"
    if not all(math.isfinite(v) for v in box_xyxy):
        return f"{place} has a coordinate that is not a finite number; expected pixels"
    if x1 < x0 or y1 < y0:
        return f"{place} has swapped corners or a negative size; expected x0 < x1 and y0 < y1"
    if x1 == x0 or y1 == y0:
        return f"{place} has no area; expected x0 < x1 and y0 < y1"
    if x0 < -EDGE_TOLERANCE_PX or y0 < -EDGE_TOLERANCE_PX:
        return f"{place} has a negative coordinate; expected a box inside the picture"
    if size and (x1 > size[0] + EDGE_TOLERANCE_PX or y1 > size[1] + EDGE_TOLERANCE_PX):
        return f"{place} reaches beyond the picture, which is {size[0]} x {size[1]} pixels"
    return ""


def is_cuneiform(label: str) -> bool:
    """Return whether every character of ``label`` lies in the cuneiform blocks of Unicode."""
    return bool(label) and all(_CUNEIFORM[0] <= c <= _CUNEIFORM[1] for c in label)


def candidate_for(label: str, glyph_of: dict[str, str] | None = None) -> Candidate:
    """Build a certain candidate from a label that is a glyph or a sign name.

    Args:
        label: glyph, sign name or catalogue number.
        glyph_of: glyph by label; a label that is not in it keeps an empty glyph.
    """
    if is_cuneiform(label):
        return Candidate(glyph=label, probability=1.0)
    return Candidate(glyph=(glyph_of or {}).get(label, ""), name=label, probability=1.0)


def label_of(sign: Sign) -> str:
    """Return the label a format writes: the best candidate's name, else its glyph, else an empty string."""
    return (sign.candidates[0].name or sign.candidates[0].glyph) if sign.candidates else ""


def read_lines(path: Path) -> list[str]:
    """Read a text file's lines; BOM and mixed newlines are allowed.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error}); save the file as UTF-8") from error
    return text.split("\n")
