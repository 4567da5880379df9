"""eBL's ``gt_<museum number>.txt``: one box a line, ``left,top,width,height,label`` in whole pixels of the picture.

The label is all that follows the fourth comma, so it may hold commas; ``?`` at its end marks a sign that is partly
broken. ``BLANK`` marks a place without a sign (often a stray click without area): listed, not read. Repeated boxes are
counted once.
"""

from pathlib import Path

from dubsar.datasets.formats.collect import BoxCollector, candidate_for, label_of, read_lines
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Face, Line, Sign, Tablet, enclosing_box

PREFIX = "gt_"
NO_SIGN = frozenset({"BLANK", "0"})


def read_ebl_txt(
    path: Path,
    size: tuple[int, int] | None = None,
    *,
    glyph_of: dict[str, str] | None = None,
    ignore_unknown: bool = False,
) -> tuple[Tablet, list[Issue]]:
    """Read one file as a tablet with one face and one unlabelled line.

    Args:
        path: the file; its name gives the tablet's identifier.
        size: (width, height) of the picture in pixels; where None, the boxes' own extent.
        glyph_of: glyph by eBL sign name; names that are not in it are dropped with ``ignore_unknown``, else kept
            without a glyph.
        ignore_unknown: drop and list a bad box instead of refusing the file.

    Returns:
        The tablet (no sign where the file is empty) and what was found wrong.

    Raises:
        ValueError: with file and line, a row that cannot be used and ``ignore_unknown`` is off.
    """
    boxes = BoxCollector(path, size, ignore_unknown)
    for number, text in enumerate(read_lines(path), start=1):
        if text.strip():
            _add(boxes, number, text, glyph_of)
    issues = boxes.finish()
    return _tablet(path, size, boxes.signs), issues


def write_ebl_txt(path: Path, tablet: Tablet) -> list[Issue]:
    """Write a tablet's boxes, rounded to whole pixels; return what the format cannot hold.

    Args:
        path: where to write.
        tablet: signs without a box or without a label are listed and left out, as are lines and alternatives.
    """
    rows: list[str] = []
    issues: list[Issue] = []
    for number, sign in enumerate(tablet.signs(), start=1):
        label = label_of(sign)
        if sign.box is None or not label:
            issues.append(Issue(path, 0, f"sign {number} has no {'label' if sign.box else 'box'}; left out", "warning"))
            continue
        x0, y0, x1, y1 = (round(v) for v in sign.box)
        mark = "?" if sign.damage == "damaged" else ""
        rows.append(f"{x0},{y0},{x1 - x0},{y1 - y0},{label}{mark}\n")
    path.write_text("".join(rows), encoding="utf-8", newline="\n")
    return issues


def _add(boxes: BoxCollector, number: int, text: str, glyph_of: dict[str, str] | None) -> None:
    cells = text.split(",", 4)
    if len(cells) < 5:
        boxes.reject(number, f"{len(cells)} fields; expected left,top,width,height,label")
        return
    label = cells[4].strip()
    try:
        left, top, width, height = (float(v) for v in cells[:4])
    except ValueError as error:
        boxes.reject(number, f"{error}; expected left,top,width,height in pixels before the label")
        return
    if label in NO_SIGN:
        boxes.skip(number, f"label {label} marks a place without a sign; not read")
        return
    name = label.removesuffix("?")
    if not name:
        boxes.reject(number, "the label is empty; expected a sign name")
        return
    candidate = candidate_for(name, glyph_of)
    if glyph_of is not None and not candidate.glyph and boxes.ignore_unknown:
        boxes.reject(number, f"unknown label {name!r}")
        return
    sign = Sign(candidates=(candidate,), damage="damaged" if label != name else "intact", provenance="ebl")
    boxes.add(number, (left, top, left + width, top + height), label, sign)


def _tablet(path: Path, size: tuple[int, int] | None, signs: list[Sign]) -> Tablet:
    if size is None:
        extent = enclosing_box([s.box for s in signs if s.box is not None]) or (0.0, 0.0, 1.0, 1.0)
        size = (max(1, int(extent[2] + 0.5)), max(1, int(extent[3] + 0.5)))
    faces = (Face(lines=(Line(label="", signs=tuple(signs)),)),) if signs else ()
    return Tablet(
        identifier=path.stem.removeprefix(PREFIX),
        width=size[0],
        height=size[1],
        faces=faces,
        provenance={"format": "ebl-txt", "file": path.name},
    )
