"""The three trained networks at work: find signs, name them, read a line. The only part of reading that knows torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dubsar.configs.schema import DetectConfig, ReadConfig
from dubsar.datasets.boxes import Floats, fuse
from dubsar.datasets.crops import CropSize, cut_crops, relit
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.tiles import cut, is_empty, merge_tiles, tile_grid
from dubsar.datasets.windows import resize, sign_size
from dubsar.models.checkpoint import ModelFile, shipped
from dubsar.models.detector import Detector
from dubsar.models.ensemble import Classifier, SignEnsemble
from dubsar.models.transliterator import transliterate
from dubsar.pipelines.networks import find_device, inventory_of, load_byt5, load_classifier, load_detector

FIRST_GUESS_PX = 66.0  # median sign size of the training photographs
LEAST_SCORE = 0.05  # detections below are noise; average precision needs all above
_MOST_PIXELS = 150e6
_SAME_SIGN = 0.55  # intersection over union of two looks at one sign
_CLEAR = 0.4  # detections above this are taken to be signs when their size is measured


@dataclass(frozen=True)
class Detections:
    """Signs of one photograph: boxes (N, 4) xyxy px of the upright picture, scores (N,), class ids (N,), best first."""

    boxes_N4: Floats
    scores_N: Floats
    classes_N: npt.NDArray[np.int64]
    sign_px: float  # size of a sign on the photograph, as found

    def above(self, threshold: float) -> "Detections":
        """Return those whose score is at least ``threshold``."""
        return self._pick(np.flatnonzero(self.scores_N >= threshold))

    def weighted(self, weights_N: Floats) -> "Detections":
        """Multiply the scores by weights (N,) of 0 to 1, and put the best first again."""
        changed = replace(self, scores_N=self.scores_N * weights_N)
        return changed._pick(np.argsort(-changed.scores_N, kind="stable"))

    def _pick(self, index: npt.NDArray[np.int64]) -> "Detections":
        boxes, scores, classes = self.boxes_N4[index], self.scores_N[index], self.classes_N[index]
        return replace(self, boxes_N4=boxes, scores_N=scores, classes_N=classes)


@dataclass(frozen=True)
class TileSettings:
    """How a photograph is shown to the detector: tile side, overlap share, and the sign size it was trained for.

    ``looks`` are sizes, as shares of the one that was found, at which the photograph is searched; the finds are fused.
    """

    tile: int
    overlap: float
    sign_px: float
    batch_size: int = 4
    precision: str = "fp32"
    looks: tuple[float, ...] = (1.0, 0.85, 1.18)


def find_signs(
    detector: Detector, rgb_HW3: npt.NDArray[np.uint8], settings: TileSettings, threshold: float = LEAST_SCORE
) -> Detections:
    """Find all signs on a photograph of any scale.

    The scale is searched first (`search_size`). Then the photograph is looked at a little larger and smaller too, and
    what was found is fused.

    Args:
        detector: in evaluation mode.
        rgb_HW3: uint8, upright.
        settings: as the detector was trained.
        threshold: smallest score that a look keeps; there is no cap on the number.
    """
    best = search_size(detector, rgb_HW3, settings, threshold)
    looks = [
        best if f == 1 else _at_size(detector, rgb_HW3, best.sign_px * f, settings, threshold) for f in settings.looks
    ]
    boxes, scores, index = fuse([d.boxes_N4 for d in looks], [d.scores_N for d in looks], _SAME_SIGN)
    return Detections(boxes, scores, np.concatenate([d.classes_N for d in looks])[index], best.sign_px)


def search_size(
    detector: Detector, rgb_HW3: npt.NDArray[np.uint8], settings: TileSettings, threshold: float = LEAST_SCORE
) -> Detections:
    """Find how large the signs of a photograph are, and what is seen at that size.

    The usual sign size and two larger ones are tried (the larger, the cheaper), and a smaller one where all look wrong;
    from the best of them the size is corrected by what is found until it agrees. Arguments as of `find_signs`.
    """
    tried = [_at_size(detector, rgb_HW3, FIRST_GUESS_PX * f, settings, threshold) for f in (1.0, 1.7, 2.9)]
    if max(map(_evidence, tried)) < _CLEAR:
        tried.append(_at_size(detector, rgb_HW3, FIRST_GUESS_PX * 0.6, settings, threshold))
    best = max(tried, key=_evidence)
    for _ in range(3):
        clear = best.boxes_N4[best.scores_N >= min(_CLEAR, best.scores_N.max(initial=0))]
        found = sign_size(clear) if len(clear) >= 3 else best.sign_px
        if 0.93 < found / best.sign_px < 1.07:
            break
        again = _at_size(detector, rgb_HW3, found, settings, threshold)
        if _evidence(again) < 0.9 * _evidence(best):
            break
        best = again
    return best


def _evidence(found: Detections) -> float:
    """Return the mean score of the 15 best finds: at a wrong scale there may be many, but none is sure."""
    return float(found.scores_N[:15].sum() / 15)


def _at_size(
    detector: Detector, rgb_HW3: npt.NDArray[np.uint8], sign_px: float, settings: TileSettings, threshold: float
) -> Detections:
    """Detect with the photograph scaled as if its signs were ``sign_px`` large."""
    # never more than twice the photograph's size, nor more pixels than memory should hold: false finds may be tiny
    area = rgb_HW3.shape[0] * rgb_HW3.shape[1]
    factor = min(settings.sign_px / sign_px, 2.0, max(1.0, (_MOST_PIXELS / area) ** 0.5))
    scaled = resize(rgb_HW3, factor)
    height, width = scaled.shape[:2]
    tiles, boxes, scores, classes = [], [], [], []
    grid = list(tile_grid(width, height, settings.tile, round(settings.overlap * settings.tile)))
    grid = [t for t in grid if not is_empty(scaled[t.y : t.y + t.height, t.x : t.x + t.width])]
    for first in range(0, len(grid), settings.batch_size):
        batch = grid[first : first + settings.batch_size]
        pixels = [cut(scaled, t, pad_value=0) for t in batch]
        pixels += [np.zeros_like(pixels[0])] * (settings.batch_size - len(batch))  # one shape for every call
        for tile, found in zip(batch, detect_tiles(detector, np.stack(pixels), settings.precision), strict=False):
            score, label = found[:, 4:].max(1)
            keep = score >= threshold
            tiles.append(tile)
            boxes.append(found[keep, :4].double().numpy())
            scores.append(score[keep].double().numpy())
            classes.append(label[keep].numpy())
    merged, merged_scores, index = merge_tiles(tiles, boxes, scores)
    labels = np.concatenate([np.zeros(0, np.int64), *classes])[index]
    return Detections(merged / factor, merged_scores, labels, sign_px)


def detect_tiles(detector: Detector, tiles_BHW3: npt.NDArray[np.uint8], precision: str = "fp32") -> torch.Tensor:
    """Run the detector over uint8 tiles (B, H, W, 3); returns (B, anchors, 4 + classes) on the CPU."""
    device = next(detector.parameters()).device
    pixels = torch.from_numpy(tiles_BHW3).to(device).permute(0, 3, 1, 2).float() / 255
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return detector.detect(pixels).cpu()


def tile_settings(config: DetectConfig, precision: str = "fp32") -> TileSettings:
    """Return how a detector trained by ``config`` wants photographs to be shown."""
    data = config.data
    return TileSettings(data.tile, data.overlap, data.sign_px, precision=precision)


def to_input(pixels_BSS3: torch.Tensor) -> torch.Tensor:
    """Turn uint8 crops (B, S, S, 3) into a classifier's input (B, 3, S, S) in 0-1."""
    return pixels_BSS3.permute(0, 3, 1, 2).float() / 255


@torch.inference_mode()
def classify_crops(
    network: Classifier, pixels_NSS3: npt.NDArray[np.uint8], batch_size: int = 128, precision: str = "fp32"
) -> torch.Tensor:
    """Return logits (N, classes) in float32, on the CPU, for crops without border."""
    network.eval()
    device = next(network.parameters()).device
    rows = [
        _logits(network, to_input(torch.from_numpy(pixels_NSS3[i : i + batch_size]).to(device)), precision).cpu()
        for i in range(0, len(pixels_NSS3), batch_size)
    ]
    return torch.cat(rows) if rows else torch.zeros(0, 0)


def _logits(network: Classifier, pixels_B3SS: torch.Tensor, precision: str) -> torch.Tensor:
    """Return float32 logits (B, classes); under bf16 the head stays in float32, else rounding decides near ties."""
    if isinstance(network, SignEnsemble):
        return network.combine([_logits(member, pixels, precision) for member, pixels in network.shown(pixels_B3SS)])
    if precision == "fp32":
        with torch.autocast(pixels_B3SS.device.type, enabled=False):  # a training validates under its own precision
            logits: torch.Tensor = network(pixels_B3SS)
        return logits
    with torch.autocast(pixels_B3SS.device.type, torch.bfloat16):
        features = network.net.forward_features(network.normalised(pixels_B3SS))
    return network.name(features.float())


def margins(size: CropSize) -> tuple[CropSize, ...]:
    """Return three crop sizes, a little tighter and wider: a detector's boxes are never quite those of training."""
    return tuple(replace(size, context=max(0.0, size.context + step)) for step in (0.0, -0.05, 0.05))


def mean_probabilities(logits: Sequence[torch.Tensor], temperature: float) -> torch.Tensor:
    """Average the probabilities (N, classes) of several views of the same signs."""
    return torch.stack([(view / temperature).softmax(1) for view in logits]).mean(0)


@dataclass(frozen=True)
class Engine:
    """The three networks, loaded, and what they are: all that reading a photograph needs of torch.

    With ``precision: bf16`` detector and classifier compute in bfloat16. The transliterator stays in float32: it writes
    byte by byte, so that one rounded near tie changes the rest of a line (159 of 200 Oracc dev lines were the same),
    and it gained but 8 % of its time (2 CPU cores with AMX).
    """

    detector: Detector
    classifier: Classifier
    byt5: Any
    inventory: Inventory
    tiles: TileSettings
    crops: CropSize
    compact: bool
    temperature: float
    device: torch.device
    provenance: dict[str, str]
    relight: int = 0

    @classmethod
    def load(cls, config: ReadConfig) -> "Engine":
        """Load the weights that a config names, or those that ship.

        Raises:
            CheckpointError, FileNotFoundError: weights are damaged or absent.
            InventoryMismatch: detector and classifier were made for different inventories.
            ValueError: the config's device is not there.
        """
        device = find_device(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        paths = {
            "detect": Path(config.detector) if config.detector else shipped("detect"),
            "classify": Path(config.classifier) if config.classifier else shipped("classify"),
            "transliterate": Path(config.transliterator) if config.transliterator else shipped("transliterate"),
        }
        detector, detect_config, detect_file = load_detector(paths["detect"])
        classifier, classify_config, classify_file = load_classifier(paths["classify"])
        byt5, byt5_config, byt5_file = load_byt5(paths["transliterate"])
        inventory = inventory_of(classify_file, paths["classify"])
        inventory.require(detect_file.card["inventory_hash"], str(paths["detect"]))
        files = {"detector": detect_file, "classifier": classify_file, "transliterator": byt5_file}
        return cls(
            detector.to(device),
            classifier.to(device),
            byt5.to(device),
            inventory,
            tile_settings(detect_config, config.precision),
            CropSize(classify_config.data.crop_px, classify_config.data.context),
            byt5_config.model.sign_encoding == "compact",
            float(classify_file.card.get("temperature", 1.0)),
            device,
            {name: _describe(file) for name, file in files.items()},
            config.relight,
        )

    def find(self, rgb_HW3: npt.NDArray[np.uint8]) -> Detections:
        """Find all signs on an upright photograph, also the doubtful ones (`LEAST_SCORE`)."""
        return find_signs(self.detector, rgb_HW3, self.tiles)

    def classify(
        self, rgb_HW3: npt.NDArray[np.uint8], boxes_N4: Floats, top_k: int
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Name the signs in boxes (N, 4): probabilities (N, K) and class ids (N, K), best first."""
        if not len(boxes_N4):
            return np.zeros((0, top_k)), np.zeros((0, top_k), np.int64)
        crops = [cut_crops(rgb_HW3, boxes_N4, size) for size in margins(self.crops)]
        shown = [relit(c, exposure) for exposure in range(self.relight + 1) for c in crops]
        views = [classify_crops(self.classifier, c, precision=self.tiles.precision) for c in shown]
        probabilities = mean_probabilities(views, self.temperature)
        best = probabilities.topk(min(top_k, probabilities.shape[1]))
        return best.values.double().numpy(), best.indices.numpy()

    def transliterate(self, lines: Sequence[tuple[Sequence[str], str]], beams: int) -> list[tuple[list[str], float]]:
        """Read lines of (code points, language): pieces per code point, and a mean log probability."""
        return transliterate(self.byt5, lines, compact=self.compact, beams=beams)


def _describe(file: ModelFile) -> str:
    card = file.card
    made = f"commit {card.get('commit', 'unknown')}, sha256 {card['sha256'][:12]}"
    return f"{card['stage']} {card['config']['name']}, {made}"
