"""Metrics against hand-made numbers and the libraries that define them; empty and failed items count in full."""

import unicodedata

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

from dubsar.pipelines.metrics import Found, average_precision, score_classes, score_text


@pytest.mark.parametrize(
    ("hypotheses", "references", "cer", "ser", "exact"),
    [
        ([], [], 0.0, 0.0, 0.0),
        ([""], [""], 0.0, 0.0, 100.0),
        (["abc"], [""], 300.0, 100.0, 0.0),  # insertions never vanish
        ([""], ["a-na"], 100.0, 100.0, 0.0),  # all deletions
        (["a-na", ""], ["a-na", "a-na LUGAL"], 100 * 10 / 14, 60.0, 50.0),
        (["a-na"], ["a-ni"], 25.0, 50.0, 0.0),
        (["a-na a-na"], ["a-na"], 125.0, 100.0, 0.0),
        (["LUGAL"], ["LUGAL"], 0.0, 0.0, 100.0),
    ],
)
def test_text_rates(hypotheses: list[str], references: list[str], cer: float, ser: float, exact: float) -> None:
    scores = score_text(hypotheses, references)
    assert (scores.cer, scores.ser, scores.exact) == pytest.approx((cer, ser, exact))
    assert scores.lines == len(references)
    assert all(np.isfinite(v) for v in scores.to_dict().values())


def test_rates_are_over_the_corpus_not_a_mean_of_lines() -> None:
    assert score_text(["x", "aaaaaaaaa"], ["y", "aaaaaaaaa"]).cer == pytest.approx(10.0)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_equal_text_in_another_form_has_no_error(form: str) -> None:
    reference = "{d}UTU-ši ḫa-aš-ša₂ É GAL"
    hypothesis = unicodedata.normalize(form, reference).replace("ḫ", "h\u032e")
    scores = score_text([hypothesis], [reference])
    assert (scores.cer, scores.ser, scores.exact, scores.chrf) == (0.0, 0.0, 100.0, 100.0)


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        score_text(["a"], ["a", "b"])


def test_chrf_is_sacrebleus() -> None:
    hypotheses, references = ["a-na LUGAL be-li₂", "um-ma"], ["a-na LUGAL EN", "um-ma-a"]
    assert score_text(hypotheses, references).chrf == CHRF().corpus_score(hypotheses, [references]).score


def test_classes_by_hand() -> None:
    logits = np.zeros((6, 8), np.float32)
    truth = np.array([0, 0, 0, 1, 1, 2])
    for row, guess in enumerate([0, 0, 1, 1, 1, 7]):  # one 0 taken for a 1, the 2 for a 7
        logits[row, guess] = 2
    logits[2, 0] = 1  # the right class comes second
    logits[5, [3, 4, 5, 6]] = 1  # and here sixth
    scores = score_classes(logits, truth)
    assert scores.top1 == pytest.approx(100 * 4 / 6)
    assert scores.top5 == pytest.approx(100 * 5 / 6)
    # F1: class 0 = 2*2/(2+3), class 1 = 2*2/(3+2), class 2 = 0; class 7 occurs as a guess only
    assert scores.macro_f1 == pytest.approx(100 * (0.8 + 0.8 + 0.0) / 3)
    assert (scores.crops, scores.classes) == (6, 3)


def test_no_crops_and_few_classes() -> None:
    assert score_classes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64)).to_dict() == {
        "top1": 0.0, "top5": 0.0, "macro_f1": 0.0, "crops": 0, "classes": 0,
    }  # fmt: skip
    assert score_classes(np.eye(3, dtype=np.float32), np.arange(3)).top5 == 100.0


def photograph(boxes: list[list[float]], scores: list[float], truth: list[list[float]], **classes: list[int]) -> Found:
    return Found(
        np.array(boxes, float).reshape(-1, 4),
        np.array(scores, float),
        np.array(classes.get("found", [0] * len(boxes)), np.int64),
        np.array(truth, float).reshape(-1, 4),
        np.array(classes.get("true", [0] * len(truth)), np.int64),
    )


A, B, FAR = [0, 0, 10, 10], [20, 0, 30, 10], [70, 70, 80, 80]


def test_all_found_is_100_and_nothing_found_is_0() -> None:
    assert average_precision([photograph([A, B], [0.9, 0.8], [A, B])]) == pytest.approx(
        {"ap50": 100, "ap": 100, "recall50": 100}
    )
    zero = {"ap50": 0.0, "ap": 0.0, "recall50": 0.0}
    assert average_precision([photograph([], [], [A, B])]) == zero
    assert average_precision([photograph([A], [0.9], [])]) == zero
    assert average_precision([]) == zero


def test_a_photograph_without_detections_counts_as_all_missed() -> None:
    found = average_precision([photograph([A], [0.9], [A]), photograph([], [], [A])])
    assert found["recall50"] == pytest.approx(50)
    assert found["ap50"] == pytest.approx(100 * 51 / 101)  # COCO's 101 points: precision 1 up to recall 0.5


def test_a_false_detection_above_a_true_one_halves_the_precision() -> None:
    assert average_precision([photograph([FAR, A], [0.9, 0.5], [A])])["ap50"] == pytest.approx(50)
    assert average_precision([photograph([A, FAR], [0.9, 0.5], [A])])["ap50"] == pytest.approx(100)


def test_the_same_sign_found_twice_is_once_right_and_once_wrong() -> None:
    found = average_precision([photograph([A, A, B], [0.9, 0.8, 0.7], [A, B])])
    assert found["ap50"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)


def test_a_loose_box_counts_at_the_looser_thresholds_only() -> None:
    loose = [0, 0, 10, 7.2]  # IoU 0.72: passes 0.50, 0.55, 0.60, 0.65, 0.70
    found = average_precision([photograph([loose], [0.9], [A])])
    assert found["ap50"] == pytest.approx(100)
    assert found["ap"] == pytest.approx(50)


def test_classes_are_scored_apart_and_averaged_over_those_that_occur() -> None:
    found = average_precision([photograph([A, B], [0.9, 0.9], [A, B], found=[3, 5], true=[3, 4])])
    assert found["ap50"] == pytest.approx(50)


def test_more_than_300_signs_are_all_counted(capsys: pytest.CaptureFixture[str]) -> None:
    boxes = [[20.0 * i, 20.0 * j, 20.0 * i + 10, 20.0 * j + 10] for i in range(25) for j in range(20)]
    scores = list(np.linspace(0.9, 0.1, len(boxes)))
    assert average_precision([photograph(boxes, scores, boxes)]) == pytest.approx(
        {"ap50": 100, "ap": 100, "recall50": 100}
    )
    assert capsys.readouterr().out == ""
    capped = average_precision([photograph(boxes, scores, boxes)], max_detections=300)
    assert capped["recall50"] == pytest.approx(60)
    assert (
        capsys.readouterr().out == "warning: 1 photographs have more than 300 detections; the weakest are not scored\n"
    )
