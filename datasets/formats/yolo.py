"""YOLO text labels: one file a picture, one box a line, ``class cx cy width height`` as shares of the picture's sides.

An empty file is a picture without signs. A sixth number is a confidence (predictions). Class ids index the sign
inventory.
"""

import math
from pathlib import Path

from dubsar.datasets.formats.collect import BoxCollector, read_lines
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Candidate, Face, Line, Sign, Tablet


def read_yolo(
    path: Path,
    size: tuple[int, int],
    inventory: Inventory,
    *,
    image: str = "",
    ignore_unknown: bool = False,
) -> tuple[Tablet, list[Issue]]:
    """Read one label file as a tablet with one face and one unlabelled line.

    Args:
        path: the label file; its stem is the tablet's identifier.
        size: (width, height) of the picture in pixels.
        inventory: what the class ids mean.
        image: file name of the picture.
        ignore_unknown: drop and list a bad box instead of refusing the file.

    Returns:
        The tablet (no sign where the file is empty) and what was found wrong.

    Raises:
        ValueError: with file and line: class id out of range, a coordinate outside 0 to 1, a box without area, a
            duplicate row; only where ``ignore_unknown`` is off.
    """
    boxes = BoxCollector(path, size, ignore_unknown, refuse_duplicates=True)
    for number, text in enumerate(read_lines(path), start=1):
        if text.strip():
            _add(boxes, number, text.split(), inventory)
    issues = boxes.finish()
    tablet = Tablet(
        identifier=path.stem,
        image=image,
        width=size[0],
        height=size[1],
        faces=(Face(lines=(Line(label="", signs=tuple(boxes.signs)),)),) if boxes.signs else (),
        provenance={"format": "yolo", "file": path.name, "inventory": inventory.hash},
    )
    return tablet, issues


def write_yolo(path: Path, tablet: Tablet, inventory: Inventory, *, ignore_unknown: bool = False) -> list[Issue]:
    """Write a tablet's boxes with class ids of ``inventory``; return what the format cannot hold.

    Args:
        path: where to write; an empty file where the tablet has no sign.
        tablet: signs without a box are listed and left out.
        inventory: what the class ids mean.
        ignore_unknown: list and leave out a sign that is not in the inventory.

    Raises:
        ValueError: a sign is not in the inventory and ``ignore_unknown`` is off; nothing is written.
    """
    rows: list[str] = []
    issues: list[Issue] = []
    for number, sign in enumerate(tablet.signs(), start=1):
        class_id = inventory.id_of_glyph.get(sign.glyph)
        if sign.box is None:
            issues.append(Issue(path, 0, f"sign {number} has no box; left out", "warning"))
        elif class_id is None and not ignore_unknown:
            raise ValueError(
                f"{path}: sign {number} ({sign.glyph!r}) is not in sign inventory {inventory.hash} "
                f"({len(inventory)} classes); use its inventory, or leave such signs out with ignore_unknown"
            )
        elif class_id is None:
            issues.append(Issue(path, 0, f"sign {number} ({sign.glyph!r}) is not in the inventory; left out"))
        else:
            x0, y0, x1, y1 = sign.box
            centre = (x0 + x1) / 2 / tablet.width, (y0 + y1) / 2 / tablet.height
            sides = (x1 - x0) / tablet.width, (y1 - y0) / tablet.height
            rows.append(f"{class_id} {centre[0]:.8f} {centre[1]:.8f} {sides[0]:.8f} {sides[1]:.8f}\n")
    path.write_text("".join(rows), encoding="utf-8", newline="\n")
    return issues


def _add(boxes: BoxCollector, number: int, cells: list[str], inventory: Inventory) -> None:
    if len(cells) not in {5, 6}:
        boxes.reject(number, f"{len(cells)} fields; expected class, cx, cy, width, height and at most a confidence")
        return
    if not (cells[0].isascii() and cells[0].isdigit()) or int(cells[0]) >= len(inventory):
        boxes.reject(number, f"class id {cells[0]} is out of range; expected 0 to {len(inventory) - 1}")
        return
    try:
        values = [float(v) for v in cells[1:]]
    except ValueError as error:
        boxes.reject(number, f"{error}; expected shares of the picture's sides, 0 to 1")
        return
    outside = [v for v in values if not 0.0 <= v <= 1.0]  # nan fails both comparisons
    if outside:
        kind = "percent or pixels" if all(math.isfinite(v) and v > 1 for v in outside) else "a wrong value"
        boxes.reject(number, f"{outside[0]:g} is not between 0 and 1, so it looks like {kind}")
        return
    width, height = boxes.size or (1, 1)
    cx, cy, w, h = values[:4]
    box = ((cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height)
    confidence = values[4] if len(values) == 5 else 1.0
    known = inventory[int(cells[0])]
    candidate = Candidate(glyph=known.glyph, name=known.name, probability=confidence)
    boxes.add(number, box, cells[0], Sign(candidates=(candidate,), confidence=confidence, provenance="yolo"))
