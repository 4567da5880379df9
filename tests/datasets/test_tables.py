"""Tables are text: nothing is guessed, quoted or lost."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dubsar.datasets.issues import Issue
from dubsar.datasets.tables import read_rows


def test_cells_stay_text_and_the_count_is_kept(tmp_path: Path) -> None:
    words = ["NA", "NAN", "NULL", "None", "", "ON", "NO", "012", "12:30", "7e-4", '"open quote', "a,b", " "]
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\n" + "".join(f"{w}\tx\n" for w in words), encoding="utf-8")
    rows = read_rows(path, ("a", "b"))
    assert [row["a"] for row in rows] == words
    assert [row.line for row in rows] == list(range(2, len(words) + 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"]), max_size=8), max_size=6))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    path = tmp_path_factory.mktemp("t") / "t.tsv"
    path.write_text("a\tb\n" + "".join(f"{w}\tx\n" for w in words), encoding="utf-8", newline="\n")
    assert [row["a"] for row in read_rows(path, ("a", "b"))] == words


def test_a_long_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\n" + "x" * 1_000_000 + "\ty\n", encoding="utf-8")
    assert len(read_rows(path, ("a",))[0]["a"]) == 1_000_000


def test_bad_rows_are_raised_or_listed_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"a\tb\n1\t2\n3\n4\t\xff\xfe\n5\t6\n")
    with pytest.raises(ValueError, match=r"t\.tsv:3: 1 cells, expected 2 as in the header"):
        read_rows(path, ("a", "b"))
    issues: list[Issue] = []
    rows = read_rows(path, ("a", "b"), issues=issues)
    assert [row["a"] for row in rows] == ["1", "5"]
    assert [(i.line, i.message.split(";")[0]) for i in issues] == [
        (3, "1 cells, expected 2 as in the header"),
        (4, "bytes that are not UTF-8"),
    ]


def test_byte_order_mark_mixed_newlines_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"\xef\xbb\xbfa\tb\r\n1\t2\n\n3\t\x004\r\n5\t6")
    rows = read_rows(path, ("a", "b"))
    assert [(row.line, row["a"], row["b"]) for row in rows] == [(2, "1", "2"), (4, "3", "\x004"), (5, "5", "6")]


def test_an_issue_prints_its_place() -> None:
    assert str(Issue(Path("a.tsv"), 7, "wrong")) == "a.tsv:7: error: wrong"
    assert str(Issue(Path("a.tsv"), 0, "odd", "note")) == "a.tsv: note: odd"
