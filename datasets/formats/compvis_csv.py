"""CompVis sign annotations: one box a row in two coordinate frames.

Columns ``segm_idx, tablet_CDLI, view_desc, collection, mzl_label, train_label, bbox, relative_bbox``. ``bbox`` is
``[x0, y0, x1, y1]`` in the composite picture of all views, ``relative_bbox`` the same inside one view's segment (``[]``
where the box belongs to none, ``segm_idx`` -1). ``train_label`` 0 is background, not a sign. Repeated boxes are counted
once. Source: Dencker, Klinkisch, Maul, Ommer 2020, PLOS ONE 15(12) e0243039, data repository.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dubsar.datasets.formats.collect import BoxCollector, candidate_for, label_of
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import BoxXYXY, Face, FaceName, Line, Sign, Tablet, enclosing_box

COLUMNS = (
    "segm_idx",
    "tablet_CDLI",
    "view_desc",
    "collection",
    "mzl_label",
    "train_label",
    "bbox",
    "relative_bbox",
)
Frame = Literal["picture", "view"]
_VIEWS: dict[str, FaceName] = {"Obv": "obverse", "Rev": "reverse", "": "unknown"}
_VIEW_NAMES = {face: view for view, face in _VIEWS.items()}


@dataclass(frozen=True)
class _Row:
    line: int
    segment: str
    tablet: str
    view: str
    collection: str
    mzl: str
    train_label: int
    box: BoxXYXY
    relative: BoxXYXY | None


def read_compvis_csv(
    path: Path,
    sizes: dict[str, tuple[int, int]] | None = None,
    *,
    frame: Frame = "picture",
    glyph_of: dict[str, str] | None = None,
    ignore_unknown: bool = False,
) -> tuple[list[Tablet], list[Issue]]:
    """Read the annotations as tablets, one face per view, one unlabelled line in each.

    Args:
        path: the CSV file.
        sizes: (width, height) in pixels by tablet; the boxes' own extent where a tablet is not in it.
        frame: ``picture`` gives one tablet per CDLI number with boxes in the composite; ``view`` gives one per segment
            with boxes inside it, and lists the boxes that belong to no segment. ``sizes`` is for ``picture`` only.
        glyph_of: glyph by MZL number; a number that is not in it keeps an empty glyph.
        ignore_unknown: drop and list a bad box instead of refusing the file.

    Returns:
        The tablets in order of first appearance, and what was found wrong.

    Raises:
        ValueError: a column is absent, or with file and line a row that cannot be used and ``ignore_unknown`` is off.
    """
    sieve = BoxCollector(path, None, ignore_unknown)
    collectors: dict[str, BoxCollector] = {}
    views: dict[str, list[FaceName]] = {}
    for row in _rows(path, sieve):
        if row.train_label == 0:
            sieve.skip(row.line, "train_label 0 is background; not read")
            continue
        if frame == "view" and row.relative is None:
            sieve.skip(row.line, f"the box belongs to no view segment (segm_idx {row.segment}); not read")
            continue
        key = row.tablet if frame == "picture" else f"{row.tablet}:{row.segment}:{row.view}"
        size = (sizes or {}).get(row.tablet) if frame == "picture" else None
        boxes = collectors.setdefault(key, BoxCollector(path, size, ignore_unknown))
        box = row.box if frame == "picture" or row.relative is None else row.relative
        sign = Sign(candidates=(candidate_for(row.mzl, glyph_of),), provenance=f"compvis {row.collection}")
        if boxes.add(row.line, box, row.mzl, sign):
            face = _VIEWS.get(row.view, "unknown")
            views.setdefault(key, []).append(face)
    issues = list(sieve.finish())
    for boxes in collectors.values():
        issues.extend(boxes.finish())
    tablets = [_tablet(key, boxes, views.get(key, []), frame, path) for key, boxes in collectors.items()]
    return tablets, sorted(issues, key=lambda i: i.line)


def write_compvis_csv(path: Path, tablets: list[Tablet], *, collection: str = "") -> list[Issue]:
    """Write boxes in the composite's frame (``segm_idx`` -1, ``relative_bbox`` empty), rounded to whole pixels.

    Args:
        path: where to write.
        tablets: a sign's label goes to ``mzl_label``; signs without a box or a label are listed and left out.
        collection: the ``collection`` cell of every row.

    Returns:
        What the format cannot hold.
    """
    issues: list[Issue] = []
    labels = sorted({label_of(s) for t in tablets for s in t.signs() if label_of(s)})
    ids = {label: number for number, label in enumerate(labels, start=1)}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for tablet in tablets:
            for face, line in tablet.lines():
                for sign in line.signs:
                    label = label_of(sign)
                    if sign.box is None or not label:
                        what = "label" if sign.box else "box"
                        issues.append(Issue(path, 0, f"{tablet.identifier}: a sign has no {what}; left out", "warning"))
                        continue
                    box = json.dumps([round(v) for v in sign.box])
                    view = _VIEW_NAMES.get(face.name, "")
                    writer.writerow((-1, tablet.identifier, view, collection, label, ids[label], box, "[]"))
    return issues


def _rows(path: Path, sieve: BoxCollector) -> list[_Row]:
    rows: list[_Row] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"{path}:1: the header lacks {', '.join(missing)}; expected {', '.join(COLUMNS)}")
            for cells in reader:
                row = _parse(reader.line_num, cells, sieve)
                if row is not None:
                    rows.append(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{reader.line_num}: not a CSV file in UTF-8 ({error})") from error
    return rows


def _parse(line: int, cells: dict[str, str | None], sieve: BoxCollector) -> _Row | None:
    text = {c: cells[c] or "" for c in COLUMNS}
    if any(cells[c] is None for c in COLUMNS) or None in cells:
        sieve.reject(line, f"the row has too few or too many cells; expected {len(COLUMNS)}")
        return None
    box, relative = _box(text["bbox"]), _box(text["relative_bbox"])
    if box is None:
        sieve.reject(line, f"bbox is {text['bbox']!r}; expected [x0, y0, x1, y1]")
    elif relative is None and text["relative_bbox"].strip() != "[]":
        sieve.reject(line, f"relative_bbox is {text['relative_bbox']!r}; expected [x0, y0, x1, y1] or []")
    elif not text["train_label"].isascii() or not text["train_label"].isdigit():
        sieve.reject(line, f"train_label is {text['train_label']!r}; expected 0 (background) or a class above it")
    else:
        return _Row(
            line=line,
            segment=text["segm_idx"],
            tablet=text["tablet_CDLI"],
            view=text["view_desc"],
            collection=text["collection"],
            mzl=text["mzl_label"],
            train_label=int(text["train_label"]),
            box=box,
            relative=relative,
        )
    return None


def _box(text: str) -> BoxXYXY | None:
    try:
        values = json.loads(text)  # JSON's NaN and Infinity are read as floats and refused later
        x0, y0, x1, y1 = (float(v) for v in values)
    except (ValueError, TypeError, RecursionError):
        return None
    return x0, y0, x1, y1


def _tablet(key: str, boxes: BoxCollector, views: list[FaceName], frame: Frame, path: Path) -> Tablet:
    extent = enclosing_box([s.box for s in boxes.signs if s.box is not None]) or (0.0, 0.0, 1.0, 1.0)
    width, height = boxes.size or (math.ceil(extent[2]), math.ceil(extent[3]))
    signs_of: dict[FaceName, list[Sign]] = {}
    for view, sign in zip(views, boxes.signs, strict=True):
        signs_of.setdefault(view, []).append(sign)
    return Tablet(
        identifier=key,
        width=max(1, width),
        height=max(1, height),
        faces=tuple(Face(name=v, lines=(Line(label="", signs=tuple(s)),)) for v, s in signs_of.items()),
        provenance={"format": "compvis-csv", "file": path.name, "frame": frame},
    )
