"""`dubsar data check`: every defect of a data folder that would spoil training or scores, with file and line.

Nothing is written. What is checked: the sign tables of ``tablet-signs`` (and its photographs), the line collections,
and label files in exchange formats: ``*.yolo.txt`` and ``labels/*.txt``, ``*.coco.json`` and ``coco/*.json``,
``gt_*.txt``, ``bbox_annotations_*.csv``. A defect in a row that the table itself flags (and that is therefore never
trained on) is a note; so is what a format leaves out by its own rules.
"""

from collections import Counter
from pathlib import Path

from dubsar.datasets.check_lines import check_lines, check_missing_words
from dubsar.datasets.check_pictures import check_pictures
from dubsar.datasets.formats.coco import read_coco
from dubsar.datasets.formats.collect import box_fault
from dubsar.datasets.formats.compvis_csv import read_compvis_csv
from dubsar.datasets.formats.ebl_txt import read_ebl_txt
from dubsar.datasets.formats.tablet_signs import FOLDER, IMAGE_COLUMNS, SIGN_COLUMNS
from dubsar.datasets.formats.yolo import read_yolo
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.lines import COLLECTIONS
from dubsar.datasets.splits import SPLITS, Record, find_leaks
from dubsar.datasets.tables import Row, read_rows

CLASS_COLUMNS = ("class_id", "glyph", "sign_name", "mzl")
_NOMINAL = (10_000, 10_000)  # YOLO labels are shares of the sides; any size shows their faults


def check_data(root: Path) -> list[Issue]:
    """Check a data folder.

    Args:
        root: folder that holds ``tablet-signs``, line collections, or label files in an exchange format.

    Returns:
        The issues, sorted by file and line. Severity ``error`` spoils training or scores.

    Raises:
        FileNotFoundError: there is no such folder, or nothing in it that can be checked.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; give the data folder or set DUBSAR_DATA")
    folders = [FOLDER, *(c.folder for c in COLLECTIONS.values())]
    exchange = _exchange_files(root)
    if not exchange and not any((root / name).is_dir() for name in folders):
        raise FileNotFoundError(f"{root}: nothing to check; expected {', '.join(folders)} or label files below it")
    issues, line_records = check_lines(root)
    image_rows: list[Row] = []
    if (root / FOLDER).is_dir():
        found, image_rows = _check_tablet_signs(root / FOLDER)
        issues.extend(found)
    photo_records = [
        Record((row["object_id"], row.cells.get("museum_no", "")), row["split"], root / FOLDER / "images.tsv", row.line)
        for row in image_rows
        if row["split"] in SPLITS
    ]
    issues.extend(find_leaks([*photo_records, *line_records]))
    issues.extend(_check_exchange(root, exchange, image_rows))
    return sorted(issues, key=lambda i: (str(i.path), i.line, i.message))


def _check_tablet_signs(folder: Path) -> tuple[list[Issue], list[Row]]:
    issues: list[Issue] = []
    tables: dict[str, list[Row]] = {}
    for name, columns in (("classes", CLASS_COLUMNS), ("images", IMAGE_COLUMNS), ("signs", SIGN_COLUMNS)):
        path = folder / f"{name}.tsv"
        if not path.is_file():
            issues.append(Issue(path, 0, "the table is missing"))
            tables[name] = []
            continue
        tables[name] = read_rows(path, columns, issues=issues)
        issues.extend(check_missing_words(path, tables[name]))
    issues.extend(_check_classes(folder / "classes.tsv", tables["classes"], tables["signs"]))
    issues.extend(_check_images(folder / "images.tsv", tables["images"], tables["signs"]))
    glyphs = {row["glyph"] for row in tables["classes"]}
    issues.extend(_check_signs(folder / "signs.tsv", tables["signs"], tables["images"], glyphs))
    issues.extend(check_pictures(folder / "images", folder / "images.tsv", tables["images"]))
    return issues, tables["images"]


def _check_classes(path: Path, rows: list[Row], sign_rows: list[Row]) -> list[Issue]:
    issues: list[Issue] = []
    line_of: dict[str, int] = {}
    counts = Counter(row["glyph"] for row in sign_rows if not row["flag"])
    for number, row in enumerate(rows):
        if row["class_id"] != str(number):
            issues.append(Issue(path, row.line, f"class_id is {row['class_id']!r}, expected {number}"))
        if not row["glyph"]:
            issues.append(Issue(path, row.line, f"class {row['class_id']} has no glyph"))
        first = line_of.setdefault(row["glyph"], row.line)
        if first != row.line:
            issues.append(Issue(path, row.line, f"glyph {row['glyph']} stands on line {first} already"))
        stated = row.cells.get("n_total")
        if stated is not None and stated != str(counts[row["glyph"]]):
            message = f"n_total is {stated}, signs.tsv has {counts[row['glyph']]} unflagged boxes of {row['glyph']}"
            issues.append(Issue(path, row.line, message, "warning"))
    return issues


def _check_images(path: Path, rows: list[Row], sign_rows: list[Row]) -> list[Issue]:
    issues: list[Issue] = []
    line_of: dict[str, int] = {}
    counts = Counter(row["file"] for row in sign_rows)
    for row in rows:
        first = line_of.setdefault(row["file"], row.line)
        if first != row.line:
            issues.append(Issue(path, row.line, f"{row['file']} stands on line {first} already"))
        if row["split"] not in SPLITS:
            issues.append(Issue(path, row.line, f"split is {row['split']!r}, expected one of {', '.join(SPLITS)}"))
        stated = row.cells.get("n_boxes")
        if stated is not None and stated != str(counts[row["file"]]):
            message = f"{row['file']}: n_boxes is {stated}, signs.tsv has {counts[row['file']]} rows"
            issues.append(Issue(path, row.line, message, "warning"))
    return issues


def _check_signs(path: Path, rows: list[Row], image_rows: list[Row], glyphs: set[str]) -> list[Issue]:
    issues: list[Issue] = []
    image_of = {row["file"]: row for row in image_rows}
    first_of: dict[tuple[str, ...], Row] = {}
    for row in rows:
        faults = _sign_faults(row, image_of.get(row["file"]), glyphs)
        first = first_of.setdefault((row["file"], row["x"], row["y"], row["w"], row["h"]), row)
        if first is not row and first["label_raw"] == row["label_raw"]:
            faults.append(f"the same box and label {row['label_raw']} as on line {first.line}")
        elif first is not row:
            faults.append(f"box has label {row['label_raw']} here and {first['label_raw']} on line {first.line}")
        for fault in faults:
            if row["flag"]:
                issues.append(Issue(path, row.line, f"{fault} (flagged {row['flag']}, not used)", "note"))
            else:
                issues.append(Issue(path, row.line, fault))
    return issues


def _sign_faults(row: Row, image: Row | None, glyphs: set[str]) -> list[str]:
    faults: list[str] = []
    size = None
    if image is None:
        faults.append(f"{row['file']} is not in images.tsv")
    else:
        if row["split"] != image["split"]:
            faults.append(f"split is {row['split']!r}, that of its picture is {image['split']!r}")
        if image["width"].isdecimal() and image["height"].isdecimal():
            size = (int(image["width"]), int(image["height"]))
    try:
        x, y, w, h = (float(row[c]) for c in ("x", "y", "w", "h"))
    except ValueError as error:
        faults.append(f"{error}; expected x, y, w, h in pixels")
    else:
        fault = box_fault((x, y, x + w, y + h), size)
        faults.extend([fault] if fault else [])
    if not row["glyph"]:
        faults.append(f"label {row['label_raw']} has no glyph")
    elif row["glyph"] not in glyphs and not row["flag"]:
        faults.append(f"label {row['label_raw']} ({row['glyph']}) is not in classes.tsv")
    return faults


def _exchange_files(root: Path) -> dict[str, list[Path]]:
    patterns = {
        "yolo": ("*.yolo.txt", "labels/*.txt", "labels/*/*.txt"),
        "coco": ("*.coco.json", "coco/*.json"),
        "ebl": ("gt_*.txt",),
        "compvis": ("bbox_annotations_*.csv",),
    }
    found = {
        kind: sorted({p for g in globs for p in root.rglob(g) if p.name != "classes.txt"})
        for kind, globs in patterns.items()
    }
    return {kind: paths for kind, paths in found.items() if paths}


def _check_exchange(root: Path, files: dict[str, list[Path]], image_rows: list[Row]) -> list[Issue]:
    sizes = {
        row["object_id"]: (int(row["width"]), int(row["height"]))
        for row in image_rows
        if row["width"].isdecimal() and row["height"].isdecimal()
    }
    issues: list[Issue] = []
    for kind, paths in files.items():
        for path in paths:
            try:
                issues.extend(_read_exchange(kind, path, root, sizes))
            except ValueError as error:
                fault = str(error).removeprefix(f"{path}:").strip()
                line, _, message = fault.partition(": ")
                issues.append(Issue(path, int(line), message) if line.isdecimal() else Issue(path, 0, fault))
    return issues


def _read_exchange(kind: str, path: Path, root: Path, sizes: dict[str, tuple[int, int]]) -> list[Issue]:
    if kind == "coco":
        return read_coco(path, ignore_unknown=True)[1]
    if kind == "ebl":
        return read_ebl_txt(path, sizes.get(path.stem.removeprefix("gt_")), ignore_unknown=True)[1]
    if kind == "compvis":
        return read_compvis_csv(path, sizes, ignore_unknown=True)[1]
    classes = root / FOLDER / "classes.tsv"
    if not classes.is_file():
        return [Issue(path, 0, f"class ids were not checked: no {FOLDER}/classes.tsv below {root}", "note")]
    return read_yolo(path, _NOMINAL, Inventory.from_classes_tsv(classes), ignore_unknown=True)[1]
