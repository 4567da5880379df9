"""End-to-end scores: nothing is left out, and what is right scores right."""

import numpy as np
import pytest

from dubsar.datasets.formats.catf import AtfLine
from dubsar.datasets.tablet import Candidate, Face, Line, Sign, Tablet
from dubsar.pipelines.reading.evaluate import ReadScores, add_signs, add_text, comparable, same_lines


def tablet(*texts: str) -> Tablet:
    lines = tuple(Line(label=str(i), text=t) for i, t in enumerate(texts, start=1))
    return Tablet(identifier="t", width=100, height=100, faces=(Face(lines=lines),))


REFERENCE = [
    AtfLine("obverse", "1", "a-na LUGAL", 1),
    AtfLine("obverse", "2", "", 2),
    AtfLine("obverse", "3", "be-li₂ …", 3),
]


def test_a_perfect_reading_has_no_errors() -> None:
    scores = ReadScores()
    add_text(scores, tablet("a-na? LUGAL", "be-li₂ [...]"), REFERENCE)
    assert scores.summary()["cer"] == 0
    assert scores.summary()["line_precision"] == scores.summary()["line_recall"] == 100


@pytest.mark.parametrize("read", [None, tablet()])
def test_a_failed_or_empty_tablet_is_all_deletions(read: Tablet | None) -> None:
    scores = ReadScores()
    add_text(scores, read, REFERENCE)
    assert scores.summary()["cer"] == 100
    assert scores.summary()["line_recall"] == 0


def test_wrong_order_counts() -> None:
    scores = ReadScores()
    add_text(scores, tablet("be-li₂ …", "a-na LUGAL"), REFERENCE)
    assert scores.summary()["cer"] > 50


def test_marks_of_doubt_are_not_text() -> None:
    assert comparable("a-na? x [...] {d?}") == "a-na x … {d}"


@pytest.mark.parametrize(
    ("found", "true", "same"),
    [
        ([], [], 0),
        (["a-na"], [], 0),
        (["a-na", "x"], ["a-na", "be-li₂"], 1),
        (["junkjunk", "a-na LUGAL", "be-li₂"], ["a-na LUGAL", "be-li₂"], 2),
        (["be-li₂", "a-na LUGAL"], ["a-na LUGAL", "be-li₂"], 1),
    ],
)
def test_lines_are_paired_in_order(found: list[str], true: list[str], same: int) -> None:
    assert same_lines(found, true) == same


def test_signs_are_matched_one_to_one() -> None:
    def sign(x: float, glyphs: str) -> Sign:
        candidates = tuple(Candidate(glyph=g, probability=0.5) for g in glyphs)
        return Sign(box=(x, 0, x + 10, 10), candidates=candidates, confidence=0.5)

    read = Tablet(
        identifier="t",
        width=100,
        height=100,
        faces=(Face(lines=(Line(label="1", signs=(sign(0, "𒀀𒁹"), sign(0, "𒀀𒁹"), sign(20, "𒁹𒀀"))),)),),
    )
    scores = ReadScores()
    truth = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [60, 0, 70, 10]], dtype=float)
    add_signs(scores, read, truth, ["𒀀", "𒀀", "𒀀"])
    assert (scores.true_signs, scores.matched, scores.top1, scores.top5, scores.found_signs) == (3, 2, 1, 2, 3)
    add_signs(scores, None, truth, ["𒀀"] * 3)
    assert scores.true_signs == 6


def test_faces_seen_at_an_angle_are_no_text() -> None:
    read = tablet("a-na LUGAL", "be-li₂ …")
    aside = Face(name="left", lines=(Line(label="1", text="LUGAL"),), aside=True)
    scores = ReadScores()
    add_text(scores, read.model_copy(update={"faces": (*read.faces, aside)}), REFERENCE)
    assert scores.summary()["cer"] == 0
