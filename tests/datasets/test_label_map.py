"""The map HZL <-> MZL <-> Unicode: doubts are kept, numbers without a sign stay, counts add up."""

from pathlib import Path

import pytest

from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.label_map import (
    MapRow,
    count_labels,
    map_labels,
    read_hzl_numbers,
    to_tsv,
    without_code_point,
)
from dubsar.datasets.sign_list import ListedSign, read_sign_list

SIGNS = (
    ListedSign("|KAL×BAD|", "𒆘", ("497",), ("(40)",)),
    ListedSign("EN", "𒂗", ("164",), ("40",), ("99",)),
    ListedSign("A", "𒀀", ("839",), ("364", "365")),
    ListedSign("A", "", (), ("364",)),
    ListedSign("BARE", "", ("5",), ("7",)),
    ListedSign("DIB", "𒁳", ("813", "814"), ("210?", "256(1)")),
    ListedSign("NONE", "𒁵", ("1",)),
)


def test_each_number_has_its_signs_the_sure_ones_first() -> None:
    rows = map_labels(SIGNS, ["2", "40", "24L"])
    assert [(r.hzl, r.written, r.doubt, r.sign_name) for r in rows] == [
        ("2", "", "", ""),
        ("7", "7", "", "BARE"),
        ("24L", "", "", ""),
        ("40", "40", "", "EN"),
        ("40", "(40)", "doubtful", "|KAL×BAD|"),
        ("210", "210?", "doubtful", "DIB"),
        ("256", "256(1)", "part", "DIB"),
        ("364", "364", "", "A"),
        ("365", "365", "", "A"),
    ]
    assert rows[3] == MapRow("40", "40", "", "EN", "𒂗", "U+12097", "164", "99")
    assert rows[5].mzl == "813|814"


def test_a_number_written_twice_is_as_sure_as_its_surest_spelling() -> None:
    (row,) = map_labels([ListedSign("X", "𒀀", (), ("(9)", "9"))])
    assert (row.written, row.doubt) == ("(9)|9", "")


def test_counts_tell_numbers_with_one_sign_several_and_none() -> None:
    rows = map_labels(SIGNS, ["2", "40", "24L"])
    assert count_labels(rows, SIGNS) == {
        "HZL numbers": 7,
        "with one sign in Unicode": 4,
        "with several": 1,
        "with none": 2,
        "with a doubtful sign only": 2,
        "forms with a letter": 1,
        "of them without a sign": 1,
        "MZL numbers": 7,
        "MZL numbers without a code point": 1,
        "MZL numbers that HZL shares": 6,
    }
    assert count_labels([], ())["HZL numbers"] == 0


def test_the_table_has_a_header_and_a_line_a_row() -> None:
    lines = to_tsv(map_labels(SIGNS[1:2])).splitlines()
    assert lines == [
        "hzl\twritten\tdoubt\tsign_name\tglyph\tcodepoints\tmzl\tabz",
        "40\t40\t\tEN\t𒂗\tU+12097\t164\t99",
    ]


def test_labels_that_stand_in_for_a_glyph_are_told() -> None:
    assert without_code_point(Inventory((SignClass("𒀀", "364"), SignClass("335", "335")))) == ["335"]


def test_a_table_without_the_column_is_refused_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"hzl_readings\.tsv: no such file"):
        read_hzl_numbers(tmp_path)
    (tmp_path / "sign-list").mkdir()
    (tmp_path / "sign-list" / "hzl_readings.tsv").write_text("number\n1\n")
    with pytest.raises(ValueError, match=r"hzl_readings\.tsv:1: the header lacks hzl; found number"):
        read_hzl_numbers(tmp_path)


@pytest.mark.data
def test_the_real_map_has_all_numbers_of_hzl() -> None:
    from dubsar.datasets.sources import data_root

    signs = read_sign_list(data_root())
    rows = map_labels(signs, read_hzl_numbers(data_root()))
    assert {str(n) for n in range(1, 376)} == {r.hzl for r in rows if r.hzl.isdigit()}
    counts = count_labels(rows, signs)
    assert counts["HZL numbers"] == 375
    kinds = ("with one sign in Unicode", "with several", "with none")
    assert sum(counts[k] for k in kinds) == 375
    assert counts["with none"] < 40
    an = [r for r in rows if r.hzl == "8"]
    assert [(r.sign_name, r.glyph, r.mzl, r.abz) for r in an] == [("AN", "𒀭", "10", "13")]
    assert ("(251)", "doubtful") in {(r.written, r.doubt) for r in rows if r.hzl == "251"}
    assert {r.doubt for r in rows if r.hzl == "256"} == {"part"}
