"""Crops kept on disk: cutting those of all training photographs takes longer than a short training's first steps.

A cache folder holds one ``.npy`` per set of crops, a record for each, and behind it the CRC-32 of the records. Its name
is a digest of all that the crops come from: path, size and time of each photograph, its boxes, how crops are cut, and
the code that cuts them. So what is found is equal to the bit to what would be cut. The folder may be deleted at any
time; nothing in it is ever removed.
"""

import fcntl
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from dubsar.datasets import crops, images
from dubsar.datasets.crops import CropSize
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.sources import require_outside_data
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.tile_cache import cache_folder

FORMAT = "dubsar-crops-1"
_CHECKED = 4  # bytes of the checksum

Arrays = dict[str, npt.NDArray[Any]]  # by name, each with a row per crop


def crop_folder(setting: bool | str) -> Path | None:
    """Return where ``data.cache`` wants crops to be kept: None for nowhere, true for the user's cache folder.

    Raises:
        ValueError: the folder lies in the data folder.
    """
    if not setting:
        return None
    folder = cache_folder().with_name("crops") if setting is True else Path(setting)
    require_outside_data(folder, "data.cache")
    return folder


def crop_key(photographs: Iterable[Photograph], size: CropSize, inventory: Inventory, **settings: Any) -> str:
    """Return the digest of all that a set of crops comes from.

    Args:
        photographs: in order, with their boxes.
        size: how crops are cut.
        inventory: classes that the boxes belong to.
        settings: whatever else makes other crops.

    Raises:
        OSError: a photograph is not there.
    """
    code = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (crops, images)]
    told: list[Any] = [FORMAT, code, PIL.__version__, np.__version__, asdict(size), inventory.hash, settings]
    for photograph in photographs:
        state = photograph.path.stat()
        boxes = [[*map(float, box.box_xyxy), box.glyph] for box in photograph.boxes]
        told.append([str(photograph.path.absolute()), state.st_size, state.st_mtime_ns, photograph.object_id, boxes])
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


def kept(folder: Path, key: str, cut: Callable[[], tuple[Arrays, bool]]) -> Arrays:
    """Return crops from the cache, and cut and keep them where they are not there or damaged.

    Args:
        folder: it is made where it is absent.
        key: see `crop_key`.
        cut: returns arrays, and whether they are to be kept: not where a photograph could not be read.

    Returns:
        What ``cut`` gave, or the same to the bit with the pixels mapped from disk; writing to them changes no file.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    path = folder / f"{key}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes the first cuts, and the others find
        found = _read(path)
        if found is None:
            found, whole = cut()
            if whole:
                _write(path, found)
    return found


def _write(path: Path, arrays: Arrays) -> None:
    count = len(next(iter(arrays.values())))
    records = np.empty(count, [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()])
    for name, array in arrays.items():
        records[name] = array

    def write(file: Any) -> None:
        np.save(file, records)
        file.write(zlib.crc32(records.view(np.uint8).data).to_bytes(_CHECKED, "little"))

    try:
        write_atomically(path, write)
    except OSError as error:  # a full disk is no reason to stop: the crops are there
        print(f"data.cache: {error}; going on without it", file=sys.stderr)


def _read(path: Path) -> Arrays | None:
    """Return the arrays of a file; None where it is absent or damaged."""
    try:
        records = np.load(path, mmap_mode="c", allow_pickle=False)
        with path.open("rb") as file:
            file.seek(-_CHECKED, 2)
            stored = int.from_bytes(file.read(), "little")
    except (OSError, ValueError, EOFError):
        return None
    if not records.dtype.names or zlib.crc32(records.view(np.uint8).data) != stored:
        return None
    # a number that begins at an odd byte is slow to read, and some libraries cannot
    return {name: a if (a := records[name]).dtype.itemsize == 1 else a.copy() for name in records.dtype.names}
