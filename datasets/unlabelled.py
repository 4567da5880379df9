"""Photographs without labels, of any size, cached as tiles in which a sign has one height.

A cache folder holds one ``.npy`` per photograph, (tiles, S, S, 4) uint8: red, green, blue, and a mask; beside it
``.signs.npy``, (signs, 5) int16: a tile, and the box xyxy px of a sign that is whole in it. Their name is a digest of
path, size, time and settings, so that a photograph is read again only when one of these changes; arrays of other
settings stay beside it. ``index.json`` lists what the latest call cached. The folder may be deleted at any time.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dubsar.datasets.foreground import clay_mask
from dubsar.datasets.images import ImageError, find_images, load_image
from dubsar.datasets.photographs import DamagedDataError
from dubsar.datasets.tiles import cut, tile_grid
from dubsar.datasets.windows import resize

FORMAT = "dubsar-tiles-3"
CLAY, WRITING = 128, 255  # in the mask: bare clay, and signs with what is close around them
_AROUND = 0.25  # of a sign's height: what still counts as writing
_LEAST_SIGNS = 4.0  # a tile shows at least this much writing, in squares of a sign's height
_MOST_ENLARGED = 3.0  # smaller signs than a third of what is wanted have no wedges left
_SAVE_SECONDS = 30.0

UInt8s = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Signs:
    """What is known of the signs on a picture.

    Attributes:
        height: of a sign, px of the picture; 0 where it is not known.
        boxes_N4: xyxy px, of as many as are known; without any all clay counts as written.
    """

    height: float
    boxes_N4: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))


Measure = Callable[[Path, UInt8s], Signs]
Watch = Callable[[Sequence[Path], str], Iterable[Path]]


@dataclass(frozen=True)
class CachedPhotograph:
    """What became of a photograph.

    Attributes:
        path: as it was given.
        key: name of its array, without suffix.
        sign_height: px in the file, as it was measured.
        tiles: how many there are of it.
        writing: what each of them shows of it, in squares of a sign's height, rounded.
        skipped: why there is none; empty where it was cut.
    """

    path: str
    key: str
    sign_height: float
    tiles: int
    skipped: str = ""
    writing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "writing", tuple(self.writing))  # JSON knows lists only


@dataclass(frozen=True)
class TileCache:
    """Tiles of many photographs on disk, mapped into memory when they are asked for; cheap to send to a worker.

    Attributes:
        folder: where the arrays lie.
        tile_px: side of a tile, px.
        photographs: those that could be read, in the order in which they were given.
        damaged: those that could not, each with its reason.
    """

    folder: Path
    tile_px: int
    photographs: tuple[CachedPhotograph, ...]
    damaged: tuple[str, ...] = ()
    _ends: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum([0, *(p.tiles for p in self.photographs)]))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def tile(self, index: int) -> UInt8s:
        """Return the pixels (S, S, 3) of a tile, read-only, mapped from disk."""
        return self._tile(index)[..., :3]

    def clay(self, index: int) -> UInt8s:
        """Return `WRITING`, `CLAY` or 0 for each pixel of a tile (S, S), read-only, mapped from disk."""
        return self._tile(index)[..., 3]

    def signs(self, index: int) -> npt.NDArray[np.int16]:
        """Return boxes (N, 4) xyxy px of the signs that are known and whole in a tile."""
        owner = self._owner(index)
        signs_N5 = _mapped(_array_path(self.folder, self.photographs[owner].key, "signs.npy"))
        return np.asarray(signs_N5[signs_N5[:, 0] == index - self._ends[owner], 1:])

    def photograph(self, index: int) -> str:
        """Return the path of the photograph that a tile was cut from."""
        return self.photographs[self._owner(index)].path

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First tile of each photograph that has some, and the one behind its last."""
        return [(int(a), int(b)) for a, b in pairwise(self._ends) if a < b]

    @property
    def writing(self) -> npt.NDArray[np.int64]:
        """Squares of a sign's height of writing in each tile (N,)."""
        return np.array([area for p in self.photographs for area in p.writing], np.int64)

    @property
    def unmeasured(self) -> tuple[CachedPhotograph, ...]:
        """Photographs of which there is no tile, since the height of their signs is not known or too small."""
        return tuple(p for p in self.photographs if p.skipped)

    def _owner(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"tile {index} of {len(self)} in {self.folder}; expected 0 to {len(self) - 1}")
        return int(np.searchsorted(self._ends, index, side="right")) - 1

    def _tile(self, index: int) -> UInt8s:
        owner = self._owner(index)
        array: UInt8s = _mapped(_array_path(self.folder, self.photographs[owner].key))[index - self._ends[owner]]
        return array


def find_photographs(folders: Iterable[Path]) -> list[Path]:
    """Return the pictures in folders and below, each once, folder after folder.

    Raises:
        FileNotFoundError: a folder is absent, or holds no picture.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; expected one that holds photographs")
        pictures = find_images(folder)
        if not pictures:
            raise FileNotFoundError(f"{folder}: no picture in this folder or below; name one that holds photographs")
        for path in pictures:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def build_cache(
    paths: Sequence[Path],
    cache: Path,
    *,
    measure: Measure,
    sign_px: float = 32.0,
    tile: int = 384,
    max_bad: int = 10,
    watch: Watch = lambda paths, _: paths,
    workers: int = 0,
) -> TileCache:
    """Cut photographs into tiles of one sign height, one photograph in memory at a time, or one in each worker.

    Args:
        paths: photographs, each once.
        cache: folder for the tiles; it is made where it is absent. A call that was killed goes on where it stopped.
        measure: returns what it knows of the signs on the picture (H, W, 3) at this path; where it knows no height, by
            which the photograph is left out and listed.
        sign_px: wanted height of a sign, px.
        tile: side of a tile, px; tiles with little writing are left out.
        max_bad: skip so many pictures that cannot be read, each with its reason on stderr.
        watch: goes over the paths, and may show how far it is.
        workers: processes that read and measure; 0: this one does. ``measure`` is sent to them for each photograph.

    Returns:
        The cache, with at least one tile.

    Raises:
        DamagedDataError: more than ``max_bad`` are damaged or missing; all of them are named.
        ValueError: a size that no tile can have, or there is no tile at all.
        OSError: the cache cannot be written.
    """
    if not (tile >= 2 * sign_px > 0):
        raise ValueError(f"tiles of {tile} px with signs of {sign_px:g} px; expected at least two signs a tile")
    cache.mkdir(parents=True, exist_ok=True)
    settings = {"format": FORMAT, "sign_px": float(sign_px), "tile": tile}
    known = _read_index(cache)
    done: list[CachedPhotograph] = []
    bad: list[str] = []
    saved = time.monotonic()
    look_up = partial(_look_up, known=known, cache=cache, settings=settings)
    cut = partial(_cut_file, measure=measure, cache=cache, settings=settings)
    with closing(_in_order(paths, look_up, cut, workers, watch)) as results:  # workers stop with this call
        for found in results:
            if isinstance(found, str):
                _count_bad(bad, found, max_bad)
                continue
            done.append(found)
            if time.monotonic() - saved > _SAVE_SECONDS:
                # what an earlier call knew and this one has yet to reach must survive a stop here
                _write_index(cache, settings, {p.key: p for p in [*known.values(), *done]}.values())
                saved = time.monotonic()
    _write_index(cache, settings, (known | {p.key: p for p in done}).values())
    made = TileCache(cache, tile, tuple(done), tuple(bad))
    if not len(made):
        raise ValueError(_nothing_cut(made))
    return made


def _in_order(
    paths: Sequence[Path],
    look_up: Callable[[Path], CachedPhotograph | None],
    cut: Callable[[Path], CachedPhotograph | str],
    workers: int,
    watch: Watch,
) -> Generator[CachedPhotograph | str, None, None]:
    """Yield what is known of each photograph, or what cutting it gives; workers run ahead."""
    if not workers:
        yield from (look_up(path) or cut(path) for path in watch(paths, "caching"))
        return
    # spawned: a fork would copy the locks of this process's threads as they happen to stand
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        ahead = {path: pool.submit(cut, path) for path in paths if look_up(path) is None}
        for path in watch(paths, "caching"):
            yield ahead.pop(path).result() if path in ahead else look_up(path) or cut(path)
    finally:
        pool.shutdown(cancel_futures=True)


def _look_up(
    path: Path, known: dict[str, CachedPhotograph], cache: Path, settings: dict[str, Any]
) -> CachedPhotograph | None:
    """Return what an earlier call cached of a photograph, if all of it is there."""
    try:
        entry = known.get(_key(path, settings))
    except OSError:
        return None  # whoever reads it says what is wrong
    return entry if entry and _is_whole(cache, entry, settings["tile"]) else None


def _cut_file(path: Path, measure: Measure, cache: Path, settings: dict[str, Any]) -> CachedPhotograph | str:
    """Read, measure and cut a photograph; return why it cannot be read where that is so."""
    try:
        key = _key(path, settings)
        rgb_HW3 = load_image(path).rgb_HW3
    except (ImageError, OSError) as error:
        return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    unmeasured = CachedPhotograph(str(path), key, 0.0, 0)
    return _cut_photograph(rgb_HW3, measure(path, rgb_HW3), unmeasured, cache, (settings["sign_px"], settings["tile"]))


def _cut_photograph(
    rgb_HW3: UInt8s,
    signs: Signs,
    entry: CachedPhotograph,
    cache: Path,
    sizes: tuple[float, int],
) -> CachedPhotograph:
    """Scale and cut a photograph whose signs are known, and write its tiles."""
    (sign_px, tile), height = sizes, float(signs.height)
    if not (np.isfinite(height) and height > 0):
        return replace(entry, skipped="the height of its signs is not known")
    entry = replace(entry, sign_height=height)
    if sign_px > _MOST_ENLARGED * height:
        return replace(entry, skipped=f"its signs are {height:.1f} px high, too small")
    scaled_HW3 = resize(rgb_HW3, sign_px / height)
    boxes_N4 = signs.boxes_N4 * (sign_px / height)
    written_HW = _written(clay_mask(scaled_HW3), boxes_N4, _AROUND * sign_px)
    clay_HW3 = np.repeat(written_HW[..., None], 3, axis=2)
    kept: list[UInt8s] = []
    writing, whole = [], []
    for place in tile_grid(scaled_HW3.shape[1], scaled_HW3.shape[0], tile, tile // 8):
        clay_SS = cut(clay_HW3, place, 0)[..., 0]
        area = np.count_nonzero(clay_SS == WRITING) / sign_px**2
        if area >= _LEAST_SIGNS:
            writing.append(round(area))
            here_N4 = np.rint(place.to_tile(boxes_N4))
            here_N4 = here_N4[(here_N4 >= 0).all(1) & (here_N4 <= tile).all(1)]
            whole.append(np.insert(here_N4, 0, len(kept), axis=1).astype(np.int16))
            kept.append(np.dstack([cut(scaled_HW3, place, 0), clay_SS]))
    if kept:
        for arrays, suffix in ((np.concatenate(whole), "signs.npy"), (np.stack(kept), "npy")):
            _write_atomically(_array_path(cache, entry.key, suffix), lambda file: np.save(file, arrays))  # noqa: B023
    return replace(entry, tiles=len(kept), writing=tuple(writing))


def _written(clay_HW: npt.NDArray[np.bool_], boxes_N4: npt.NDArray[np.float64], around: float) -> UInt8s:
    """Return the mask (H, W) of `CLAY` and, up to ``around`` px from a sign, `WRITING`."""
    near_HW = np.full(clay_HW.shape, not len(boxes_N4))
    for x0, y0, x1, y1 in boxes_N4:
        rows = slice(max(0, round(y0 - around)), max(0, round(y1 + around)))
        near_HW[rows, max(0, round(x0 - around)) : max(0, round(x1 + around))] = True
    return np.where(clay_HW, np.where(near_HW, WRITING, CLAY), 0).astype(np.uint8)


def _key(path: Path, settings: dict[str, Any]) -> str:
    state = path.stat()
    told = json.dumps([str(path.absolute()), state.st_size, state.st_mtime_ns, settings], ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()[:24]


def _array_path(cache: Path, key: str, suffix: str = "npy") -> Path:
    return cache / key[:2] / f"{key}.{suffix}"  # 256 folders: no file system likes a million files in one


@lru_cache(maxsize=256)
def _mapped(path: Path) -> UInt8s:
    """Map an array of tiles; the most recent ones stay open, since a process may open about a thousand files."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, EOFError, FileNotFoundError) as error:
        raise ValueError(f"{path}: these tiles are damaged or gone ({error}); build the cache again") from error


def _is_whole(cache: Path, entry: CachedPhotograph, tile: int) -> bool:
    """Tell whether the tiles that the index promises are there."""
    if not entry.tiles:
        return True
    try:
        np.load(_array_path(cache, entry.key, "signs.npy"), mmap_mode="r", allow_pickle=False)
        found = np.load(_array_path(cache, entry.key), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return bool(found.shape == (entry.tiles, tile, tile, 4))


def _read_index(cache: Path) -> dict[str, CachedPhotograph]:
    """Return what earlier calls cached, by key; nothing where the index is absent or cannot be used."""
    try:
        index = json.loads((cache / "index.json").read_text(encoding="utf-8"))
        entries = [CachedPhotograph(**entry) for entry in index["photographs"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}  # it only saves work
    return {entry.key: entry for entry in entries}


def _write_index(cache: Path, settings: dict[str, Any], entries: Iterable[CachedPhotograph]) -> None:
    text = json.dumps({**settings, "photographs": [asdict(e) for e in entries]}, ensure_ascii=False, indent=1)
    _write_atomically(cache / "index.json", lambda file: file.write(text.encode()))


def _write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _count_bad(bad: list[str], reason: str, max_bad: int) -> None:
    """Note a picture that cannot be read; too many are an error."""
    bad.append(reason)
    if len(bad) > max_bad:
        raise DamagedDataError(
            f"{len(bad)} photographs cannot be read, more than max_bad={max_bad} allows: {'; '.join(bad)}; "
            "copy them again, or raise max_bad"
        )
    print(f"skipped ({len(bad)} of at most {max_bad}): {reason}", file=sys.stderr)


def _nothing_cut(made: TileCache) -> str:
    first = f"; the first: {made.unmeasured[0].path}: {made.unmeasured[0].skipped}" if made.unmeasured else ""
    return (
        f"no tile from {len(made.photographs) + len(made.damaged)} photographs: {len(made.damaged)} cannot be read, "
        f"{len(made.unmeasured)} have no known sign height{first}; expected photographs of tablets"
    )
