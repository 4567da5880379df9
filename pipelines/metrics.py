"""Metrics of all stages. Empty and failed items count in full; nothing is skipped, no score is nan."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from faster_coco_eval import COCO, COCOeval_faster
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

    A corpus whose references are all empty has rate 0 where nothing was written, else one edit per unit written, so
    that insertions never vanish.
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


def hits(scores_NC: npt.NDArray[Any], truth_N: npt.NDArray[np.int64], top: int) -> npt.NDArray[np.bool_]:
    """Say of each crop (N,) whether its true class is among the ``top`` of highest score."""
    best_NK = np.argsort(-scores_NC, axis=1)[:, :top]
    return np.asarray((best_NK == truth_N[:, None]).any(1))


def score_classes(logits_NC: npt.NDArray[np.float32], truth_N: npt.NDArray[np.int64]) -> ClassScores:
    """Score logits (N, C) against class ids (N,)."""
    count = len(truth_N)
    if not count:
        return ClassScores(0.0, 0.0, 0.0, 0, 0)
    guess, present = logits_NC.argmax(1), np.unique(truth_N)
    f1 = []
    for c in present:
        hit = np.sum((guess == c) & (truth_N == c))
        f1.append(2 * hit / (np.sum(guess == c) + np.sum(truth_N == c)))
    return ClassScores(
        top1=100 * float(np.mean(guess == truth_N)),
        top5=100 * float(np.mean(hits(logits_NC, truth_N, 5))),
        macro_f1=100 * float(np.mean(f1)),
        crops=count,
        classes=len(present),
    )


@dataclass(frozen=True)
class Found:
    """Detections of one photograph beside the truth; boxes (N, 4) xyxy px, scores (N,), classes (N,) int."""

    boxes_N4: npt.NDArray[np.float64]
    scores_N: npt.NDArray[np.float64]
    classes_N: npt.NDArray[np.int64]
    true_M4: npt.NDArray[np.float64]
    true_classes_M: npt.NDArray[np.int64]


def average_precision(photographs: Sequence[Found], *, max_detections: int = 2000) -> dict[str, float]:
    """Compute COCO average precision over photographs, in percent, by faster-coco-eval.

    The cap on detections per photograph lies far above the most signs a tablet has; where it is reached, that is said.

    Returns:
        ``ap50``, ``ap`` (0.50-0.95), ``recall50``: over the classes that occur as truth; without truth all are 0.
    """
    saturated = sum(len(p.boxes_N4) > max_detections for p in photographs)
    if saturated:
        print(
            f"warning: {saturated} photographs have more than {max_detections} detections; the weakest are not scored"
        )
    truth, found = _to_coco(photographs)
    if not truth["annotations"] or not found:
        return {"ap50": 0.0, "ap": 0.0, "recall50": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(truth)
        evaluation = COCOeval_faster(coco, coco.loadRes(found), "bbox")
        evaluation.params.maxDets = [1, 100, max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
    precision_TRKAM, recall_TKAM = evaluation.eval["precision"], evaluation.eval["recall"]
    return {
        "ap50": 100 * _mean_seen(precision_TRKAM[0, :, :, 0, -1]),
        "ap": 100 * _mean_seen(precision_TRKAM[:, :, :, 0, -1]),
        "recall50": 100 * _mean_seen(recall_TKAM[0, :, 0, -1]),
    }


def _mean_seen(values: npt.NDArray[np.float64]) -> float:
    """Average what COCO evaluation has a value for; -1 marks classes without truth."""
    seen = values[values > -1]
    return float(seen.mean()) if seen.size else 0.0


def _to_coco(photographs: Sequence[Found]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    annotations: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image, p in enumerate(photographs, start=1):
        for box, label in zip(_xywh(p.true_M4), p.true_classes_M, strict=True):
            row = {"id": len(annotations) + 1, "image_id": image, "category_id": int(label) + 1, "iscrowd": 0}
            annotations.append({**row, "bbox": box, "area": box[2] * box[3]})
        for box, label, score in zip(_xywh(p.boxes_N4), p.classes_N, p.scores_N, strict=True):
            found.append({"image_id": image, "category_id": int(label) + 1, "bbox": box, "score": float(score)})
    present = {a["category_id"] for a in annotations}
    truth = {
        "info": {},
        "images": [{"id": i} for i in range(1, len(photographs) + 1)],
        "categories": [{"id": c} for c in sorted(present)],
        "annotations": annotations,
    }
    return truth, [f for f in found if f["category_id"] in present]


def _xywh(boxes_N4: npt.NDArray[np.float64]) -> list[list[float]]:
    return [[float(x0), float(y0), float(x1 - x0), float(y1 - y0)] for x0, y0, x1, y1 in boxes_N4]
