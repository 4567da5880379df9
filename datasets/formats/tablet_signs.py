"""Reader for a ``tablet-signs`` folder: photographs, sign boxes and their fixed split.

``images.tsv`` names the pictures below ``images/``, ``signs.tsv`` holds one box a row (left, top, width, height in the
file's own pixels), ``classes.tsv`` is the sign inventory (see `dubsar.datasets.inventory`).

A box that cannot be right (not a number, outside the picture, without area, standing twice, of an unknown class) is
refused with file and line; on request that one *box* is dropped and listed, and the rest of the picture stays. A row
whose ``flag`` is set is known to be faulty and is left out without either.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from dubsar.datasets.formats.collect import box_fault
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import Row, read_rows
from dubsar.datasets.tablet import BoxXYXY, Candidate, Face, FaceName, Line, Sign, Tablet

FOLDER = "tablet-signs"
SPLITS = ("train", "dev", "test")
IMAGE_COLUMNS = ("file", "source", "object_id", "collection", "width", "height", "split", "bytes", "sha256")
SIGN_COLUMNS = ("file", "x", "y", "w", "h", "source", "label_raw", "mzl", "sign_name", "glyph", "view", "flag", "split")
_VIEWS: dict[str, FaceName] = {"Obv": "obverse", "Rev": "reverse"}


@dataclass(frozen=True)
class SignBox:
    """One labelled box. ``box_xyxy`` is in the file's own pixels, ``line`` is its line in ``signs.tsv``."""

    file: str
    box_xyxy: tuple[float, float, float, float]
    glyph: str
    name: str
    mzl: str
    flag: str
    split: str
    view: str
    source: str
    line: int


@dataclass(frozen=True)
class Photograph:
    """One photograph and its boxes in table order; ``file`` is relative to ``images/``, ``path`` is where it lies."""

    file: str
    path: Path
    object_id: str
    collection: str
    width: int
    height: int
    split: str
    source: str
    boxes: tuple[SignBox, ...]


def read_tablet_signs(
    root: Path,
    *,
    split: str | None = None,
    keep_flagged: bool = False,
    inventory: Inventory | None = None,
    dropped: list[Issue] | None = None,
    more: Path | None = None,
) -> list[Photograph]:
    """Read the photographs of a split with their boxes.

    Args:
        root: data folder that holds ``tablet-signs/``.
        split: ``train``, ``dev`` or ``test``; all where None.
        keep_flagged: also return boxes whose ``flag`` is set (duplicates, conflicts, no sign, tiny, no glyph).
        inventory: classes that the unflagged boxes of the split must belong to; any glyph will do where None.
        dropped: where given, a box of the split that cannot be used is listed there and left out instead of refused.
        more: a table of further boxes with the columns of ``signs.tsv``.

    Returns:
        Photographs sorted by file, also those without a box.

    Raises:
        FileNotFoundError, ValueError: a table is absent; unknown split; or, with file and line, a row is of no use.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    images_tsv = require_data(root, FOLDER, "images.tsv")
    signs_tsv = require_data(root, FOLDER, "signs.tsv")
    pictures = _read_pictures(images_tsv)
    boxes_of: dict[str, list[SignBox]] = {file: [] for file in pictures}
    first_of: dict[tuple[str, BoxXYXY], SignBox] = {}
    for table, row in [(t, row) for t in (signs_tsv, more) if t for row in read_rows(t, SIGN_COLUMNS)]:
        if row["flag"] and not keep_flagged:
            continue
        picture, line = pictures.get(row["file"], (None, 0))
        wanted = split in {None, picture.split if picture else row["split"]}
        try:
            box = _sign_box(row)
            _check(box, picture, first_of.get((box.file, box.box_xyxy)), inventory if wanted else None)
        except ValueError as error:
            if not wanted:  # a row of another split is for those to judge who read that one
                continue
            if dropped is None:
                advice = "correct or flag the row"
                if split in {None, "train"}:
                    advice += ", or drop such boxes with ignore_unknown"
                raise ValueError(f"{table}:{row.line}: {error}; {advice}") from error
            dropped.append(Issue(table, row.line, f"{error}; the box was dropped"))
            continue
        if picture is not None and box.split != picture.split:  # never dropped: it would hide a leak between splits
            raise ValueError(
                f"{images_tsv}:{line}: {box.file} is in split {picture.split}, "
                f"its box on {table.name}:{box.line} in {box.split}; give both the same split"
            )
        boxes_of[box.file].append(box)
        if not box.flag:
            first_of[box.file, box.box_xyxy] = box
    chosen = [p for p, _ in pictures.values() if split in {None, p.split}]
    return [replace(p, boxes=tuple(boxes_of[p.file])) for p in sorted(chosen, key=lambda p: p.file)]


def to_tablet(photograph: Photograph) -> Tablet:
    """Convert to the tablet model: a face per view, one line in each (lines are not annotated), no empty boxes."""
    views: dict[FaceName, list[Sign]] = {}
    for box in photograph.boxes:
        x0, y0, x1, y1 = box.box_xyxy
        if x1 <= x0 or y1 <= y0:
            continue
        sign = Sign(
            box=box.box_xyxy,
            candidates=(Candidate(glyph=box.glyph, name=box.name, probability=1.0),) if box.glyph else (),
            provenance=box.source,
        )
        views.setdefault(_VIEWS.get(box.view, "unknown"), []).append(sign)
    return Tablet(
        identifier=photograph.object_id,
        image=photograph.file,
        width=photograph.width,
        height=photograph.height,
        faces=tuple(Face(name=view, lines=(Line(label="", signs=tuple(signs)),)) for view, signs in views.items()),
        provenance={"source": photograph.source, "split": photograph.split},
    )


def _read_pictures(path: Path) -> dict[str, tuple[Photograph, int]]:
    """Read ``images.tsv``: by file the photograph, as yet without boxes, and its line."""
    pictures: dict[str, tuple[Photograph, int]] = {}
    for row in read_rows(path, IMAGE_COLUMNS):
        if row["file"] in pictures:
            raise ValueError(f"{path}:{row.line}: {row['file']} stands twice; keep one row")
        pictures[row["file"]] = _photograph(row, path), row.line
    return pictures


def _sign_box(row: Row) -> SignBox:
    try:
        x, y, w, h = (float(row[c]) for c in ("x", "y", "w", "h"))
    except ValueError as error:
        raise ValueError(f"{error}; expected x, y, w, h in pixels") from error
    return SignBox(
        file=row["file"],
        box_xyxy=(x, y, x + w, y + h),
        glyph=row["glyph"],
        name=row["sign_name"],
        mzl=row["mzl"],
        flag=row["flag"],
        split=row["split"],
        view=row["view"],
        source=row["source"],
        line=row.line,
    )


def _check(box: SignBox, picture: Photograph | None, first: SignBox | None, inventory: Inventory | None) -> None:
    """Raise ValueError where a box cannot be used; of a flagged one nothing more is expected than finite numbers."""
    if picture is None:
        raise ValueError(f"{box.file} is not in images.tsv")
    fault = box_fault(box.box_xyxy, (picture.width, picture.height))
    if fault and not (box.flag and all(map(math.isfinite, box.box_xyxy))):
        raise ValueError(fault)
    if box.flag:
        return
    if first is not None:
        kind = "duplicate row" if first.glyph == box.glyph else "two signs in one box"
        raise ValueError(f"{kind}: the box stands on line {first.line} already, as {first.glyph!r}")
    if inventory is not None and box.glyph not in inventory.id_of_glyph:
        raise ValueError(
            f"sign {box.glyph!r} ({box.name}) is not in sign inventory {inventory.hash} ({len(inventory)} classes)"
        )


def _photograph(row: Row, path: Path) -> Photograph:
    """Build a photograph, as yet without its boxes, from a row of ``images.tsv``."""
    if row["split"] not in SPLITS:
        raise ValueError(f"{path}:{row.line}: split is {row['split']!r}, expected one of {', '.join(SPLITS)}")
    try:
        width, height = int(row["width"]), int(row["height"])
    except ValueError as error:
        raise ValueError(f"{path}:{row.line}: {error}; expected width and height in whole pixels") from error
    if width < 1 or height < 1:
        raise ValueError(f"{path}:{row.line}: picture is {width} x {height}; expected at least one pixel")
    return Photograph(
        file=row["file"],
        path=path.parent / "images" / row["file"],
        object_id=row["object_id"],
        collection=row["collection"],
        width=width,
        height=height,
        split=row["split"],
        source=row["source"],
        boxes=(),
    )
