"""The sign list, and the inventory of a data set whose classes are labels of one of its catalogues."""

import unicodedata
from pathlib import Path

import pytest

from dubsar.datasets.sign_list import ListedSign, label_inventory, look_up, read_sign_list

AN, A = ListedSign("AN", "𒀭", ("10",), ("8",), ("13",)), ListedSign("A", "𒀀", ("839",), ("364", "365"), ("579",))
HI, SHAR = ListedSign("HI", "𒄭", ("631",), ("335",)), ListedSign("ŠAR₂", "𒊹", ("632",), ("335",))
EN, KALBAD = ListedSign("EN", "𒂗", ("164",), ("40",)), ListedSign("|KAL×BAD|", "𒆘", ("497",), ("(40)",))
BARE = ListedSign("BARE", "", ("5",), ("99",))
SIGNS = (AN, A, HI, SHAR, EN, KALBAD, BARE)


def test_rows_of_one_sign_are_put_together(tmp_path: Path) -> None:
    folder = tmp_path / "sign-list"
    folder.mkdir()
    (folder / "signs.tsv").write_text(
        "sign_name\tform_of\tglyph\tmzl\thzl\thzl_extra\n"
        "A\t\t𒀀\t839\t364|365\t\nNA\tA\t\t1\t\t\nA\tB\t𒀀\t839|840\t\t(366)\n",
        encoding="utf-8",
    )
    (folder / "abz_to_unicode.tsv").write_text(
        "abz\tglyph\tbasis\ttables_agreeing\ttables_disagreeing\n579\t𒀀\treadings\tMEA\t\n", encoding="utf-8"
    )
    assert read_sign_list(tmp_path) == (
        ListedSign("A", "𒀀", ("839", "840"), ("364", "365", "(366)"), ("579",)),
        ListedSign("NA", "", ("1",)),
    )
    assert ListedSign("x", "𒌓𒁺").codepoints == "U+12313 U+1207A"


def test_without_a_sign_list_it_is_said_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"sign-list/signs\.tsv: no such file .* set DUBSAR_DATA to the folder"):
        read_sign_list(tmp_path)


@pytest.mark.parametrize(
    ("catalogue", "label", "found"),
    [
        ("HZL", "8", [AN]),
        ("HZL", "40", [EN]),  # the very number beats one in brackets
        ("HZL", "335", [HI, SHAR]),
        ("MZL", "8", []),
        ("MZL", "497", [KALBAD]),
        ("ABZ", "579", [A]),
        ("name", "AN", [AN]),
        ("name", "an", []),
        ("glyph", "𒀀", [A]),
        ("none", "AN", []),
    ],
)
def test_labels_are_looked_up_as_they_stand(catalogue: str, label: str, found: list[ListedSign]) -> None:
    assert look_up(SIGNS, catalogue, label) == found


def test_a_label_of_one_sign_gets_its_glyph_and_numbers() -> None:
    inventory, notes = label_inventory(["364", "8", "8"], "HZL", SIGNS)
    assert inventory.to_list() == [["𒀀", "364", "839", "364", "579"], ["𒀭", "8", "10", "8", "13"]]
    assert notes == []


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (["335"], "label '335' has no sure glyph: HZL 335 is HI 𒄭, ŠAR₂ 𒊹"),
        (["7"], "label '7' has no sure glyph: the sign list has no HZL 7"),
        (["99"], "label '99' has no sure glyph: BARE has no code point"),
        (["364", "365"], "label '364' has no sure glyph: A 𒀀 is also HZL 365"),
        (["8", "𒀭"], "label '8' has no sure glyph: AN 𒀭 is also HZL 𒀭"),
    ],
)
def test_a_label_without_a_sure_glyph_stands_in_for_it_and_says_why(labels: list[str], why: str) -> None:
    inventory, notes = label_inventory(labels, "HZL", SIGNS)
    assert notes[0] == why
    assert [c.glyph for c in inventory.classes] == labels
    assert len(inventory.id_of_glyph) == len(labels)
    assert inventory.classes[0].hzl == labels[0]


def test_plain_labels_keep_case_and_diacritics_and_are_one_in_either_normal_form() -> None:
    four = ["SU", "su", "ŠU", "šu"]
    inventory, notes = label_inventory([*four, unicodedata.normalize("NFD", "šu")], "none", ())
    assert [(c.glyph, c.name) for c in inventory.classes] == [(label, label) for label in four]
    assert notes == []
    assert inventory.hash != label_inventory(four[:3], "none", ())[0].hash
    assert inventory.hash == label_inventory(four[::-1], "none", ())[0].hash


@pytest.mark.data
def test_common_hittite_signs_are_found_in_the_real_list() -> None:
    from dubsar.datasets.sources import data_root

    signs = read_sign_list(data_root())
    inventory, notes = label_inventory(["1", "8", "4", "335", "364"], "HZL", signs)
    glyphs = {c.name: c.glyph for c in inventory.classes}
    assert (glyphs["8"], glyphs["4"], glyphs["364"]) == ("𒀭", "𒁄", "𒀀")
    assert [n.split(" has")[0] for n in notes] == ["label '1'", "label '335'"]
