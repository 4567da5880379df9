"""Which signs are taken for which: counts, and the pairs that are worth looking at."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Signs of class ``truth`` that were taken for class ``taken``: which crops, and of how many of that class."""

    truth: int
    taken: int
    crops: tuple[int, ...]
    of: int


def confused_pairs(truth_N: Ints, guess_N: Ints, most: int) -> list[Pair]:
    """Return the most frequent confusions, most crops first; equal ones in order of their classes."""
    wrong_N = np.flatnonzero(truth_N != guess_N)
    crops: dict[tuple[int, int], list[int]] = {}
    for n in wrong_N.tolist():
        crops.setdefault((int(truth_N[n]), int(guess_N[n])), []).append(n)
    order = sorted(crops, key=lambda pair: (-len(crops[pair]), pair))[:most]
    return [Pair(t, g, tuple(crops[t, g]), int(np.sum(truth_N == t))) for t, g in order]


def confusion_shares(truth_N: Ints, guess_N: Ints, most: int) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Count what the most frequent classes are taken for.

    Args:
        truth_N: true class ids.
        guess_N: what was answered.
        most: classes, by how often they are the truth; equal ones in order of their ids.

    Returns:
        Class ids (K,), and shares (K, K + 1) of each true class, a row: taken for each of them, and for any other.
    """
    names, counts = np.unique(truth_N, return_counts=True)
    classes_K = names[np.argsort(-counts, kind="stable")][:most].astype(np.int64)
    place = {int(c): k for k, c in enumerate(classes_K)}
    counts_KL = np.zeros((len(classes_K), len(classes_K) + 1))
    for t, g in zip(truth_N.tolist(), guess_N.tolist(), strict=True):
        if t in place:
            counts_KL[place[t], place.get(g, len(classes_K))] += 1
    return classes_K, counts_KL / np.maximum(counts_KL.sum(1, keepdims=True), 1)
