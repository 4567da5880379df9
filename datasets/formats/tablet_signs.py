"""Reader for a ``tablet-signs`` folder: photographs, sign boxes and their fixed split.

``images.tsv`` names the pictures below ``images/``, ``signs.tsv`` holds one box a row (left, top, width, height in the
file's own pixels), ``classes.tsv`` is the sign inventory (see `dubsar.datasets.inventory`).
"""

import math
from dataclasses import dataclass
from pathlib import Path

from dubsar.datasets.issues import Issue
from dubsar.datasets.sources import require_data
from dubsar.datasets.tables import Row, read_rows
from dubsar.datasets.tablet import Candidate, Face, FaceName, Line, Sign, Tablet

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


def read_tablet_signs(root: Path, *, split: str | None = None, keep_flagged: bool = False) -> list[Photograph]:
    """Read the photographs of a split with their boxes.

    Args:
        root: data folder that holds ``tablet-signs/``.
        split: ``train``, ``dev`` or ``test``; all where None.
        keep_flagged: also return boxes whose ``flag`` is set (duplicates, conflicts, no sign, tiny, no glyph).

    Returns:
        Photographs sorted by file, also those without a box.

    Raises:
        FileNotFoundError: the folder or a table is absent.
        ValueError: unknown split, or with file and line a row that cannot be used.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    images_tsv = require_data(root, FOLDER, "images.tsv")
    signs_tsv = require_data(root, FOLDER, "signs.tsv")
    boxes_of: dict[str, list[SignBox]] = {}
    image_rows = read_rows(images_tsv, IMAGE_COLUMNS)
    for row in image_rows:
        if row["file"] in boxes_of:
            raise ValueError(f"{images_tsv}:{row.line}: {row['file']} stands twice; keep one row")
        boxes_of[row["file"]] = []
    for row in read_rows(signs_tsv, SIGN_COLUMNS):
        if row["file"] not in boxes_of:
            raise ValueError(f"{signs_tsv}:{row.line}: {row['file']} is not in {images_tsv.name}")
        if keep_flagged or not row["flag"]:
            boxes_of[row["file"]].append(sign_box(row, signs_tsv))
    photographs = [_photograph(row, images_tsv, boxes_of[row["file"]]) for row in image_rows]
    return sorted((p for p in photographs if split in (None, p.split)), key=lambda p: p.file)


def sign_box(row: Row, path: Path) -> SignBox:
    """Build one box from a row of ``signs.tsv``.

    Raises:
        ValueError: with file and line, where a number is no number, or an unflagged box is empty.
    """
    try:
        x, y, w, h = (float(row[c]) for c in ("x", "y", "w", "h"))
    except ValueError as error:
        raise ValueError(f"{path}:{row.line}: {error}; expected x, y, w, h in pixels") from error
    if not all(math.isfinite(v) for v in (x, y, w, h)):
        raise ValueError(f"{path}:{row.line}: box {x}, {y}, {w}, {h} is not finite; expected pixels")
    if (w <= 0 or h <= 0) and not row["flag"]:
        raise ValueError(f"{path}:{row.line}: box is {w:g} x {h:g} pixels; expected a width and height above 0")
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


def as_issue(error: ValueError, path: Path, line: int) -> Issue:
    """Turn a refusal of one row into an issue without naming the place twice."""
    return Issue(path, line, str(error).removeprefix(f"{path}:{line}: "))


def _photograph(row: Row, path: Path, boxes: list[SignBox]) -> Photograph:
    if row["split"] not in SPLITS:
        raise ValueError(f"{path}:{row.line}: split is {row['split']!r}, expected one of {', '.join(SPLITS)}")
    try:
        width, height = int(row["width"]), int(row["height"])
    except ValueError as error:
        raise ValueError(f"{path}:{row.line}: {error}; expected width and height in whole pixels") from error
    if width < 1 or height < 1:
        raise ValueError(f"{path}:{row.line}: picture is {width} x {height}; expected at least one pixel")
    for box in boxes:
        if box.split != row["split"]:
            raise ValueError(
                f"{path}:{row.line}: {row['file']} is in split {row['split']}, "
                f"its box on signs.tsv:{box.line} in {box.split}; give both the same split"
            )
    return Photograph(
        file=row["file"],
        path=path.parent / "images" / row["file"],
        object_id=row["object_id"],
        collection=row["collection"],
        width=width,
        height=height,
        split=row["split"],
        source=row["source"],
        boxes=tuple(boxes),
    )
