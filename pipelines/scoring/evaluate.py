"""Score a classifier's weights on the true boxes of a split, with a page of pictures on request."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dubsar.configs.schema import ClassifyData
from dubsar.datasets.allographs import Groups, groups_by_number, groups_by_shape
from dubsar.datasets.crops import CropSize
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.sources import data_root
from dubsar.datasets.synthetic.glyphs import assyrian_table
from dubsar.models.checkpoint import ModelFile
from dubsar.models.ensemble import Classifier
from dubsar.pipelines.member_scores import member_scores
from dubsar.pipelines.networks import inventory_of, load_classifier
from dubsar.pipelines.reading.engine import mean_probabilities
from dubsar.pipelines.scoring.looks import Looks, first_signs, look
from dubsar.pipelines.scoring.scores import Scores, score_looks, training_counts
from dubsar.pipelines.signs import open_common_signs, open_signs
from dubsar.pipelines.stages.classify import read_crops

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Examined:
    """A classifier's looks at a split, and what is needed to judge them."""

    network: Classifier
    file: ModelFile
    looks: Looks
    inventory: Inventory
    size: CropSize
    temperature: float
    training: tuple[Photograph, ...]
    data: ClassifyData


def examine_signs(
    path: Path,
    split: str,
    limit: int = 0,
    device: torch.device = _CPU,
    *,
    clay: bool = False,
    relight: int = 0,
) -> Examined:
    """Load a classifier and let it look at the true boxes of a split.

    Args:
        path: its weights.
        split: ``train``, ``dev`` or ``test``.
        limit: at most so many crops; 0: all.
        device: where to compute.
        clay, relight: as of `look`.

    Raises:
        FileNotFoundError, CheckpointError, InventoryMismatch: see `load_classifier`.
        ValueError, ImageError: the data cannot be used.
    """
    network, config, file = load_classifier(path)
    inventory = inventory_of(file, path)
    unknown = config.data.ignore_unknown  # never outside of train: a dropped box would vanish from the truth
    signs = open_common_signs([(path, config.data)])  # classes count as frequent by what people have labelled
    asked = signs.photographs(split, inventory, ignore_unknown=unknown and split == "train")
    training = signs.photographs("train", inventory, ignore_unknown=unknown)
    size = CropSize(config.data.crop_px, config.data.context)
    looks = look(network.to(device), first_signs(asked, limit), size, inventory, clay=clay, relight=relight)
    temperature = float(file.card.get("temperature", 1.0))
    return Examined(network, file, looks, inventory, size, temperature, tuple(training), config.data)


def levels_of(seen: Examined) -> dict[str, Groups]:
    """Return which classes are one sign to a coarser eye, by level; only what is known of the data set.

    Shapes are those of Neo-Assyrian, so they say nothing of other data sets, whatever their labels.
    """
    levels: dict[str, Groups] = {}
    if any(c.mzl for c in seen.inventory.classes):
        levels["MZL numbers"] = groups_by_number(seen.inventory)
    table = assyrian_table(data_root())
    if seen.data.source == "tablet-signs" and table.is_file():
        levels["shapes"] = groups_by_shape(seen.inventory, table)
    return levels


def evaluate_signs(
    path: Path,
    split: str,
    limit: int = 0,
    device: torch.device = _CPU,
    report: Path | None = None,
    relight: int = 0,
) -> Scores:
    """Score true boxes as `dubsar.pipelines.scoring.scores` says, and write a page into ``report``.

    Raises:
        FileNotFoundError, CheckpointError, InventoryMismatch, ValueError, ImageError: see `examine_signs`.
    """
    seen = examine_signs(path, split, limit, device, clay=True, relight=relight)
    counts_C = training_counts(seen.training, seen.inventory)
    scores = score_looks(seen.looks, seen.temperature, counts_C, levels_of(seen))
    drop = seen.data.ignore_unknown and split == "train"
    cut = partial(read_crops, open_signs(seen.data), split, inventory=seen.inventory, limit=limit, ignore_unknown=drop)
    three_NC = mean_probabilities(seen.looks.views, seen.temperature).numpy()
    scores |= member_scores(seen.network, seen.file, seen.size, lambda size: cut(size=size), three_NC)
    if report is not None:
        from dubsar.pipelines.scoring.report import write_sign_report

        write_sign_report(report, seen, scores, f"classify on {split}")
    return scores
