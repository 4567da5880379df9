"""From a photograph to a `Tablet`: find signs, sort them into faces and lines, name them, read the lines.

    from dubsar.pipelines.reading.read import read_tablet
    tablet = read_tablet(Path("tablet.jpg"))

What is doubtful looks doubtful: a sign below ``unread_below`` is written ``x``, below ``doubtful_below`` it gets
``?``, and a stretch of a line without signs is ``[...]``. Nothing is restored.
"""

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.alignment import READING, bare
from dubsar.datasets.boxes import Floats
from dubsar.datasets.images import LoadedImage, load_image
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.spelling import code_points
from dubsar.datasets.tablet import BoxXYXY, Candidate, Face, Line, Sign, Tablet
from dubsar.pipelines.reading.faces import EDGES, FaceView, assign_faces, split_faces, squarely_seen
from dubsar.pipelines.reading.order import gaps, group_lines

if TYPE_CHECKING:
    from dubsar.pipelines.reading.engine import Detections, Engine

BROKEN = "[...]"


@dataclass
class Reading:
    """A tablet that was read, and what it was read from.

    Attributes:
        image: the photograph.
        detections: all that may be signs, also below the reading threshold.
        seconds: that each step took.
        inventory: the signs that could be named.
    """

    tablet: Tablet
    image: LoadedImage
    detections: "Detections"
    seconds: dict[str, float] = field(default_factory=dict)
    inventory: Inventory | None = None


def read_tablet(path: Path, config: ReadConfig | None = None) -> Tablet:
    """Read one photograph.

    Args:
        path: a picture file.
        config: thresholds, weights and language; the shipped ones where None.

    Raises:
        ImageError: the file is no usable picture.
        CheckpointError, FileNotFoundError: weights are damaged or absent.
    """
    config = config or load(shipped_config("read"), ReadConfig)
    return read_photograph(path, load_engine(config), config).tablet


@lru_cache(maxsize=2)
def load_engine(config: ReadConfig) -> "Engine":
    """Load the networks once per config."""
    from dubsar.pipelines.reading.engine import Engine

    return Engine.load(config)


def read_photograph(path: Path, engine: "Engine", config: ReadConfig) -> Reading:
    """Read one photograph with networks that are loaded; boxes of the tablet are in the file's own pixels."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        image = load_image(path, max_megapixels=config.max_megapixels)
    rgb = image.rgb_HW3
    with _timed(seconds, "find"):
        everything = engine.find(rgb)
    with _timed(seconds, "order"):
        place = put_in_order(rgb, everything, config)
    everything, found = place.everything, place.found
    with _timed(seconds, "classify"):
        probabilities, classes = engine.classify(rgb, found.boxes_N4, config.top_k)
    signs = [
        _sign(box, score, p, c, engine)
        for box, score, p, c in zip(
            image.to_file_pixels(found.boxes_N4), found.scores_N, probabilities, classes, strict=True
        )
    ]
    with _timed(seconds, "transliterate"):
        widths = found.boxes_N4[:, 2] - found.boxes_N4[:, 0]
        usual = [float(np.median(widths[place.owner_N == v])) for v, _ in place.rows]
        broken = [_with_breaks(row, found.boxes_N4, w, signs) for (_, row), w in zip(place.rows, usual, strict=True)]
        lines = transliterate_lines(broken, engine, config)
    faces = []
    for v, view in enumerate(place.views):
        own = [line for (face, _), line in zip(place.rows, lines, strict=True) if face == v]
        if own:
            numbered = tuple(line.model_copy(update={"label": str(n)}) for n, line in enumerate(own, start=1))
            box = _as_box(image.to_file_pixels(np.array([view.box]))[0])
            faces.append(Face(name=view.name, box=box, lines=numbered))
    if config.edges == "aside":
        faces = set_aside(faces)
    notes = () if signs else ("no sign was found on this photograph",)
    tablet = Tablet(
        identifier=path.stem,
        image=path.name,
        width=image.file_size[0],
        height=image.file_size[1],
        faces=tuple(faces),
        provenance=dict(engine.provenance),
        notes=notes,
    )
    return Reading(tablet, image, everything, seconds, engine.inventory)


@dataclass(frozen=True)
class Order:
    """Signs in reading order.

    Attributes:
        views: of the tablet that the photograph shows.
        everything: all finds, those seen at an angle at less than their score.
        found: those above the threshold.
        owner_N: the view that each of these is on.
        rows: index of the view and indices into ``found`` of each line, from left to right.
    """

    views: list[FaceView]
    everything: "Detections"
    found: "Detections"
    owner_N: npt.NDArray[np.int64]
    rows: list[tuple[int, list[int]]]


def put_in_order(rgb_HW3: npt.NDArray[np.uint8], everything: "Detections", config: ReadConfig) -> Order:
    """Sort what was found into views and lines."""
    views = split_faces(rgb_HW3, everything.above(config.detect_threshold).boxes_N4)
    squarely = squarely_seen(views, everything.boxes_N4)
    everything = everything.weighted(np.where(squarely, 1.0, config.edge_weight))
    found = everything.above(config.detect_threshold)
    owner = assign_faces(views, found.boxes_N4)
    owner = np.where(owner < 0, _nearest(views, found.boxes_N4), owner)  # no sign is left out
    rows = [
        (v, [int(members[i]) for i in row])
        for v in range(len(views))
        for members in [np.flatnonzero(owner == v)]
        for row in group_lines(found.boxes_N4[members])
    ]
    return Order(views, everything, found, owner, rows)


def set_aside(faces: list[Face]) -> list[Face]:
    """Put views of the edges behind the faces and mark them, for they show the ends of the same lines at an angle.

    Where there is no other face, the edges are the text.
    """
    main = [f for f in faces if f.name not in EDGES]
    if not main:
        return faces
    return main + [f.model_copy(update={"aside": True}) for f in faces if f.name in EDGES]


def transliterate_lines(lines: list[list[Sign]], engine: "Engine", config: ReadConfig) -> list[Line]:
    """Give each line of signs its text, and each sign its reading; a broken stretch is read as a gap."""
    spelled = [[code_points(s.glyph) if s.damage != "broken" else ["…"] for s in line] for line in lines]
    sources = [([c for sign in line for c in sign], config.language) for line in spelled]
    read = engine.transliterate(sources, config.beams)
    result = []
    for line, spelling, (pieces, log_probability) in zip(lines, spelled, read, strict=True):
        ends = np.cumsum([0, *map(len, spelling)])
        own = ["".join(pieces[a:b]) for a, b in itertools.pairwise(ends)]
        signs = tuple(_read_as(bare(p), s, config) for s, p in zip(line, own, strict=True))
        text = "".join(show(p, s, config) for s, p in zip(signs, own, strict=True))
        result.append(
            Line(
                label="",
                signs=signs,
                text=re.sub(r"\s+", " ", text).strip(),
                confidence=float(np.clip(np.exp(log_probability), 0, 1)),
                provenance="dubsar",
            )
        )
    return result


def _read_as(reading: str, sign: Sign, config: ReadConfig) -> Sign:
    """Give a sign its reading with its doubt: ``x`` where it is unread, the flag ``?`` where it is doubtful."""
    if sign.damage == "broken":
        return sign
    if sign.confidence < config.unread_below:
        return sign.model_copy(update={"reading": "x"})
    flags: tuple[Literal["?"], ...] = ("?",) if sign.confidence < config.doubtful_below else ()
    return sign.model_copy(update={"reading": reading, "flags": flags})


def show(piece: str, sign: Sign, config: ReadConfig) -> str:
    """Write one sign's piece of text with its doubt: ``x`` unread, ``?`` doubtful, ``[...]`` broken away."""
    if sign.damage == "broken":
        return f" {BROKEN} "
    if sign.confidence < config.unread_below:
        return READING.sub("x", piece) if READING.search(piece) else f"{piece}x"
    if sign.confidence < config.doubtful_below:
        return READING.sub(lambda reading: f"{reading[0]}?", piece)
    return piece


def _nearest(views: list[FaceView], boxes_N4: Floats) -> npt.NDArray[np.int64]:
    """Return for each box (N,) the view whose border is nearest to its centre."""
    frames = np.array([v.box for v in views])
    centres = (boxes_N4[:, None, :2] + boxes_N4[:, None, 2:]) / 2
    outside = np.maximum(frames[:, :2] - centres, 0) + np.maximum(centres - frames[:, 2:], 0)
    return np.asarray(np.square(outside).sum(-1).argmin(1))


def _sign(
    box: Floats, score: float, probabilities_K: Floats, classes_K: npt.NDArray[np.int64], engine: "Engine"
) -> Sign:
    named = [engine.inventory[int(c)] for c in classes_K]
    candidates = tuple(
        Candidate(glyph=s.glyph, name=s.name, probability=float(min(1.0, p)))
        for s, p in zip(named, probabilities_K, strict=True)
    )
    return Sign(
        box=_as_box(box),
        candidates=candidates,
        confidence=candidates[0].probability,
        found=float(score),
        provenance="dubsar",
    )


def _with_breaks(row: list[int], boxes_N4: Floats, sign_width: float, signs: list[Sign]) -> list[Sign]:
    """Return a line's signs with a lost stretch where the clay between neighbours is too wide for a space."""
    holes = set(gaps(boxes_N4[row], sign_width))
    line: list[Sign] = []
    for position, index in enumerate(row):
        if position in holes and position:
            line.append(Sign(damage="broken", confidence=0.0, provenance="dubsar"))
        line.append(signs[index])
    return line


def _as_box(box: Floats) -> BoxXYXY:
    x0, y0, x1, y1 = (float(v) for v in box)
    return x0, y0, x1, y1


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - started
