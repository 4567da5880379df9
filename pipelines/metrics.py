"""Metrics of all stages. Empty and failed items count in full; nothing is skipped, no score is nan."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics import CHRF

from dubsar.datasets.text import canonical, tokens


@dataclass(frozen=True)
class TextScores:
    """Scores of hypotheses against references, in percent; all rates are over the references' lengths in sum.

    Attributes:
        cer: character edits / reference characters, canonical form.
        ser: sign-reading edits / reference readings.
        exact: share of lines that are equal.
        chrf: chrF2 (sacrebleu).
        lines: number of lines.
    """

    cer: float
    ser: float
    exact: float
    chrf: float
    lines: int

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers."""
        return asdict(self)


def score_text(hypotheses: Sequence[str], references: Sequence[str]) -> TextScores:
    """Score transliterations on the canonical form.

    A corpus whose references are all empty has rate 0 where nothing was written, else one edit per unit written, so that
    insertions never vanish.
    """
    hyps, refs = [canonical(h) for h in hypotheses], [canonical(r) for r in references]
    pairs = list(zip(hyps, refs, strict=True))
    token_pairs = [(tokens(h), tokens(r)) for h, r in pairs]
    return TextScores(
        cer=100 * _rate([Levenshtein.distance(h, r) for h, r in pairs], [len(r) for r in refs]),
        ser=100 * _rate([Levenshtein.distance(h, r) for h, r in token_pairs], [len(r) for _, r in token_pairs]),
        exact=100 * float(np.mean([h == r for h, r in pairs])) if pairs else 0.0,
        chrf=CHRF().corpus_score(hyps, [refs]).score if pairs else 0.0,
        lines=len(pairs),
    )


def _rate(edits: Sequence[int], lengths: Sequence[int]) -> float:
    total = sum(lengths)
    return sum(edits) / total if total else float(sum(edits))


@dataclass(frozen=True)
class ClassScores:
    """Classification scores in percent. ``macro_f1`` is over the classes that occur as truth."""

    top1: float
    top5: float
    macro_f1: float
    crops: int
    classes: int

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers."""
        return asdict(self)


def score_classes(logits_NC: npt.NDArray[np.float32], truth_N: npt.NDArray[np.int64]) -> ClassScores:
    """Score logits (N, C) against class ids (N,)."""
    count = len(truth_N)
    if not count:
        return ClassScores(0.0, 0.0, 0.0, 0, 0)
    top5 = np.argsort(-logits_NC, axis=1)[:, :5]
    guess, present = top5[:, 0], np.unique(truth_N)
    f1 = []
    for c in present:
        hit = np.sum((guess == c) & (truth_N == c))
        f1.append(2 * hit / (np.sum(guess == c) + np.sum(truth_N == c)))
    return ClassScores(
        top1=100 * float(np.mean(guess == truth_N)),
        top5=100 * float(np.mean((top5 == truth_N[:, None]).any(1))),
        macro_f1=100 * float(np.mean(f1)),
        crops=count,
        classes=len(present),
    )
