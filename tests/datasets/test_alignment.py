"""Alignment: pieces always join to the text, one per sign, and lines whose counts differ follow the reading table."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dubsar.datasets.alignment import ReadingTable, align, bare, pieces
from dubsar.datasets.text import canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" - ", []),
        ("a", ["a"]),
        ("a-na", ["a", "-na"]),
        ("{d}taš-me-tum …", ["{d}", "taš", "-me", "-tum", " …"]),
        ("LUGAL{meš}-šu", ["LUGAL", "{meš}", "-šu"]),
        ("…a…", ["…", "a", "…"]),
        ("A.AB.BA x", ["A", ".AB", ".BA", " x"]),
        ("{giš}TUKUL", ["{giš}", "TUKUL"]),
        ("1+2", ["1", "+2"]),
        (" a ", [" a "]),
    ],
)
def test_pieces(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected
    assert [bare(p) for p in expected] == [p.strip(" -.+{}") for p in expected]


def test_a_piece_without_a_reading_is_bare_of_one() -> None:
    assert (bare(""), bare(" - "), bare(" …")) == ("", "", "…")


@given(st.text("ab šṭ-.+:{}… ₂x", max_size=40))
@settings(max_examples=200, deadline=None)
def test_pieces_join_to_the_text(text: str) -> None:
    parts = pieces(canonical(text))
    assert "".join(parts) in (canonical(text), "")
    assert all(bare(p) for p in parts)


def table() -> ReadingTable:
    return ReadingTable.count([("𒀀𒈾", "a-na"), ("𒀀𒀀", "a-a"), ("𒈨𒌍", "ME-EŠ"), ("𒀀𒈾", "A na NA"), ("𒈾", "x")])


def test_only_lines_whose_counts_agree_are_counted() -> None:
    counts = table().counts
    assert counts["𒀀"] == {"a": 3}
    assert counts["𒈾"] == {"na": 1, "x": 1}


def test_the_commonest_reading_is_the_floor() -> None:
    assert table().commonest("𒀀") == "a"
    assert table().commonest("𒑰") == "x"


def test_costs_prefer_what_was_seen() -> None:
    t = table()
    assert t.cost("𒀀", "a") < 0.5 < t.cost("𒀀", "na") <= 7
    assert t.cost("𒑰", "na") == 5.0
    assert (t.cost("…", "…"), t.cost("…", "na"), t.cost("𒀀", "…")) == (0.0, 8.0, 8.0)
    assert "𒑰" not in t.counts  # asking does not teach


def test_equal_counts_are_paired_in_order() -> None:
    assert align("𒀀𒈾𒀀", "na-a-na", table()) == ["na", "-a", "-na"]


def test_a_sign_too_many_gets_an_empty_piece_where_it_fits_worst() -> None:
    assert align("𒀀𒑰𒈾", "a-na", table()) == ["a", "", "-na"]


def test_a_reading_too_many_stays_with_its_neighbour() -> None:
    assert align("𒀀𒈾", "a-MEŠ-na", table()) == ["a-MEŠ", "-na"]


def test_lost_stretches_pair_with_each_other() -> None:
    assert align("𒀀…𒈾", "a … x-na", table()) == ["a", " … x", "-na"]


def test_what_cannot_be_aligned_is_none() -> None:
    assert align("", "a", table()) is None
    assert align("𒀀", "", table()) is None
    assert align("𒀀" * 9, "a", table()) is None
    assert align("", "", table()) == []


@given(
    st.lists(st.sampled_from("𒀀𒈾𒈨…𒑰"), max_size=9), st.lists(st.sampled_from(["a", "na", "…", "x", "MEŠ"]), max_size=9)
)
@settings(max_examples=200, deadline=None)
def test_aligned_pieces_are_one_per_sign_and_join_to_the_text(signs: list[str], readings: list[str]) -> None:
    text = "-".join(readings)
    found = align(signs, text, table())
    if found is not None:
        assert len(found) == len(signs)
        assert "".join(found) == text
