"""How each stage's dev set is counted for a comparison: item by item, with the tablet and the stratum of each.

A score is a ratio of counts over tablets (`dubsar.pipelines.parity.statistics.Counts`), and both arms must have the
same denominators. So detection is counted as errors (signs missed and finds that are none) per true sign, not as
average precision, which is no ratio.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from dubsar.datasets.boxes import areas, match
from dubsar.datasets.photographs import open_photographs
from dubsar.datasets.text import canonical, tokens
from dubsar.models.transliterator import clean, transliterate
from dubsar.pipelines.metrics import hits
from dubsar.pipelines.reading.engine import classify_crops, find_signs, tile_settings
from dubsar.pipelines.stages.classify import Crops
from dubsar.pipelines.stream import Stream

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RARE = 20  # training crops below which a class is rare
SHORT = 10  # signs below which a line is short
FOUND = 0.25  # score from which on a find counts, as in reading
OVERLAP = 0.5  # of a find and a true box


@dataclass(frozen=True)
class Tally:
    """What one trained arm scored on the items of its dev set.

    Attributes:
        tablets_N: the tablet of each item.
        parts: by metric (N,): errors or right answers of each item.
        wholes: by metric (N,): characters, readings or signs of each item.
        strata: by name, which items belong to it.
    """

    tablets_N: npt.NDArray[np.str_]
    parts: dict[str, Floats]
    wholes: dict[str, Floats]
    strata: dict[str, Bools]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "tablets": self.tablets_N.tolist(),
            **{
                name: {key: values.tolist() for key, values in table.items()}
                for name, table in (("parts", self.parts), ("wholes", self.wholes), ("strata", self.strata))
            },
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Tally":
        """Read back what `to_dict` gave."""
        parts, wholes = ({k: np.array(v, dtype=float) for k, v in data[name].items()} for name in ("parts", "wholes"))
        return cls(
            np.array(data["tablets"]), parts, wholes, {k: np.array(v, dtype=bool) for k, v in data["strata"].items()}
        )

    @property
    def percent(self) -> dict[str, float]:
        """The score by metric over all items."""
        return {name: 100 * float(part_N.sum() / self.wholes[name].sum()) for name, part_N in self.parts.items()}


def tally_signs(scores_NC: npt.NDArray[np.float32], crops: Crops, counts_C: npt.NDArray[np.int64]) -> Tally:
    """Count the right answers of a classifier, crop by crop.

    Args:
        scores_NC: of each crop and class, the higher the likelier.
        crops: true classes and tablets.
        counts_C: training crops of each class.
    """
    right = {f"top{top}": hits(scores_NC, crops.classes_N, top).astype(float) for top in (1, 5)}
    rare_N = counts_C[crops.classes_N] < RARE
    return Tally(
        crops.tablets_N,
        right,
        {name: np.ones(len(rare_N)) for name in right},
        {f"rare signs (under {RARE} crops)": rare_N, "frequent signs": ~rare_N},
    )


def _classify(system: Any, stream: Stream) -> Tally:
    logits_NC = classify_crops(system.network, system.dev.pixels_NSS3).numpy()
    counts_C = np.bincount(stream.crops.classes_N, minlength=logits_NC.shape[1])  # type: ignore[attr-defined]
    return tally_signs(logits_NC, system.dev, counts_C)


def _pretrain(system: Any, stream: Stream) -> Tally:
    labelled = system.labelled
    if labelled is None:
        raise ValueError("data.labelled is off: features are judged by labelled signs, so parity needs them")
    top5_M5, _ = system.neighbours()
    right_M5 = top5_M5 == labelled.dev.classes_N[:, None]
    rare_M = np.bincount(labelled.train.classes_N, minlength=labelled.classes)[labelled.dev.classes_N] < RARE
    ones = np.ones(len(right_M5))
    return Tally(
        labelled.dev.tablets_N,
        {"knn_top1": right_M5[:, 0].astype(float), "knn_top5": right_M5.any(1).astype(float)},
        {"knn_top1": ones, "knn_top5": ones},
        {f"rare signs (under {RARE} crops)": rare_M, "frequent signs": ~rare_M},
    )


def _transliterate(system: Any, stream: Stream) -> Tally:
    pairs = [(source, pair) for source, lines in system.dev.items() for pair in lines]
    system.network.eval()
    read = transliterate(system.network, [(tuple(p.signs), p.language[:3]) for _, p in pairs], compact=system.compact)
    found = [canonical(clean(pieces)) for pieces, _ in read]
    truth = [canonical(p.translit) for _, p in pairs]
    sources = np.array([source for source, _ in pairs])
    short = np.array([len(p.signs) < SHORT for _, p in pairs])
    readings = [(tokens(f), tokens(t)) for f, t in zip(found, truth, strict=True)]
    return Tally(
        np.array([f"{source}/{p.text_id}" for source, p in pairs]),
        {
            "cer": np.array([float(Levenshtein.distance(f, t)) for f, t in zip(found, truth, strict=True)]),
            "ser": np.array([float(Levenshtein.distance(f, t)) for f, t in readings]),
        },
        {"cer": np.array([float(len(t)) for t in truth]), "ser": np.array([float(len(t)) for _, t in readings])},
        {source: sources == source for source in system.dev}
        | {f"lines under {SHORT} signs": short, f"lines of {SHORT} signs or more": ~short},
    )


def _detect(system: Any, stream: Stream) -> Tally:
    settings = tile_settings(system.config)
    system.network.eval()
    tablets, parts, wholes, small = [], [], [], []
    for photograph, image in open_photographs(system.dev):
        found = find_signs(system.network, image.rgb_HW3, settings, FOUND)
        truth_M4 = image.from_file_pixels(np.array([b.box_xyxy for b in photograph.boxes]))
        pairs = match(found.boxes_N4, truth_M4, OVERLAP, found.scores_N)
        hit_M = np.zeros(len(truth_M4))
        hit_M[[t for _, t in pairs]] = 1
        # an item is a true sign, and what was found beside all of them is charged to the photograph's signs alike
        beside = (len(found.boxes_N4) - len(pairs)) / max(1, len(truth_M4))
        tablets += [photograph.object_id] * len(truth_M4)
        parts.append(np.stack((hit_M, 1 - hit_M + beside)))
        wholes.append(np.ones(len(truth_M4)))
        sides = np.sqrt(areas(truth_M4))
        small.append(sides < np.median(sides) if len(sides) else np.zeros(0, bool))
    recall, error = np.concatenate(parts, 1)
    ones = np.concatenate(wholes)
    is_small = np.concatenate(small)
    return Tally(
        np.array(tablets),
        {"recall": recall, "error": error},
        {"recall": ones, "error": ones},
        {"signs below their photograph's median size": is_small, "signs above it": ~is_small},
    )


# by stage, how it is counted
TALLIES: dict[str, Callable[[Any, Stream], Tally]] = {
    "pretrain": _pretrain,
    "classify": _classify,
    "detect": _detect,
    "transliterate": _transliterate,
}
HIGHER_IS_BETTER = {
    "knn_top1": True,
    "knn_top5": True,
    "top1": True,
    "top5": True,
    "recall": True,
    "error": False,
    "cer": False,
    "ser": False,
}
METRICS = {
    "pretrain": ("knn_top1", "knn_top5"),
    "classify": ("top1", "top5"),
    "detect": ("recall", "error"),
    "transliterate": ("cer", "ser"),
}
# by stage, what its own validation is judged by, and whether higher is better
VALIDATED = {
    "pretrain": ("val/knn_top1", True),
    "classify": ("val/top1", True),
    "detect": ("val/ap50", True),
    "transliterate": ("val/cer", False),
}
