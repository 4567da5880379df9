"""Checks of the photographs: present, whole, of the stated size and sum, and not twice in two splits."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from dubsar.datasets.images import ImageError, find_images, load_image
from dubsar.datasets.issues import Issue
from dubsar.datasets.tables import Row

HASH_SIDE = 16
# of 256 bits. Measured on 111 photographs: saved again smaller and at quality 60 they differ from themselves by at most
# 3 bits, from each other by at least 9.
MAX_HASH_DISTANCE = 4


def check_pictures(folder: Path, table: Path, rows: list[Row]) -> list[Issue]:
    """Check each picture of ``images.tsv``; files are only read.

    Args:
        folder: the folder that ``file`` is relative to.
        table: ``images.tsv``, for messages.
        rows: its rows.
    """
    issues: list[Issue] = []
    by_sum: dict[str, Row] = {}
    looks: list[tuple[int, Row]] = []
    for row in rows:
        path = folder / row["file"]
        if not path.is_file():
            issues.append(Issue(table, row.line, f"{row['file']}: the picture is missing below {folder.name}/"))
            continue
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        issues.extend(Issue(table, row.line, f"{row['file']}: {fault}") for fault in _sum_faults(row, data, digest))
        twin = by_sum.setdefault(digest, row)
        if twin is not row:
            issues.append(_twin(table, row, twin, "is the same file (sha256) as"))
        found, look = _check_pixels(table, row, data)
        issues.extend(found)
        if look is None or twin is not row:
            continue
        alike = next((r for bits, r in looks if (bits ^ look).bit_count() <= MAX_HASH_DISTANCE), None)
        if alike is not None:
            issues.append(_twin(table, row, alike, "looks the same (average hash) as"))
        looks.append((look, row))
    known = {row["file"] for row in rows}
    for path in find_images(folder):
        if path.relative_to(folder).as_posix() not in known:
            issues.append(Issue(path, 0, f"the picture is not in {table.name}", "warning"))
    return issues


def average_hash(rgb_HW3: npt.NDArray[np.uint8]) -> int | None:
    """Hash a picture (H, W, 3) by its look: a bit for each of 16 x 16 cells, set where brighter than their mean.

    Returns:
        256 bits; pictures with `MAX_HASH_DISTANCE` or fewer different bits are alike. None where all cells are alike.
    """
    small = Image.fromarray(rgb_HW3).convert("L").resize((HASH_SIDE, HASH_SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, dtype=np.float64)
    bits = grey > grey.mean()
    return int.from_bytes(np.packbits(bits).tobytes(), "big") if np.ptp(grey) >= 1 else None


def _check_pixels(table: Path, row: Row, data: bytes) -> tuple[list[Issue], int | None]:
    try:
        loaded = load_image(data)
    except ImageError as error:
        message = str(error).replace("<bytes>", row["file"])
        return [Issue(table, row.line, message)], None
    issues: list[Issue] = []
    stated, found = f"{row['width']} x {row['height']}", "{} x {}".format(*loaded.file_size)
    if stated != found:
        issues.append(Issue(table, row.line, f"{row['file']}: the table says {stated} pixels, the file has {found}"))
    if loaded.orientation != 1:
        message = f"{row['file']}: EXIF orientation {loaded.orientation}; boxes must be in the file's own pixels"
        issues.append(Issue(table, row.line, message, "note"))
    return issues, average_hash(loaded.rgb_HW3)


def _sum_faults(row: Row, data: bytes, digest: str) -> list[str]:
    faults = []
    if row["bytes"] != str(len(data)):
        faults.append(f"the table says {row['bytes']} bytes, the file has {len(data)}; copy it again from its source")
    if row["sha256"].lower() != digest:
        faults.append(f"sha256 is {digest[:16]}…, the table says {row['sha256'][:16]}…; copy it again from its source")
    return faults


def _twin(table: Path, row: Row, twin: Row, how: str) -> Issue:
    place = f"{twin['file']} on line {twin.line}"
    if row["split"] != twin["split"]:
        message = f"{row['file']} ({row['split']}) {how} {place} ({twin['split']}): one photograph in two splits"
        return Issue(table, row.line, message)
    return Issue(table, row.line, f"{row['file']} {how} {place}", "warning")
