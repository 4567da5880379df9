"""Splits by tablet: numbers in every spelling, joins, leaks, and draws that keep a tablet together."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dubsar.datasets.splits import Record, draw_splits, find_leaks, group_tablets, tablet_parts


@pytest.mark.parametrize(
    ("number", "parts"),
    [
        ("K 01292+", ("K.1292",)),
        ("K.1292", ("K.1292",)),
        ("K.1+K.2", ("K.1", "K.2")),
        ("K.1+2", ("K.1", "K.2")),
        ("K.1 + + 2", ("K.1", "K.2")),
        ("K 03323 + K 18186 + Rm 0444", ("K.3323", "K.18186", "RM.444")),
        ("KBo 1.1 (+) KUB 2.3", ("KBO.1.1", "KUB.2.3")),
        ("KBo 9.1+2", ("KBO.9.1", "KBO.9.2")),
        ("83-1-18,726", ("83.1.18.726",)),
        ("1883,0118.726", ("83.1.18.726",)),
        ("Ki 1904-10-9,098", ("4.10.9.98",)),
        ("1904,1009.98", ("4.10.9.98",)),
        ("Rm 2,0525", ("RM.2.525",)),
        ("P336150", ("P.336150",)),
        ("", ()),
        ("+", ()),
    ],
)
def test_numbers_have_one_spelling(number: str, parts: tuple[str, ...]) -> None:
    assert tablet_parts(number) == parts


def test_different_numbers_stay_different() -> None:
    numbers = ["K.1", "K.10", "K.11", "Sm.1", "KBo 4.9", "KBo 49", "KUB 4.9", "1879,0708.86", "1879,0708.8"]
    assert len({tablet_parts(n) for n in numbers}) == len(numbers)


def test_records_that_share_a_part_are_one_tablet_also_through_others() -> None:
    groups = group_tablets([["K.1+K.2"], ["K.9"], ["K.2 + K.3"], ["K 00003"], ["", "K.9"], [""], [""]])
    assert groups[0] == groups[2] == groups[3]
    assert groups[1] == groups[4]
    assert len(set(groups)) == 4  # the two without a number are two


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["K.1", "K.2+K.3", "K.3", "Sm.4+K.1", "", "x"]), max_size=2), max_size=8))
def test_a_drawn_split_never_leaks(names: list[list[str]]) -> None:
    drawn = draw_splits(names, dev=0.3, test=0.3)
    records = [Record(tuple(n), s, Path("t.tsv"), i) for i, (n, s) in enumerate(zip(names, drawn, strict=True))]
    assert find_leaks(records) == []


def test_a_draw_has_the_asked_shares_and_does_not_depend_on_the_order() -> None:
    names = [[f"K.{n}"] for n in range(2000)]
    drawn = draw_splits(names, dev=0.1, test=0.2)
    assert drawn.count("dev") == pytest.approx(200, abs=60)
    assert drawn.count("test") == pytest.approx(400, abs=80)
    assert draw_splits(names[::-1], dev=0.1, test=0.2) == drawn[::-1]
    assert draw_splits(names, dev=0.1, test=0.2, salt="other") != drawn
    assert set(draw_splits(names, dev=0, test=0)) == {"train"}
    assert set(draw_splits(names, dev=0, test=1)) == {"test"}
    assert draw_splits([]) == []


@pytest.mark.parametrize(("dev", "test"), [(-0.1, 0.1), (0.1, -0.1), (0.6, 0.6)])
def test_impossible_shares_are_refused(dev: float, test: float) -> None:
    with pytest.raises(ValueError, match="expected both at least 0 and together at most 1"):
        draw_splits([["K.1"]], dev=dev, test=test)


def test_a_leak_names_both_places_and_both_numbers() -> None:
    records = [
        Record(("K 00001 + K 00002",), "train", Path("d/images.tsv"), 5),
        Record(("K.3",), "test", Path("d/images.tsv"), 6),
        Record(("P9", "K.2"), "test", Path("d/images.tsv"), 7),
        Record(("K.2",), "test", Path("d/images.tsv"), 8),
    ]
    (issue,) = find_leaks(records)
    assert (issue.path, issue.line, issue.severity) == (Path("d/images.tsv"), 7, "error")
    assert "tablet P9 (there K 00001 + K 00002) is in split test here and in train on images.tsv:5" in issue.message
    assert find_leaks(records[:2]) == []
