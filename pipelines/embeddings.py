"""Networks that give signs their features, and the file of features that `dubsar features` writes.

The file is an .npz without pickles, one row a sign (or a photograph): `np.load(path)["features"]`.

    features        float32 (N, D), as the network gives them
    boxes           float64 (N, 4), xyxy px of the file's own pixels
    files           text (N,), below `folder`
    glyphs, names   text (N,): what dubsar takes the sign for, with
    probabilities   float32 (N,)
    folder, weights, sha256, rows, format: text; where the photographs were, and by which weights features were made
"""

import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from dubsar.datasets.boxes import Floats
from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.models.checkpoint import shipped, write_atomically
from dubsar.models.ensemble import Classifier, SignEnsemble
from dubsar.pipelines import networks
from dubsar.pipelines.features import Vectors, embed

FORMAT = "dubsar-features-1"
_ARRAYS = {"features": "f", "boxes": "f", "files": "U", "glyphs": "U", "names": "U", "probabilities": "f"}
_TEXTS = ("folder", "weights", "sha256", "rows", "format")
_AGAIN = "write it again by `dubsar features FOLDER -o OUT.npz`"

Texts = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Embedder:
    """A trained network as a source of features, and how it wants crops to be cut."""

    stage: str
    encode: Callable[[torch.Tensor], torch.Tensor]
    crops: CropSize
    width: int
    sha256: str
    device: torch.device

    def embed(self, rgb_HW3: npt.NDArray[np.uint8], boxes_N4: Floats) -> Vectors:
        """Return features (N, D) of the signs in boxes (N, 4), xyxy px of the picture."""
        if not len(boxes_N4):
            return np.zeros((0, self.width), np.float32)
        return self.embed_crops(cut_crops(rgb_HW3, boxes_N4, self.crops))

    def embed_crops(self, pixels_NSS3: npt.NDArray[np.uint8]) -> Vectors:
        """Return features (N, D) of signs that are cut already."""
        return embed(self.encode, pixels_NSS3, device=self.device)

    def embed_whole(self, rgb_HW3: npt.NDArray[np.uint8]) -> Vectors:
        """Return the features (1, D) of a picture of one sign, which somebody has cut out with a little clay around."""
        height, width = rgb_HW3.shape[:2]
        uncut = replace(self, crops=replace(self.crops, context=0.0))
        return uncut.embed(rgb_HW3, np.array([[0.0, 0.0, width, height]]))


def load_embedder(path: Path | None, device: torch.device, *, fresh: bool = False) -> Embedder:
    """Load a classifier, of which the features before its last layer are taken, or a pretrained backbone.

    Args:
        path: weights of either stage, or a run folder; None: the classifier that ships.
        device: where it is to compute.
        fresh: leave the weights of a backbone random, to compare with.

    Raises:
        CheckpointError, FileNotFoundError: the weights are damaged or absent.
    """
    path = path or shipped("classify")
    if _is_pretrained(path):
        encoder, pretrain, file = networks.load_encoder(path)
        if fresh:
            encoder = networks.build_encoder(pretrain, fresh=True).eval()
        encoder.to(device)
        size = CropSize(pretrain.data.crop_px, pretrain.data.context)
        sha256 = file.card["sha256"]
        return Embedder("pretrain", lambda pixels: encoder(pixels).cls_BD, size, encoder.width, sha256, device)
    classifier, config, file = networks.load_classifier(path)
    classifier.to(device)
    size = CropSize(config.data.crop_px, config.data.context)
    return Embedder("classify", partial(_features, classifier), size, _width(classifier), file.card["sha256"], device)


def _features(classifier: Classifier, pixels_BCHW: torch.Tensor) -> torch.Tensor:
    """Return what a classifier sees before its last layer (B, D).

    Of an ensemble it is what its members see side by side, each of length 1 and by the root of its weight, so that the
    cosine of two signs is the weighted mean of the members' cosines.
    """
    if isinstance(classifier, SignEnsemble):
        parts = [F.normalize(_features(member, pixels)) for member, pixels in classifier.shown(pixels_BCHW)]
        return torch.cat([weight**0.5 * part for weight, part in zip(classifier.weights, parts, strict=True)], 1)
    return classifier.embed(pixels_BCHW)


def _width(classifier: Classifier) -> int:
    members = classifier.members if isinstance(classifier, SignEnsemble) else [classifier]
    nets: list[Any] = [member.net for member in members]
    return sum(int(net.head_hidden_size) for net in nets)


def _is_pretrained(path: Path) -> bool:
    """Tell from the card beside weights, or the files in a run folder, whether they are of the stage `pretrain`."""
    if path.is_dir():
        return (path / "pretrain.safetensors").exists()
    stem = path.stem if path.suffix in {".safetensors", ".json"} else path.name
    try:
        card = json.loads(path.with_name(f"{stem}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # whoever loads the weights says what is wrong with them
    return isinstance(card, dict) and card.get("stage") == "pretrain"


@dataclass(frozen=True)
class FeatureTable:
    """What `dubsar features` found, as the module's docstring lists it."""

    features_ND: Vectors
    boxes_N4: Floats
    files_N: Texts
    glyphs_N: Texts
    names_N: Texts
    probabilities_N: Vectors
    folder: str
    weights: str
    sha256: str
    rows: str

    def __len__(self) -> int:
        return len(self.features_ND)


def save_table(table: FeatureTable, path: Path) -> None:
    """Write a table whole or not at all.

    Raises:
        OSError: the folder is full; the message names ``path``.
    """
    arrays = {name: getattr(table, f"{name}_{_suffix(name)}") for name in _ARRAYS}
    arrays |= {name: np.array(getattr(table, name)) for name in _TEXTS if name != "format"}
    write_atomically(path, lambda file: np.savez_compressed(file, format=np.array(FORMAT), **arrays))


def load_table(path: Path) -> FeatureTable:
    """Read what `save_table` wrote; nothing in the file is run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another kind of file, a damaged one, or one whose parts do not fit together.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of features; {_AGAIN}")
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in (*_ARRAYS, *_TEXTS)}
    except (ValueError, OSError, EOFError, KeyError, TypeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a file of features, or a damaged one ({error}); {_AGAIN}") from error
    if fault := _find_fault(found):
        raise ValueError(f"{path}: {fault}; {_AGAIN}")
    parts: dict[str, Any] = {f"{name}_{_suffix(name)}": found[name] for name in _ARRAYS}
    parts |= {name: str(found[name]) for name in _TEXTS if name != "format"}
    return FeatureTable(**parts)


def _suffix(name: str) -> str:
    return {"features": "ND", "boxes": "N4"}.get(name, "N")


def _find_fault(found: dict[str, npt.NDArray[Any]]) -> str:
    """Return what is wrong with the parts of a file; empty where nothing is."""
    for name in _TEXTS:
        if found[name].dtype.kind != "U" or found[name].shape:
            return f"{name} is {found[name].dtype} {found[name].shape}, expected one text"
    if str(found["format"]) != FORMAT:
        return f"format is {str(found['format'])[:40]!r}, expected {FORMAT!r}"
    if found["features"].ndim != 2:
        return f"features have shape {found['features'].shape}, expected (rows, features)"
    count = len(found["features"])
    for name, kind in _ARRAYS.items():
        shape = {"features": found["features"].shape, "boxes": (count, 4)}.get(name, (count,))
        if found[name].dtype.kind != kind or found[name].shape != shape:
            return f"{name} are {found[name].dtype} {found[name].shape}, expected {shape} like the features"
        if kind == "f" and not np.isfinite(found[name]).all():
            return f"{name} are not all finite"
    for name in np.unique(found["files"]).tolist():
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            return f"the file {name[:80]!r} lies outside the folder of photographs"
    return ""
