"""What `dubsar evaluate classify` prints: how often a classifier is right, where, and how far it can be believed.

Rows of scores, all in percent but for nll and brier (see `dubsar.pipelines.calibration`):

* **one crop**; **three margins**, as reading does it; the same over the classes that occur in training, and over the
  frequent ones. The answer may be any class of the inventory, whatever the row. ``low`` and ``high`` bound a 95 %
  interval over tablets (`dubsar.pipelines.resampling`).
* **temperature 1**: what calibration was before the temperature of the model card, which is fitted on dev.
* **MZL numbers, shapes**: classes that are one sign to a coarser eye count as one, their probabilities added up
  (`dubsar.datasets.allographs`).
* by **training crops** of the class: those that people have labelled, also where a run was given fewer
  (``data.label_fraction``) or more (``data.more_signs``), so that rows of all runs speak of the same classes. By
  **source** of the labels; by museum photograph. Of those the data tell the ``collection`` (of the CompVis part),
  the ``view`` that a box lies on (obverse or reverse; named in that part alone) and the size. Whether a picture is a
  composite of views, and its light, nobody noted; how large a sign is on the picture, ``px`` of the square root of
  its box's area, stands for the scale.
* **unknown**: told from known signs by the largest probability alone. Crops of classes without a training crop; and
  clay without a labelled sign, of which some is a damaged sign (`dubsar.datasets.bare_clay`), so that no method can
  reach 100.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dubsar.datasets.allographs import Groups
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory
from dubsar.pipelines.calibration import (
    best_guess,
    error_of_sums,
    miscalibration_sums,
    score_calibration,
    score_open_set,
)
from dubsar.pipelines.metrics import hits, score_classes
from dubsar.pipelines.reading.engine import mean_probabilities
from dubsar.pipelines.resampling import percent_bounds
from dubsar.pipelines.scoring.looks import Looks

FREQUENT = 20  # training crops of a class, from which on it counts as frequent
FREQUENCIES = ((0, 0), (1, 4), (5, 19), (20, 99), (100, None))  # training crops of a class, first and last of a bin
_MEGAPIXELS, _SIDES_PX = (2, 10), (40, 80)
Scores = dict[str, dict[str, float]]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """Probabilities (N, C) of crops, their true classes (N,), and the tablet of each (N,)."""

    probabilities_NC: npt.NDArray[np.float32]
    truth_N: npt.NDArray[np.int64]
    tablets_N: npt.NDArray[np.str_]

    def chosen(self, index: npt.NDArray[np.int64] | Bools) -> "Answers":
        """Return some of the crops."""
        return Answers(self.probabilities_NC[index], self.truth_N[index], self.tablets_N[index])

    def united(self, groups_C: Groups) -> "Answers":
        """Return the answers at the level of groups: probabilities of one group are added up."""
        sums_NG = np.zeros((len(self.truth_N), int(groups_C.max(initial=-1)) + 1), self.probabilities_NC.dtype)
        np.add.at(sums_NG.T, groups_C, self.probabilities_NC.T)
        return Answers(sums_NG, groups_C[self.truth_N], self.tablets_N)

    @property
    def confidence_N(self) -> npt.NDArray[np.float64]:
        """The largest probability of each crop."""
        return best_guess(self.probabilities_NC, self.truth_N)[0]


def training_counts(photographs: Iterable[Photograph], inventory: Inventory) -> npt.NDArray[np.int64]:
    """Count the labelled signs of each class (C,); those of no class of the inventory are left out."""
    found = Counter(inventory.id_of_glyph.get(b.glyph, -1) for p in photographs for b in p.boxes)
    return np.array([found[c] for c in range(len(inventory))], dtype=np.int64)


def answers(looks: Looks, temperature: float) -> Answers:
    """Return what reading makes of the signs: the mean over margins."""
    return Answers(mean_probabilities(looks.views, temperature).numpy(), looks.classes_N, looks.tablets_N)


def score_looks(
    looks: Looks, temperature: float, counts_C: npt.NDArray[np.int64], levels: Mapping[str, Groups]
) -> Scores:
    """Score what a classifier made of a split, see the module; rows without a crop are left out, but for the first.

    Args:
        looks: with clay or without.
        temperature: of the model card.
        counts_C: training crops of each class.
        levels: by name (such as ``MZL numbers``), the group of each class.
    """
    three, before = answers(looks, temperature), answers(looks, 1.0)
    one = Answers(mean_probabilities(looks.views[:1], temperature).numpy(), three.truth_N, three.tablets_N)
    taught_C, frequent_C = counts_C > 0, counts_C >= FREQUENT
    scores = {"one crop": score_fully(one), "three margins": score_fully(three)}
    scores[f"three margins, {taught_C.sum()} classes"] = score_fully(three.chosen(taught_C[three.truth_N]))
    scores[f"three margins, {frequent_C.sum()} frequent classes"] = score_fully(three.chosen(frequent_C[three.truth_N]))
    scores["three margins, temperature 1"] = score_fully(before)
    if looks.relit:
        both = mean_probabilities((*looks.views, *looks.relit), temperature).numpy()
        times = len(looks.relit) // len(looks.views)
        scores[f"three margins, relit {times} times"] = score_fully(Answers(both, three.truth_N, three.tablets_N))
    for name, groups_C in levels.items():
        scores[f"three margins, {len(set(groups_C.tolist()))} {name}"] = score_fully(three.united(groups_C))
    for name, member_N in strata(looks, counts_C).items():
        if member_N.any():
            part = three.chosen(member_N)
            scores[name] = score_classes(part.probabilities_NC, part.truth_N).to_dict()
    known_N = taught_C[three.truth_N]
    clay_M = mean_probabilities(looks.clay, temperature).numpy().max(1) if looks.clay else np.zeros(0)
    unknown = {"classes without a training crop": three.confidence_N[~known_N], "clay without a sign": clay_M}
    for name, confidence_M in unknown.items():
        if known_N.any() and len(confidence_M):
            found = score_open_set(three.confidence_N[known_N], confidence_M.astype(np.float64))
            scores[f"unknown: {name}"] = found.to_dict()
    return scores


def score_fully(found: Answers) -> dict[str, float]:
    """Score answers with intervals over tablets, and their calibration."""
    row = score_classes(found.probabilities_NC, found.truth_N).to_dict()
    for name, top in (("top1", 1), ("top5", 5)):
        right_N = hits(found.probabilities_NC, found.truth_N, top)
        counts_N2 = np.stack([right_N, np.ones(len(right_N))], axis=1).astype(np.float64)
        row[f"{name}_low"], row[f"{name}_high"] = percent_bounds(found.tablets_N, counts_N2)
    row |= score_calibration(found.probabilities_NC, found.truth_N).to_dict()
    sums_NK = miscalibration_sums(*best_guess(found.probabilities_NC, found.truth_N))
    row["ece_low"], row["ece_high"] = percent_bounds(found.tablets_N, sums_NK, error_of_sums)
    return row


def strata(looks: Looks, counts_C: npt.NDArray[np.int64]) -> dict[str, Bools]:
    """Return which signs (N,) belong to each group: by frequency, source and photograph, see the module."""
    count_N = counts_C[looks.classes_N]
    groups = {
        frequency_name(low, high): (count_N >= low) & (count_N <= (np.inf if high is None else high))
        for low, high in FREQUENCIES
    }
    groups |= _by_name("source", [s.source for s in looks.signs])
    groups |= _by_name("collection", [p.collection for p in looks.photographs])
    groups |= _by_name("view", [s.view for s in looks.signs])
    megapixels_N = np.array([p.width * p.height / 1e6 for p in looks.photographs])
    groups |= _by_size("photographs", megapixels_N, _MEGAPIXELS, "megapixels")
    boxes_N4 = np.array([s.box_xyxy for s in looks.signs]).reshape(-1, 4)
    side_N = np.sqrt(np.prod(boxes_N4[:, 2:] - boxes_N4[:, :2], axis=1))
    return groups | _by_size("signs", side_N, _SIDES_PX, "px")


def frequency_name(low: int, high: int | None) -> str:
    """Name a bin of classes by their training crops."""
    if high is None:
        return f"{low} or more training crops"
    return f"{low} training crops" if low == high else f"{low}-{high} training crops"


def _by_name(kind: str, names: Sequence[str]) -> dict[str, Bools]:
    """Group by a column of the tables; what has no entry there forms a group of its own, unless nothing has one."""
    values = np.array(names, dtype=np.str_)
    return {f"{kind} {v or 'not named'}": values == v for v in np.unique(values)} if any(names) else {}


def _by_size(what: str, sizes_N: npt.NDArray[np.float64], limits: tuple[int, int], unit: str) -> dict[str, Bools]:
    small, large = limits
    return {
        f"{what} under {small} {unit}": sizes_N < small,
        f"{what} of {small} to {large} {unit}": (sizes_N >= small) & (sizes_N < large),
        f"{what} of {large} {unit} or more": sizes_N >= large,
    }
