"""What an ensemble gains over the best of its members: scores of each, and the paired difference over tablets.

Every member is scored as it would read alone: on crops of its own side, three margins, at its temperature. Which of
them is the best was decided on dev, when the ensemble was made, and is not decided anew on the split that is scored.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from dubsar.datasets.crops import CropSize
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import ModelFile
from dubsar.models.ensemble import Classifier, SignEnsemble
from dubsar.pipelines.metrics import hits, score_classes
from dubsar.pipelines.parity.statistics import Counts, compare, two_sided
from dubsar.pipelines.reading.engine import classify_crops, margins, mean_probabilities
from dubsar.pipelines.stages.classify import Crops

Floats = npt.NDArray[np.float32]
TOP = (1, 5)
Cut = Callable[[CropSize], Crops]


def member_scores(
    network: Classifier, file: ModelFile, size: CropSize, cut: Cut, three_NC: Floats
) -> dict[str, dict[str, float]]:
    """Score the members of an ensemble, and what it gains over the one that was best on dev.

    Args:
        network: nothing is scored where it is no ensemble.
        file: of the ensemble.
        size: how crops are cut for it.
        cut: cuts the crops of the split that is scored.
        three_NC: probabilities that the ensemble gave them, as read.
    """
    if not isinstance(network, SignEnsemble):
        return {}
    names = [str(row["name"]) for row in file.card["provenance"]]
    sizes = [CropSize(side, size.context) for side in network.sides_px]
    views, crops = member_views(network.members, sizes, cut)
    read = {
        name: mean_probabilities(seen, temperature).numpy()
        for name, seen, temperature in zip(names, views, network.temperatures, strict=True)
    }
    scores = {f"member {name}": score_classes(found_NC, crops.classes_N).to_dict() for name, found_NC in read.items()}
    best = str(file.card["best"])
    rows = {f"ensemble's gain over {best} (best on dev)": three_NC}
    return scores | gains(read[best], rows, crops)


def member_views(
    members: Sequence[SignClassifier], sizes: Sequence[CropSize], cut: Cut
) -> tuple[list[list[torch.Tensor]], Crops]:
    """Return each member's logits (N, classes) of each of the three margins, and the crops of the last side.

    Args:
        members: which are asked.
        sizes: how crops are cut for each of them; each is cut once.
        cut: cuts the crops of a split.
    """
    views: list[list[torch.Tensor]] = [[] for _ in sizes]
    for size in sorted(set(sizes), key=lambda s: s.crop_px):
        for margin in margins(size):
            crops = cut(margin)
            for index, (member, own) in enumerate(zip(members, sizes, strict=True)):
                if own == size:
                    views[index].append(classify_crops(member, crops.pixels_NSS3))
    return views, crops


def gains(before_NC: Floats, after: Mapping[str, Floats], crops: Crops) -> dict[str, dict[str, float]]:
    """Estimate how many points of top-1 and top-5 others gain over a first one, on the same crops.

    Args:
        before_NC: what the first says of each crop, any scores.
        after: what others say, by the name of the row.
        crops: true classes and tablets; whole tablets are drawn anew for the error, since their signs are alike.

    Returns:
        By row: ``gain``, the two-sided 95 % bounds ``low`` and ``high``, and the probability ``p`` of so large a
        difference where there is none.
    """
    rows = {}
    for name, after_NC in after.items():
        for top in TOP:
            counts = [_counts(found_NC, crops, top) for found_NC in (before_NC, after_NC)]
            interval = compare(counts[0], counts[1], higher_is_better=True, finished=True)
            low, high, p = two_sided(interval)
            rows[f"{name}, top{top}"] = {"gain": interval.mean, "low": low, "high": high, "p": p}
    return rows


def _counts(found_NC: Floats, crops: Crops, top: int) -> Counts:
    right_N = hits(found_NC, crops.classes_N, top)
    return Counts.of_items(right_N[None], np.ones(len(right_N)), crops.tablets_N)
