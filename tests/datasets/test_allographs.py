"""Classes that are one sign to a coarser eye."""

from pathlib import Path

import pytest

from dubsar.datasets.allographs import groups_by_number, groups_by_shape
from dubsar.datasets.inventory import Inventory, SignClass, read_inventory

SIGNS = Inventory(
    (
        SignClass("a", "KU", "808"),
        SignClass("b", "TIL", "113b"),
        SignClass("c", "IDIM", "113b|9"),
        SignClass("d", "TUG₂", "809"),
        SignClass("e", "X"),
        SignClass("f", "Y"),
        SignClass("g", "Z", "9"),
    )
)


def test_one_number_unites_also_by_a_chain_and_no_number_stands_alone() -> None:
    groups = groups_by_number(SIGNS).tolist()
    assert groups[1] == groups[2] == groups[6]
    assert len(set(groups)) == 5
    assert sorted(set(groups)) == list(range(5))


def test_one_shape_unites_what_numbers_keep_apart(tmp_path: Path) -> None:
    table = tmp_path / "assyrian_font.tsv"
    table.write_text("glyph\tfont_codepoint\na\tU+1\nd\tU+1\ne\t\nf\t\nnone\tU+1\n", encoding="utf-8")
    groups = groups_by_shape(SIGNS, table).tolist()
    assert groups[0] == groups[3]
    assert groups[1] == groups[2]
    assert groups[4] != groups[5]  # that neither has a glyph does not make them one
    assert len(set(groups)) == 4


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("glyph\tshape\n", encoding="utf-8")
    with pytest.raises(ValueError, match="font_codepoint"):
        groups_by_shape(SIGNS, tmp_path / "t.tsv")
    assert len(groups_by_number(Inventory(()))) == 0


@pytest.mark.data
def test_of_the_real_inventory(data_root: Path) -> None:
    inventory = read_inventory(data_root)
    by_number = groups_by_number(inventory)
    by_shape = groups_by_shape(inventory, data_root / "sign-list" / "assyrian_font.tsv")
    ids = {c.name: i for i, c in enumerate(inventory.classes)}
    assert len(inventory) - len(set(by_number.tolist())) == 2  # TIL and IDIM, DUN₃ and its gunû
    assert by_number[ids["TIL"]] == by_number[ids["IDIM"]] != by_number[ids["BAD"]]
    assert len({int(by_shape[ids[n]]) for n in ("KU", "TUG₂", "ZI₃", "EŠ₂")}) == 1
    assert by_shape[ids["BAD"]] == by_shape[ids["TIL"]]
    assert by_shape[ids["KU"]] != by_shape[ids["LU"]]
