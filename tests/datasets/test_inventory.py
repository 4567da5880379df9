"""The sign inventory: ids, hash, and the refusal of a part made for another one."""

import os
from pathlib import Path

import pytest

from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass

ROOT = Path(os.environ.get("DUBSAR_DATA", "../shared/data"))
HEADER = "class_id\tglyph\tsign_name\tmzl\tn_total\n"
SMALL = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒈾", "NA", "110"), SignClass("𒋗𒉀", "|ŠU.NAGA|")))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_ids_follow_the_order_and_glyphs_may_be_two_code_points() -> None:
    assert len(SMALL) == 3
    assert SMALL[1].name == "NA"
    assert SMALL.id_of_glyph == {"𒀀": 0, "𒈾": 1, "𒋗𒉀": 2}


def test_the_first_class_wins_where_a_glyph_stands_twice() -> None:
    assert Inventory((*SMALL.classes, SignClass("𒀀", "A₂"))).id_of_glyph["𒀀"] == 0


@pytest.mark.parametrize("class_id", [-1, 3, 1000])
def test_an_id_out_of_range_is_an_error_also_below_zero(class_id: int) -> None:
    with pytest.raises(IndexError, match=f"class id {class_id} is out of range.*0 to 2"):
        SMALL[class_id]


def test_the_hash_depends_on_every_field_and_on_the_order() -> None:
    changed = [
        Inventory(SMALL.classes[::-1]),
        Inventory(SMALL.classes[:2]),
        Inventory((SignClass("𒀁", "A", "839"), *SMALL.classes[1:])),
        Inventory((SignClass("𒀀", "A₂", "839"), *SMALL.classes[1:])),
        Inventory((SignClass("𒀀", "A", "840"), *SMALL.classes[1:])),
    ]
    assert len({i.hash for i in [SMALL, *changed]}) == 6
    assert Inventory(SMALL.classes).hash == SMALL.hash
    assert len(SMALL.hash) == 16
    # stored in checkpoints: a change of the rule would orphan them
    assert SMALL.hash == "1fb4c62b5c1e7efd"


def test_a_mismatch_names_both_hashes_and_the_place() -> None:
    other = Inventory(SMALL.classes[:2])
    SMALL.require(SMALL.hash, "weights.json")
    with pytest.raises(InventoryMismatch, match=rf"weights\.json: .*{other.hash}.*{SMALL.hash} \(3 classes\)"):
        SMALL.require(other.hash, "weights.json")


def test_list_round_trip_keeps_the_hash() -> None:
    assert Inventory.from_list(SMALL.to_list()).hash == SMALL.hash


@pytest.mark.parametrize("word", ["NA", "NAN", "NULL", "None", "TRUE", "", '"', "1e5"])
def test_names_that_look_like_missing_values_stay_text(tmp_path: Path, word: str) -> None:
    path = write(tmp_path / "classes.tsv", f"{HEADER}0\t𒈾\t{word}\t\t5\n1\t𒀀\tA\t839\t6\n")
    assert [c.name for c in Inventory.from_classes_tsv(path).classes] == [word, "A"]


def test_byte_order_mark_and_windows_newlines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "classes.tsv"
    path.write_bytes(("\ufeff" + HEADER + "0\t𒈾\tNA\t110\t5\n").replace("\n", "\r\n").encode())
    assert Inventory.from_classes_tsv(path).classes == (SignClass("𒈾", "NA", "110"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}0\t𒀀\tA\t\t1\n2\t𒈾\tNA\t\t1\n", r"classes\.tsv:3: class_id is '2', expected 1"),
        (f"{HEADER}1\t𒀀\tA\t\t1\n", r"classes\.tsv:2: class_id is '1', expected 0"),
        (f"{HEADER}0\t\tA\t\t1\n", r"classes\.tsv:2: class 0 has no glyph"),
        (f"{HEADER}0\t𒀀\tA\n", r"classes\.tsv:2: 3 cells, expected 5"),
        ("class_id\tsign_name\n0\tA\n", r"classes\.tsv:1: the header lacks glyph, mzl"),
        ("", r"classes\.tsv:1: the header lacks class_id"),
    ],
)
def test_a_faulty_table_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Inventory.from_classes_tsv(write(tmp_path / "classes.tsv", text))


@pytest.mark.data
@pytest.mark.skipif(not (ROOT / "tablet-signs").is_dir(), reason="the shared data folder is not here (DUBSAR_DATA)")
def test_the_real_classes_keep_the_sign_called_na() -> None:
    inventory = Inventory.from_classes_tsv(ROOT / "tablet-signs" / "classes.tsv")
    assert len(inventory) == 335
    assert len(inventory.id_of_glyph) == 335
    assert inventory[inventory.id_of_glyph["𒈾"]].name == "NA"
    assert all(c.name for c in inventory.classes)
