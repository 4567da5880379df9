"""How far probabilities can be believed, and how well they tell what is no known sign. No score is nan.

Sources:
    Guo et al. 2017 (expected calibration error, temperature); Nguyen and O'Connor 2015 (bins of equal mass);
    Brier 1950; Hendrycks and Gimpel 2017 (the largest probability as a detector of the unknown).
"""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BINS = 15
_LEAST = 1e-12  # probability: a truth that was ruled out costs 28 nats, not infinitely many


@dataclass(frozen=True)
class Reliability:
    """Crops in bins of confidence: mean confidence and share of right answers, both 0 to 1, and how many; all (B,)."""

    confidence_B: Floats
    right_B: Floats
    count_B: npt.NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error, percent: the mean distance of confidence from truth, weighted by crops."""
        total = int(self.count_B.sum())
        return 100 * float((self.count_B * np.abs(self.confidence_B - self.right_B)).sum() / total) if total else 0.0


@dataclass(frozen=True)
class Calibration:
    """Calibration of class probabilities.

    Attributes:
        ece: expected calibration error in 15 bins of equal width, percent.
        ece_mass: the same in 15 bins of equally many crops, percent.
        nll: negative log likelihood of the truth, nats a crop.
        brier: squared error over all classes, a crop; 0 to 2.
    """

    ece: float
    ece_mass: float
    nll: float
    brier: float

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers."""
        return asdict(self)


def score_calibration(probabilities_NC: npt.NDArray[np.floating], truth_N: npt.NDArray[np.int64]) -> Calibration:
    """Score probabilities (N, C), rows of sum 1, against class ids (N,); without crops all is 0."""
    if not len(truth_N):
        return Calibration(0.0, 0.0, 0.0, 0.0)
    probabilities = probabilities_NC.astype(np.float64)
    of_truth_N = probabilities[np.arange(len(truth_N)), truth_N]
    confidence_N, right_N = best_guess(probabilities, truth_N)
    return Calibration(
        ece=reliability(confidence_N, right_N).error,
        ece_mass=reliability(confidence_N, right_N, equal_mass=True).error,
        nll=float(-np.log(np.maximum(of_truth_N, _LEAST)).mean()),
        brier=float(((probabilities**2).sum(1) - 2 * of_truth_N + 1).mean()),
    )


def best_guess(probabilities_NC: npt.NDArray[np.floating], truth_N: npt.NDArray[np.int64]) -> tuple[Floats, Bools]:
    """Return the largest probability of each crop (N,), and whether its class is the true one (N,)."""
    if not len(truth_N):
        return np.zeros(0), np.zeros(0, dtype=bool)
    return probabilities_NC.max(1).astype(np.float64), np.asarray(probabilities_NC.argmax(1) == truth_N)


def reliability(confidence_N: Floats, right_N: Bools, bins: int = BINS, *, equal_mass: bool = False) -> Reliability:
    """Compare confidence with truth, bin by bin.

    Args:
        confidence_N: largest probability of each crop, 0 to 1.
        right_N: whether that class is the true one.
        bins: their number.
        equal_mass: bins of equally many crops, as far as that goes; else of equal width.

    Returns:
        The bins from low to high confidence; an empty one has 0 throughout.
    """
    place_N = bin_of(confidence_N, bins)
    if equal_mass:
        place_N = np.empty(len(confidence_N), dtype=np.int64)
        place_N[np.argsort(confidence_N, kind="stable")] = np.arange(len(confidence_N)) * bins // len(confidence_N)
    count_B = np.bincount(place_N, minlength=bins)
    sums = (np.bincount(place_N, values, minlength=bins) for values in (confidence_N, right_N.astype(np.float64)))
    confidence_B, right_B = (found / np.maximum(count_B, 1) for found in sums)
    return Reliability(confidence_B, right_B, count_B)


def bin_of(confidence_N: Floats, bins: int = BINS) -> npt.NDArray[np.int64]:
    """Return the bin of equal width (N,) that each confidence falls into; 1 belongs to the last."""
    return np.minimum((confidence_N * bins).astype(np.int64), bins - 1)


def miscalibration_sums(confidence_N: Floats, right_N: Bools, bins: int = BINS) -> Floats:
    """Return what `error_of_sums` adds up over crops: (N, bins + 1), the gap in the crop's own bin, and 1."""
    sums = np.zeros((len(confidence_N), bins + 1))
    sums[np.arange(len(confidence_N)), bin_of(confidence_N, bins)] = confidence_N - right_N
    sums[:, bins] = 1
    return sums


def error_of_sums(sums_DK: Floats) -> Floats:
    """Return the expected calibration error (D,), 0 to 1, of sums over crops (D, bins + 1) of `miscalibration_sums`."""
    kept_DK = sums_DK[sums_DK[:, -1] > 0]
    return np.asarray(np.abs(kept_DK[:, :-1]).sum(1) / kept_DK[:, -1])


@dataclass(frozen=True)
class OpenSet:
    """How well confidence tells known signs from what is none of them.

    Attributes:
        auroc: chance that a known sign is surer than an unknown thing, percent; 50 is a coin. Ties count half.
        fpr95: share of unknown things taken for known ones where 95 % of the known pass, percent.
        known, unknown: how many of either.
    """

    auroc: float
    fpr95: float
    known: int
    unknown: int

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers."""
        return asdict(self)


def score_open_set(known_N: Floats, unknown_M: Floats, recall: float = 0.95) -> OpenSet:
    """Compare the confidence of known signs (N,) with that of unknown things (M,).

    Raises:
        ValueError: one of the two is empty, so that there is nothing to tell apart.
    """
    if not (len(known_N) and len(unknown_M)):
        raise ValueError(f"{len(known_N)} known and {len(unknown_M)} unknown crops; expected some of either")
    ranks = stats.rankdata(np.concatenate([known_N, unknown_M]))
    above = ranks[: len(known_N)].sum() - len(known_N) * (len(known_N) + 1) / 2
    # the largest threshold that lets so many known signs pass
    threshold = np.sort(known_N)[::-1][int(np.ceil(recall * len(known_N))) - 1]
    return OpenSet(
        auroc=100 * float(above / (len(known_N) * len(unknown_M))),
        fpr95=100 * float(np.mean(unknown_M >= threshold)),
        known=len(known_N),
        unknown=len(unknown_M),
    )
