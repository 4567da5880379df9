"""Bodies of `dubsar features` and `dubsar similar`: describe the signs of a folder, and find those like a given one.

Which signs look like this one is the question of palaeography: the hand, the period, a broken sign's likely whole.
"""

import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dubsar.configs.schema import ReadConfig
from dubsar.datasets.boxes import Floats, Ints, clip, iou_matrix
from dubsar.datasets.images import MAX_MEGAPIXELS, ImageError, LoadedImage, find_images, load_image
from dubsar.datasets.sources import require_outside_data
from dubsar.pipelines.console import print_table
from dubsar.pipelines.embeddings import Embedder, FeatureTable, load_embedder, load_table, save_table
from dubsar.pipelines.feature_pictures import Tile, printable, sheet
from dubsar.pipelines.features import Vectors, unit
from dubsar.pipelines.networks import find_device
from dubsar.pipelines.reading.engine import Engine
from dubsar.pipelines.reading.export import write_atomic
from dubsar.pipelines.reading.faces import split_faces, squarely_seen
from dubsar.pipelines.reading.folder import Outcome
from dubsar.pipelines.reading.progress import watched
from dubsar.pipelines.reading.read import load_engine

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_NUMBER = r"\s*(-?\d{1,9}(?:\.\d*)?)\s*"
_BOX = re.compile(rf"(.+)#{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}", re.DOTALL)
_SAME_SIGN = 0.5  # intersection over union with the query: it is not its own look-alike
_AROUND = 0.25  # of a sign's sides, shown around it
_SHEET_COLUMNS = 7


@dataclass(frozen=True)
class Rows:
    """What one photograph adds to a table of features."""

    features_ND: Vectors
    boxes_N4: Floats
    glyphs: list[str]
    names: list[str]
    probabilities: list[float]


def write_features(
    source: Path,
    out: Path,
    config: ReadConfig,
    *,
    weights: Path | None = None,
    of: str = "signs",
    overwrite: bool = False,
) -> Outcome:
    """Find the signs of all photographs below a folder and write their features, going on past those that fail.

    Args:
        source: a folder of photographs.
        out: the .npz file; written only where at least one photograph could be used.
        config: how signs are found and named.
        weights: of a classifier or a pretrained backbone; None: the classifier that ships.
        of: ``signs``, or ``photographs``: one row each, the mean of its signs' features at length 1.
        overwrite: replace a file that is there.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder, or no weights.
        FileExistsError: ``out`` is there.
        ImageError: the folder holds no picture.
        ValueError: ``out`` is no .npz or lies in the data folder, or the config's device is not there.
    """
    paths = _checked_photographs(source, out, overwrite=overwrite)
    embedder = load_embedder(weights, find_device(config.device))
    engine = load_engine(config)
    outcome, found = Outcome(), list[Rows]()
    for path in watched(paths, "embedding"):
        try:
            image = load_image(path, max_megapixels=config.max_megapixels)
            rows = _describe(image, engine, embedder, config)
        except (ImageError, OSError, MemoryError, RuntimeError) as error:
            # a fault of this file, or too large for the GPU (torch's own error): the others go on
            if isinstance(error, RuntimeError) and type(error).__name__ != "OutOfMemoryError":
                raise
            outcome.failed.append((path, str(error) or type(error).__name__))
        else:
            found.append(rows if of == "signs" else _as_one(rows, image))
            outcome.done.append(path)
    if outcome.failed:
        _print_failures(outcome, source, "were not used")
    if outcome.done:
        files = [p.relative_to(source).as_posix() for p in outcome.done]
        given = str(weights.resolve()) if weights else ""
        table = _joined(found, files, embedder.width, (str(source.resolve()), given, embedder.sha256, of))
        save_table(table, out)
        print(f"{len(table)} {of} of {len(files)} photographs, {embedder.width} features each, written to {out}")
        if not len(table):
            print("no sign was found on these photographs")
    return outcome


def _checked_photographs(source: Path, out: Path, *, overwrite: bool) -> list[Path]:
    """Return the photographs of a folder, after all that would make hours of work fail at their end."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such folder")
    if not source.is_dir():
        raise NotADirectoryError(f"{source}: not a folder; give the folder of photographs")
    if out.suffix != ".npz":
        raise ValueError(f"{out}: features are written as .npz, not as '{out.suffix}'; name a file *.npz with -o")
    require_outside_data(out, "--out")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: already exists; name another file with -o, or replace it with --overwrite")
    paths = find_images(source)
    if not paths:
        raise ImageError(f"{source}: no pictures in this folder; expected JPEG, PNG, TIFF, BMP, WebP or GIF")
    return paths


def _describe(image: LoadedImage, engine: Engine, embedder: Embedder, config: ReadConfig) -> Rows:
    """Find the signs that `dubsar read` finds on a photograph, name and embed them; boxes in the file's own pixels."""
    rgb, found = image.rgb_HW3, engine.find(image.rgb_HW3)
    views = split_faces(rgb, found.above(config.detect_threshold).boxes_N4)
    squarely = squarely_seen(views, found.boxes_N4)
    boxes = found.weighted(np.where(squarely, 1.0, config.edge_weight)).above(config.detect_threshold).boxes_N4
    probabilities, classes = engine.classify(rgb, boxes, 1)
    signs = [engine.inventory[int(c)] for c in classes[:, 0]]
    return Rows(
        embedder.embed(rgb, boxes),
        image.to_file_pixels(boxes),
        [s.glyph for s in signs],
        [s.name for s in signs],
        [float(p) for p in probabilities[:, 0]],
    )


def _as_one(rows: Rows, image: LoadedImage) -> Rows:
    """Return one row for a photograph, none where it has no sign."""
    count = min(1, len(rows.features_ND))
    mean_ND = unit(rows.features_ND).mean(0, keepdims=True) if count else rows.features_ND
    whole_N4 = np.array([[0.0, 0.0, *image.file_size]] * count).reshape(-1, 4)
    return Rows(mean_ND, whole_N4, [""] * count, [""] * count, [0.0] * count)


def _joined(found: list[Rows], files: list[str], width: int, about: tuple[str, str, str, str]) -> FeatureTable:
    owners = [name for name, rows in zip(files, found, strict=True) for _ in rows.glyphs]
    return FeatureTable(
        np.concatenate([np.zeros((0, width), np.float32), *(r.features_ND for r in found)]),
        np.concatenate([np.zeros((0, 4)), *(r.boxes_N4 for r in found)]),
        np.array(owners, dtype=np.str_),
        np.array([g for r in found for g in r.glyphs], dtype=np.str_),
        np.array([n for r in found for n in r.names], dtype=np.str_),
        np.array([p for r in found for p in r.probabilities], dtype=np.float32),
        *about,
    )


@dataclass(frozen=True)
class Query:
    """The sign whose look-alikes are asked for: a picture of it, or a box in a photograph's own pixels."""

    path: Path
    box: tuple[float, float, float, float] | None


def parse_query(text: str) -> Query:
    """Read ``sign.png`` or ``photo.jpg#x0,y0,x1,y1``, a box in px of the file's own pixels.

    A file name may hold a ``#``: what is the whole name of a file is that file.

    Raises:
        ValueError: what stands behind the ``#`` is no box, or its corners are not in order.
    """
    if "#" not in text or Path(text).is_file():
        return Query(Path(text), None)
    found = _BOX.fullmatch(text)
    if not found:
        raise ValueError(f"{text}: no such file, and no box behind the #; expected photo.jpg#x0,y0,x1,y1 in px")
    x0, y0, x1, y1 = (float(n) for n in found.groups()[1:])
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"{text}: the corners are not in order; expected x0 < x1 and y0 < y1")
    return Query(Path(found[1]), (x0, y0, x1, y1))


def find_look_alikes(
    crop: str,
    among: Path,
    out: Path,
    *,
    count: int = 20,
    weights: Path | None = None,
    photographs: Path | None = None,
    max_megapixels: float = MAX_MEGAPIXELS,
    device: str = "auto",
) -> Outcome:
    """Print the signs that are most like a given one, and write a picture of them.

    Args:
        crop: see `parse_query`.
        among: what `write_features` wrote of signs.
        out: the picture, .png or .jpg.
        count: most look-alikes.
        weights: those that ``among`` was made with, where they are elsewhere now.
        photographs: the folder that ``among`` was made of, where it is elsewhere now.
        max_megapixels: refuse larger pictures.
        device: auto, cpu, cuda or cuda:N.

    Returns:
        Photographs that look-alikes were cut from, and those that could not be read with the reason.

    Raises:
        FileNotFoundError: a file, a folder or weights are not there.
        ImageError: the query is no usable picture.
        ValueError: the box lies outside the picture, the features are of photographs or of other weights, or ``out``
            is no picture or would replace a photograph.
    """
    query, table = parse_query(crop), load_table(among)
    if table.rows != "signs" or not len(table):
        held = "no signs" if table.rows == "signs" else f"features of {table.rows}, not of signs"
        raise ValueError(f"{among}: holds {held}; write those of signs with `dubsar features FOLDER -o OUT.npz`")
    folder = photographs or Path(table.folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: the folder of photographs is not there; say where with --photographs")
    image = load_image(query.path, max_megapixels=max_megapixels)
    upright = _upright_box(query, image)
    _require_picture(out, {query.path.resolve(), *((folder / f).resolve() for f in np.unique(table.files_N).tolist())})
    embedder = load_embedder(weights or (Path(table.weights) if table.weights else None), find_device(device))
    if embedder.sha256 != table.sha256:
        raise ValueError(
            f"{among}: made with weights of SHA-256 {table.sha256[:16]}…, these have {embedder.sha256[:16]}…; "
            "give the same with --weights, or write the features again"
        )
    rgb = image.rgb_HW3
    wanted_1D = embedder.embed(rgb, upright) if query.box else embedder.embed_whole(rgb)
    cosines = unit(table.features_ND) @ unit(wanted_1D)[0]
    best = _ranked(cosines, _is_query(query, table, folder), count)
    _print_ranking(best, cosines, table)
    outcome, cuts = _cut_out(best, table, folder, max_megapixels)
    tiles = [Tile(_surroundings(rgb, upright[0]), ("query", "", query.path.name))]
    _write_picture(sheet([*tiles, *_tiles(best, cosines, table, cuts)], _SHEET_COLUMNS), out)
    if outcome.failed:
        _print_failures(outcome, folder, "could not be shown")
    print(f"written to {out}")
    return outcome


def _upright_box(query: Query, image: LoadedImage) -> Floats:
    """Return the query's box (1, 4) in px of the upright picture."""
    width, height = image.file_size
    if query.box is None:
        return image.from_file_pixels(np.array([[0.0, 0.0, width, height]]))
    x0, y0, x1, y1 = query.box
    if x0 < 0 or y0 < 0 or x1 > width or y1 > height:
        raise ValueError(
            f"{query.path}: the box {x0:g},{y0:g},{x1:g},{y1:g} reaches beyond the picture of {width} x {height} px; "
            "give px of the file's own pixels, as in the table of signs"
        )
    return image.from_file_pixels(np.array([query.box]))


def _require_picture(out: Path, sources: set[Path]) -> None:
    if out.suffix.lower() not in _FORMATS:
        raise ValueError(f"{out}: cannot write a picture of type '{out.suffix}'; expected .png, .jpg or .jpeg")
    require_outside_data(out, "--out")
    if out.resolve() in sources:
        raise ValueError(f"{out}: is one of the photographs, which are never written to; name another file with -o")
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise FileNotFoundError(f"{out}: a folder, or in a folder that is not there; name a file with -o")


def _is_query(query: Query, table: FeatureTable, folder: Path) -> npt.NDArray[np.bool_]:
    """Mark the rows (N,) that are the very sign that is asked for."""
    if query.box is None or not query.path.resolve().is_relative_to(folder.resolve()):
        return np.zeros(len(table), dtype=bool)
    own = table.files_N == query.path.resolve().relative_to(folder.resolve()).as_posix()
    return np.asarray(own & (iou_matrix(table.boxes_N4, np.array([query.box]))[:, 0] > _SAME_SIGN))


def _ranked(cosines_N: Vectors, left_out_N: npt.NDArray[np.bool_], count: int) -> Ints:
    order = np.argsort(-cosines_N, kind="stable")
    return np.asarray(order[~left_out_N[order]][:count], dtype=np.int64)


def _print_ranking(best: Ints, cosines_N: Vectors, table: FeatureTable) -> None:
    shown = Table("rank", "cosine", "file", "box", "guess")
    for rank, row in enumerate(best.tolist(), start=1):
        box = ",".join(f"{v:.0f}" for v in table.boxes_N4[row])
        guess = f"{table.glyphs_N[row]} {table.names_N[row]} {table.probabilities_N[row]:.0%}"
        file = escape(printable(str(table.files_N[row])))
        shown.add_row(str(rank), f"{cosines_N[row]:.3f}", file, box, escape(printable(guess)))
    print_table(shown)


def _cut_out(
    best: Ints, table: FeatureTable, folder: Path, max_megapixels: float
) -> tuple[Outcome, dict[int, npt.NDArray[np.uint8]]]:
    """Cut look-alikes from their photographs, each of which is read once."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in best.tolist():
        rows_of[str(table.files_N[row])].append(row)
    outcome, cuts = Outcome(), {}
    for name, rows in watched(list(rows_of.items()), "cutting"):
        try:
            image = load_image(folder / name, max_megapixels=max_megapixels)
        except (ImageError, OSError, MemoryError) as error:
            outcome.failed.append((folder / name, str(error) or type(error).__name__))
            continue
        outcome.done.append(folder / name)
        for row, box in zip(rows, image.from_file_pixels(table.boxes_N4[rows]), strict=True):
            cuts[row] = _surroundings(image.rgb_HW3, box)
    return outcome, cuts


def _tiles(
    best: Ints, cosines_N: Vectors, table: FeatureTable, cuts: dict[int, npt.NDArray[np.uint8]]
) -> Iterator[Tile]:
    for rank, row in enumerate(best.tolist(), start=1):
        guess = f"{table.names_N[row]} {table.probabilities_N[row]:.0%}"
        yield Tile(cuts.get(row), (f"{rank}  {cosines_N[row]:.3f}", guess, str(table.files_N[row])))


def _surroundings(rgb_HW3: npt.NDArray[np.uint8], box: Floats) -> npt.NDArray[np.uint8]:
    """Cut a sign with some clay around it; one pixel at least, for the photograph may be another one by now."""
    height, width = rgb_HW3.shape[:2]
    margin = _AROUND * np.array([box[2] - box[0], box[3] - box[1]])
    wide = clip(np.concatenate([box[:2] - margin, box[2:] + margin])[None], width, height)[0]
    x0, y0 = min(int(wide[0]), width - 1), min(int(wide[1]), height - 1)
    x1, y1 = max(x0 + 1, int(np.ceil(wide[2]))), max(y0 + 1, int(np.ceil(wide[3])))
    return rgb_HW3[y0:y1, x0:x1]


def _write_picture(pixels_HW3: npt.NDArray[np.uint8], out: Path) -> None:
    data = io.BytesIO()
    kind = _FORMATS[out.suffix.lower()]
    Image.fromarray(pixels_HW3).save(data, kind, **({"quality": 92} if kind == "JPEG" else {}))
    write_atomic(out, data.getvalue())


def _print_failures(outcome: Outcome, folder: Path, what: str) -> None:
    total = len(outcome.failed) + len(outcome.done)
    table = Table("photograph", "why", title=f"{len(outcome.failed)} of {total} {what}")
    for path, why in outcome.failed:
        name = printable(str(path.relative_to(folder)))
        table.add_row(escape(name), escape(printable(why.removeprefix(f"{path}: "))))
    Console(stderr=True).print(table)
