"""The sign inventory: ids, hash, and the refusal of a part made for another one."""

import os
from pathlib import Path

import pytest

from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass, read_inventory

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


def test_catalogue_numbers_are_no_part_of_the_identity() -> None:
    numbered = Inventory((SignClass("𒀀", "A", "839", "364|365", "579"), *SMALL.classes[1:]))
    assert numbered.hash == SMALL.hash
    SMALL.require(numbered.hash, "weights.json")


def test_list_round_trip_keeps_everything() -> None:
    numbered = Inventory((SignClass("𒀀", "A", "839", "364|365", "579"), *SMALL.classes[1:]))
    assert numbered.to_list()[0] == ["𒀀", "A", "839", "364|365", "579"]
    assert Inventory.from_list(numbered.to_list()) == numbered
    assert Inventory.from_list(SMALL.to_list()).hash == SMALL.hash


def test_rows_of_older_checkpoints_have_no_further_numbers() -> None:
    assert Inventory.from_list([["𒀀", "A", "839"], ["𒈾", "NA", "110"], ["𒋗𒉀", "|ŠU.NAGA|", ""]]) == SMALL


@pytest.mark.parametrize("row", [[], ["𒀀"], ["𒀀", "A", "839", "364"], ["𒀀", "A", "839", "1", "2", "3"]])
def test_rows_of_another_length_are_refused(row: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"inventory row 1 has {len(row)} cells, expected glyph, name, MZL or"):
        Inventory.from_list([["𒀀", "A", "839"], row])


NUMBERED = Inventory(
    (
        SignClass("𒀀", "A", "839", "364|365", "579"),
        SignClass("𒄭", "HI", "631", "335", "396"),
        SignClass("𒊹", "ŠAR₂", "653", "335", "396b"),
        SignClass("𒋙𒀭", "|ŠU₂.AN|", "870", "(251)", "546"),
        SignClass("𒉽", "PAP", "92", "256(1)"),
        SignClass("𒂅", "DUN₃", "595", "223|209.2"),
        SignClass("𒌡", "|UM×U|", "", "to 109"),
        SignClass("𒆏", "KA₂", "", "", ""),
    )
)


@pytest.mark.parametrize(
    ("catalogue", "number", "ids"),
    [
        ("HZL", "364", (0,)),
        ("hzl", " 365 ", (0,)),
        ("HZL", "335", (1, 2)),
        ("HZL", "251", (3,)),
        ("HZL", "(251)", (3,)),
        ("HZL", "256", (4,)),
        ("HZL", "256(1)", (4,)),
        ("HZL", "209", (5,)),
        ("HZL", "109", (6,)),
        ("MZL", "839", (0,)),
        ("ABZ", "396", (1,)),  # 396b is another number, not a part of 396
        ("ABZ", "396b", (2,)),
        ("HZL", "3", ()),
        ("HZL", "36", ()),
        ("HZL", "364|365", ()),
        ("HZL", "", ()),
    ],
)
def test_signs_are_found_by_catalogue_number(catalogue: str, number: str, ids: tuple[int, ...]) -> None:
    assert NUMBERED.by_number(catalogue, number) == ids


def test_another_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="catalogue is 'glyph', expected one of MZL, HZL, ABZ"):
        NUMBERED.by_number("glyph", "1")


def test_numbers_on_one_line_leave_out_what_is_absent() -> None:
    assert [c.numbers for c in (NUMBERED[0], NUMBERED[4], NUMBERED[7])] == [
        "MZL 839 · HZL 364/365 · ABZ 579",
        "MZL 92 · HZL 256(1)",
        "",
    ]
    assert NUMBERED.of_glyph("𒀀") == NUMBERED[0]
    assert NUMBERED.of_glyph("x") is None


SIGNS = "sign_name\tform_of\tglyph\thzl\thzl_extra\n"
ABZ = "abz\tglyph\tbasis\ttables_agreeing\ttables_disagreeing\n"


def data_folder(root: Path, signs: str = "", abz: str = "") -> Path:
    for folder in ("tablet-signs", "sign-list"):
        (root / folder).mkdir()
    write(root / "tablet-signs" / "classes.tsv", f"{HEADER}0\t𒀀\tA\t839\t1\n1\t𒈾\tNA\t110\t1\n")
    write(root / "sign-list" / "signs.tsv", SIGNS + signs)
    write(root / "sign-list" / "abz_to_unicode.tsv", ABZ + abz)
    return root


@pytest.mark.parametrize(
    ("rows", "hzl"),
    [
        ("A\t\t𒀀\t364\t\n", "364"),
        ("A\t\t𒀀\t\t364|365\n", "364|365"),
        ("A\t\t𒀀\t223\t223|209.2\n", "223|209.2"),
        ("A\t\t𒀀\t364\t\nA\tX\t𒀀\t364\t365\n", "364|365"),  # the same glyph as a form of another sign
        ("A\t\t𒀁\t364\t\n", ""),
    ],
)
def test_hzl_numbers_of_a_glyph_are_put_together_without_doubles(tmp_path: Path, rows: str, hzl: str) -> None:
    inventory = read_inventory(data_folder(tmp_path, signs=rows))
    assert [c.hzl for c in inventory.classes] == [hzl, ""]


@pytest.mark.parametrize(
    ("rows", "abz"),
    [
        ("579\t𒀀\treadings\t\tMEA=𒁀,jtf=𒁀\n", "579"),  # readings decide against any table
        ("48\t𒀀\ttables\tjtf,wd\t\n68\t𒀀\treadings\tMEA\t\n", "68"),
        ("49\t𒀀\ttables\tSLLHA\t\n50\t𒀀\ttables\tMEA,jtf\t\n", "50"),
        ("49\t𒀀\ttables\tSLLHA\t\n50\t𒀀\ttables\tMEA\t\n", "49|50"),
        ("49\t𒀀\ttables\t\t\n50\t𒀀\ttables\tMEA\t\n", "50"),  # no table is fewer than one
        ("49\t𒀀\ttables\tMEA,wd\tSLLHA=𒁀\n", ""),
        ("ḪZL nr.319\t𒀀\ttables\tjtf\t\n", ""),
        ("1\t𒀀\treadings\t\t\n2\t𒀀\treadings\t\t\n", "1|2"),
    ],
)
def test_abz_numbers_that_readings_confirm_come_before_those_of_tables(tmp_path: Path, rows: str, abz: str) -> None:
    inventory = read_inventory(data_folder(tmp_path, abz=rows))
    assert [c.abz for c in inventory.classes] == [abz, ""]


def test_without_a_sign_list_there_are_classes_without_further_numbers(tmp_path: Path) -> None:
    root = data_folder(tmp_path)
    expected = read_inventory(root)
    for path in (root / "sign-list").iterdir():
        path.unlink()
        assert read_inventory(root) == expected
    (root / "sign-list").rmdir()
    assert read_inventory(root) == expected == Inventory(SMALL.classes[:2])


def test_a_faulty_sign_list_is_refused_with_file_and_line(tmp_path: Path) -> None:
    root = data_folder(tmp_path, signs="A\t\t𒀀\n")
    with pytest.raises(ValueError, match=r"signs\.tsv:2: 3 cells, expected 5"):
        read_inventory(root)


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
    inventory = read_inventory(ROOT)
    assert len(inventory) == 335
    assert len(inventory.id_of_glyph) == 335
    assert inventory[inventory.id_of_glyph["𒈾"]].name == "NA"
    assert all(c.name for c in inventory.classes)


@pytest.mark.data
@pytest.mark.skipif(not (ROOT / "sign-list").is_dir(), reason="the shared data folder is not here (DUBSAR_DATA)")
def test_the_real_numbers_are_those_of_the_handbooks() -> None:
    inventory = read_inventory(ROOT)
    assert inventory.hash == Inventory.from_classes_tsv(ROOT / "tablet-signs" / "classes.tsv").hash
    assert inventory[inventory.id_of_glyph["𒀀"]].numbers == "MZL 839 · HZL 364/365 · ABZ 579"
    assert inventory[inventory.id_of_glyph["𒀭"]].numbers == "MZL 10 · HZL 8 · ABZ 13"
    # the tables alone have these four wrong
    for glyph, number in (("𒆪", "536"), ("𒇻", "537"), ("𒌅", "58"), ("𒎌", "533")):
        assert inventory[inventory.id_of_glyph[glyph]].abz == number
    assert inventory[inventory.by_number("HZL", "1")[0]].name == "AŠ"
    assert inventory[inventory.by_number("ABZ", "13")[0]].name == "AN"
    assert sum(bool(c.hzl) for c in inventory.classes) > 280
    assert sum(bool(c.abz) for c in inventory.classes) > 290
