"""What a classifier makes of a split's labelled signs, and of clay beside them; each photograph is decoded once."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from dubsar.datasets.bare_clay import bare_windows
from dubsar.datasets.crops import CropSize, cut_crops, relit
from dubsar.datasets.formats.tablet_signs import Photograph, SignBox
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.photographs import open_photographs
from dubsar.models.ensemble import Classifier
from dubsar.pipelines.reading.engine import classify_crops, margins

CLAY_SHARE = 0.5  # windows of clay, at most, over labelled signs


@dataclass(frozen=True)
class Looks:
    """A classifier's logits for N signs and for M windows of clay without one.

    Attributes:
        signs: their boxes, in the order of the tables.
        photographs: the one that each sign is on (N).
        classes_N: true class ids.
        views: logits (N, C) of each margin; the first is the crop as in training.
        relit: further ones (N, C), of crops under other exposures; empty where none were asked for.
        clay: logits (M, C) of each margin; empty where clay was left aside.
        pixels_NSS3: the crops of the first view.
    """

    signs: tuple[SignBox, ...]
    photographs: tuple[Photograph, ...]
    classes_N: npt.NDArray[np.int64]
    views: tuple[torch.Tensor, ...]
    relit: tuple[torch.Tensor, ...]
    clay: tuple[torch.Tensor, ...]
    pixels_NSS3: npt.NDArray[np.uint8]

    @property
    def tablets_N(self) -> npt.NDArray[np.str_]:
        """The tablet that each sign is on."""
        return np.array([p.object_id for p in self.photographs], dtype=np.str_)


def look(
    network: Classifier,
    photographs: Iterable[Photograph],
    size: CropSize,
    inventory: Inventory,
    *,
    clay: bool = False,
    relight: int = 0,
) -> Looks:
    """Classify the true boxes of photographs as reading does it, by three margins.

    Args:
        network: a classifier.
        photographs: with boxes of the inventory's classes.
        size: of the crops that it was trained on, without border.
        inventory: its classes.
        clay: also look at windows without a labelled sign, half as many as there are signs; the same ones every time.
        relight: also look at each crop under so many other exposures.

    Raises:
        ImageError, OSError: a photograph cannot be read.
    """
    sizes, signs, owners = margins(size), list[SignBox](), list[Photograph]()
    pixels: list[npt.NDArray[np.uint8]] = []
    views, others, bare = (list[list[torch.Tensor]]() for _ in range(3))
    for photograph, image in open_photographs(photographs):
        boxes = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]).reshape(-1, 4))
        crops = [cut_crops(image.rgb_HW3, boxes, s) for s in sizes]
        pixels.append(crops[0])
        views.append([classify_crops(network, c) for c in crops])
        others.append([classify_crops(network, relit(c, n)) for n in range(1, relight + 1) for c in crops])
        if clay:
            rng = np.random.default_rng(zlib.crc32(photograph.file.encode()))  # whatever is looked at besides
            windows = bare_windows(image.rgb_HW3, boxes, rng, round(CLAY_SHARE * len(boxes)))
            bare.append([classify_crops(network, cut_crops(image.rgb_HW3, windows, s)) for s in sizes])
        signs += photograph.boxes
        owners += [photograph] * len(photograph.boxes)
    empty = np.zeros((0, size.side_px, size.side_px, 3), np.uint8)
    return Looks(
        tuple(signs),
        tuple(owners),
        np.array([inventory.id_of_glyph[b.glyph] for b in signs], dtype=np.int64),
        _joined(views, len(sizes), len(inventory)),
        _joined(others, len(sizes) * relight, len(inventory)),
        _joined(bare, len(sizes) if clay else 0, len(inventory)),
        np.concatenate([empty, *pixels]),
    )


def first_signs(photographs: Iterable[Photograph], limit: int) -> list[Photograph]:
    """Return the photographs with their first ``limit`` boxes in all; with all of them where it is 0."""
    kept: list[Photograph] = []
    left = limit
    for photograph in photographs:
        if limit and left <= 0:
            break
        kept.append(replace(photograph, boxes=photograph.boxes[:left]) if limit else photograph)
        left -= len(photograph.boxes)
    return kept


def _joined(found: Sequence[Sequence[torch.Tensor]], views: int, classes: int) -> tuple[torch.Tensor, ...]:
    """Join logits of photographs by view; without crops they have no width, so that of the inventory is given."""
    return tuple(torch.cat([torch.zeros(0, classes), *(f[v] for f in found if len(f[v]))]) for v in range(views))
