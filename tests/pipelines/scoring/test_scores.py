"""The rows of `evaluate classify`, on looks made by hand."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dubsar.datasets.formats.tablet_signs import Photograph, SignBox
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.pipelines.scoring.looks import Looks, first_signs
from dubsar.pipelines.scoring.scores import Answers, score_fully, score_looks, strata, training_counts

INVENTORY = Inventory(tuple(SignClass(g, g.upper()) for g in "abcd"))


def a_box(glyph: str, side: float = 50, view: str = "") -> SignBox:
    return SignBox("f.jpg", (0, 0, side, side), glyph, "", "", "", "dev", view, "compvis", 1)


def a_photograph(name: str, boxes: list[SignBox], megapixels: float = 1, collection: str = "") -> Photograph:
    width = round(megapixels * 1000)
    return Photograph(name, Path(name), name, collection, width, 1000, "dev", "compvis", tuple(boxes))


def some_looks(guesses: list[int], *, clay: npt.NDArray[np.float32] | None = None) -> Looks:
    """Return looks at a, a, b, c of two photographs; every view guesses the same with a logit of 2."""
    first = a_photograph("one", [a_box("a", 30, "Obv"), a_box("a", 50, "Rev")], 1, "saa05")
    second = a_photograph("two", [a_box("b", 90), a_box("c", 90)], 20)
    logits = torch.zeros(4, 4)
    logits[torch.arange(4), torch.tensor(guesses)] = 2
    return Looks(
        (*first.boxes, *second.boxes),
        (first, first, second, second),
        np.array([0, 0, 1, 2]),
        (logits,) * 3,
        (),
        () if clay is None else (torch.from_numpy(clay),) * 3,
        np.zeros((4, 8, 8, 3), np.uint8),
    )


COUNTS = np.array([150, 20, 0, 3])


def test_rows_of_classes_are_those_that_were_printed_before_and_more() -> None:
    scores = score_looks(some_looks([0, 1, 1, 2]), 1.0, COUNTS, {})
    assert scores["one crop"]["top1"] == scores["three margins"]["top1"] == pytest.approx(75)
    assert scores["three margins, 3 classes"]["top1"] == pytest.approx(100 * 2 / 3)
    assert scores["three margins, 3 classes"]["crops"] == 3
    assert scores["three margins, 2 frequent classes"]["crops"] == 3
    assert {"top1_low", "top1_high", "top5_low", "ece_low", "nll", "brier"} <= set(scores["three margins"])


def test_every_crop_falls_into_one_bin_of_each_kind() -> None:
    looks = some_looks([0, 1, 1, 2])
    groups = strata(looks, COUNTS)
    for kind in ("training crops", "source", "collection", "view", "photographs", "signs"):
        members = [m for name, m in groups.items() if name.startswith(kind) or name.endswith(kind)]
        assert np.sum(members, axis=0).tolist() == [1, 1, 1, 1], kind
    assert groups["0 training crops"].tolist() == [False, False, False, True]
    assert groups["20-99 training crops"].tolist() == [False, False, True, False]
    assert groups["100 or more training crops"].tolist() == [True, True, False, False]
    assert groups["collection not named"].tolist() == [False, False, True, True]
    assert groups["view Rev"].tolist() == [False, True, False, False]
    assert groups["photographs of 10 megapixels or more"].tolist() == [False, False, True, True]
    assert groups["signs under 40 px"].tolist() == [True, False, False, False]
    scores = score_looks(looks, 1.0, COUNTS, {})
    assert scores["100 or more training crops"]["top1"] == pytest.approx(50)
    assert "1-4 training crops" not in scores  # no crop of class d


def test_the_temperature_changes_confidence_and_no_answer() -> None:
    scores = score_looks(some_looks([0, 1, 1, 2]), 0.5, COUNTS, {})
    after, before = scores["three margins"], scores["three margins, temperature 1"]
    assert after["top1"] == before["top1"]
    sure = [float(np.exp(2 / t) / (np.exp(2 / t) + 3)) for t in (0.5, 1.0)]
    assert after["ece"] == pytest.approx(100 * abs(sure[0] - 0.75), abs=1e-4)
    assert before["ece"] == pytest.approx(100 * abs(sure[1] - 0.75), abs=1e-4)


def test_classes_of_one_number_count_as_one_and_their_probabilities_are_added() -> None:
    united = {"MZL numbers": np.array([0, 0, 1, 2])}  # a and b are one
    scores = score_looks(some_looks([0, 1, 1, 0]), 1.0, COUNTS, united)
    assert scores["three margins"]["top1"] == pytest.approx(50)
    assert scores["three margins, 3 MZL numbers"]["top1"] == pytest.approx(75)
    found = Answers(np.array([[0.3, 0.3, 0.4, 0.0]], np.float32), np.array([1]), np.array(["t"]))
    assert found.united(united["MZL numbers"]).probabilities_NC == pytest.approx(np.array([[0.6, 0.4, 0.0]]))
    assert score_fully(found.united(united["MZL numbers"]))["top1"] == 100.0


def test_the_unknown_is_scored_against_the_known() -> None:
    looks = some_looks([0, 0, 0, 0], clay=np.array([[0, 0, 0, 0], [9, 0, 0, 0]], np.float32))
    scores = score_looks(looks, 1.0, COUNTS, {})
    absent, clay = scores["unknown: classes without a training crop"], scores["unknown: clay without a sign"]
    assert absent == {"auroc": 50.0, "fpr95": 100.0, "known": 3, "unknown": 1}  # all are equally sure
    assert clay == {"auroc": 50.0, "fpr95": 50.0, "known": 3, "unknown": 2}  # one is flat, one surer than any sign
    assert not any(name.startswith("unknown") for name in score_looks(some_looks([0, 0, 1, 3]), 1.0, COUNTS + 1, {}))


def test_a_split_without_crops_has_its_main_rows_and_nothing_else() -> None:
    flat = torch.zeros(0, 4)
    looks = Looks((), (), np.zeros(0, np.int64), (flat,) * 3, (), (flat,) * 3, np.zeros((0, 8, 8, 3), np.uint8))
    scores = score_looks(looks, 1.0, COUNTS, {"shapes": np.arange(4)})
    assert all(np.isfinite(v) for row in scores.values() for v in row.values())
    assert [row["crops"] for row in scores.values()] == [0] * 6
    assert (scores["one crop"]["top1_low"], scores["one crop"]["top1_high"]) == (0.0, 100.0)


def test_crops_are_counted_and_limited_over_photographs() -> None:
    photographs = [a_photograph("one", [a_box("a"), a_box("b")]), a_photograph("two", [a_box("a"), a_box("z")])]
    assert training_counts(photographs, INVENTORY).tolist() == [2, 1, 0, 0]
    assert [len(p.boxes) for p in first_signs(photographs, 3)] == [2, 1]
    assert [len(p.boxes) for p in first_signs(photographs, 2)] == [2]
    assert first_signs(photographs, 0) == photographs
