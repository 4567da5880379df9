"""A folder per class: labels as they are written, splits by tablet, and each layout that is refused with its reason."""

import os
import re
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from dubsar.datasets.formats.folders import list_folders, original_name, tablet_in_name


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.new("RGB", (20, 10)).save(path)
        else:
            path.write_text("x")
    return root


def messages(root: Path) -> list[str]:
    return [f"{i.severity}: {i.path.name}: {i.message}" for i in list_folders(root)[1]]


@pytest.mark.parametrize("dev", ["valid", "val", "dev"])
def test_a_data_sets_own_splits_are_kept(tmp_path: Path, dev: str) -> None:
    put(tmp_path, "train/AN/K1_1.png", "train/su/K1_2.png", f"{dev}/AN/K2_1.png", "test/AN/K3_1.png")
    files, issues = list_folders(tmp_path)
    assert [(f.file, f.label, f.tablet, f.split) for f in files] == [
        *([(f"{dev}/AN/K2_1.png", "AN", "K2", "dev")] if dev == "dev" else []),
        ("test/AN/K3_1.png", "AN", "K3", "test"),
        ("train/AN/K1_1.png", "AN", "K1", "train"),
        ("train/su/K1_2.png", "su", "K1", "train"),
        *([(f"{dev}/AN/K2_1.png", "AN", "K2", "dev")] if dev != "dev" else []),
    ]
    assert issues == []


def test_case_and_diacritics_make_four_labels_and_normalisation_makes_none(tmp_path: Path) -> None:
    four = ("SU", "su", "šu", "ŠU")
    decomposed = unicodedata.normalize("NFD", "šu")
    assert decomposed != "šu"
    put(tmp_path, *(f"{label}/{n}.png" for n, label in enumerate(four)), f"{decomposed}/4.png")
    files, issues = list_folders(tmp_path)
    assert sorted(f.label for f in files) == sorted([*four, "šu"])
    twice = "the same label as a folder beside it but for Unicode normalisation; both are class 'šu'"
    assert [i.message for i in issues if i.severity == "warning"] == [twice]
    alike = [i.message for i in issues if i.severity == "note"]
    ending = " are 2 classes that differ in case alone; keep the data off file systems that know no case (macOS, "
    assert [m.split(ending)[0] for m in alike] == ["SU, su", "ŠU, šu"]
    assert all(ending in m for m in alike)


def test_compatibility_characters_stay_apart(tmp_path: Path) -> None:
    files, _ = list_folders(put(tmp_path, "šu₂/a.png", "šu2/b.png"))
    assert [f.label for f in files] == ["šu2", "šu₂"]


def test_splits_are_drawn_by_tablet_and_the_same_in_any_order(tmp_path: Path) -> None:
    names = [f"{sign}/KBo_{n}.{m}_{m:03}.png" for n in range(20) for m, sign in enumerate(("AN", "DU", "su"))]
    names += [f"{sign}/K.{n}-{m}.png" for n in range(60) for m, sign in enumerate(("AN", "DU"))]
    files, issues = list_folders(put(tmp_path / "a", *names))
    assert issues == []
    assert {f.split for f in files} == {"train", "dev", "test"}
    split_of: dict[str, set[str]] = {}
    for file in files:
        split_of.setdefault(file.tablet, set()).add(file.split)
    assert len(split_of) == 120
    assert all(len(splits) == 1 for splits in split_of.values())
    again = {f.file: f.split for f in list_folders(put(tmp_path / "b", *names[::-1]))[0]}
    assert again == {f.file: f.split for f in files}


@pytest.mark.parametrize(
    ("stem", "label", "tablet"),
    [
        ("KBo_4.9_012", "AN", "KBo_4.9"),
        ("P335653-0", "", "P335653"),
        ("K.1234", "AN", "K.1234"),
        ("K.1210_3", "10", "K.1210"),
        ("AN_12", "AN", ""),
        ("HZL_8_12", "8", ""),
        ("sign_12", "AN", ""),
        ("0012", "AN", ""),
        ("KBo 4.9 3_png.rf.5a0C1d", "AN", "KBo 4.9"),
    ],
)
def test_file_names_tell_tablets_where_they_do(stem: str, label: str, tablet: str) -> None:
    assert tablet_in_name(stem, label) == tablet


def test_a_pattern_finds_the_tablet(tmp_path: Path) -> None:
    assert tablet_in_name("crop7 of Bo 2023 b", pattern=r"of (Bo \d+)") == "Bo 2023"
    assert tablet_in_name("crop7 of Bo 2023 b", pattern=r"Bo \d+") == "Bo 2023"
    assert tablet_in_name("crop7", pattern=r"Bo \d+") == ""
    files, _ = list_folders(put(tmp_path, "AN/a-K1.png", "DU/b-K1.png", "DU/c.png"), r"K\d+")
    assert [f.tablet for f in files] == ["K1", "K1", "file:DU/c.png"]


def test_copies_of_one_picture_stay_together_and_are_found_in_two_splits(tmp_path: Path) -> None:
    assert original_name("sign_3_jpg.rf.0a1B2c") == "sign_3"
    flat = put(tmp_path / "flat", *(f"AN/{n}_jpg.rf.{copy}.png" for n in range(40) for copy in ("0a", "1b", "2c")))
    split_of: dict[str, set[str]] = {}
    for file in list_folders(flat)[0]:
        split_of.setdefault(original_name(file.path.stem), set()).add(file.split)
    assert len(split_of) == 40
    assert all(len(splits) == 1 for splits in split_of.values())
    put(tmp_path / "own", "train/AN/x_jpg.rf.0a.png", "valid/AN/x_jpg.rf.1b.png", "valid/DU/x.png")
    assert messages(tmp_path / "own") == [
        "error: x_jpg.rf.1b.png: tablet file:AN/x is in split dev here and in train on x_jpg.rf.0a.png:0; keep a "
        "tablet with all its fragments in one split"
    ]


def test_labels_that_differ_in_case_or_accent_alone_share_no_picture(tmp_path: Path) -> None:
    put(tmp_path, "train/SU/12.png", "train/ŠU/12.png", "valid/su/12.png", "valid/šu/12.png")
    assert not [m for m in messages(tmp_path) if "is in split" in m]


def test_a_label_with_a_plus_is_split_like_any_other(tmp_path: Path) -> None:
    files, _ = list_folders(put(tmp_path, *(f"AŠ+AŠ/{n}.png" for n in range(60))))
    assert {f.split for f in files} == {"train", "dev", "test"}


def test_what_is_not_used_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "train/AN/a.png", "train/AN/.DS_Store", "train/AN/notes.txt", "valid/AN/b.png", "train/.git/x")
    (tmp_path / "train" / "DU").mkdir()
    assert sorted(messages(tmp_path)) == [
        "note: .DS_Store: hidden; not read",
        "note: .git: hidden; not read",
        "note: notes.txt: no picture; not read",
        "warning: DU: class 'DU' has no picture here",
    ]
    assert [f.label for f in list_folders(tmp_path)[0]] == ["AN", "AN"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.png", "AN/b.png"), r": pictures lie in it that are in no class \(a\.png\); expected ROOT/CLASS/\*\.png"),
        (("train/a.png",), r"train: pictures lie in it that are in no class"),
        (("AN/deeper/a.png",), r"AN: class 'AN' holds folders \(deeper\), expected pictures"),
        (("train/AN/a.png", "DU/b.png"), r"holds train and, beside them, DU; classes lie either in split folders or"),
        (("train/AN/a.png", "val/AN/b.png", "dev/AN/c.png"), r"holds dev and val, which are names of one split"),
        (("train/images/a.png", "train/labels/a.txt"), r"train: holds images and labels, as YOLO has it; expected"),
        (("train/x.json",), r"train: holds JSON and no folder of a class; of a COCO export say data\.source=coco"),
        (("AN/a.txt",), r": no picture in a folder named after its sign; expected ROOT/CLASS"),
    ],
)
def test_another_layout_is_refused_with_the_reason(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_folders(put(tmp_path, *names))


def test_a_folder_that_is_not_there_and_an_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'x'}: no such folder; expected ROOT/CLASS")):
        list_folders(tmp_path / "x")
    archive = tmp_path / "signs.zip"
    archive.write_bytes(b"PK")
    with pytest.raises(FileNotFoundError, match=r"signs\.zip: is a file; unpack it first; expected"):
        list_folders(archive)


def test_a_picture_is_a_photograph_with_one_box_in_the_files_own_pixels(tmp_path: Path) -> None:
    put(tmp_path, "train/AN/K1_1.png", "train/AN/K1_2.png")
    (tmp_path / "train/AN/K1_2.png").write_bytes(b"\x89PNG cut off")
    whole, damaged = (f.photograph() for f in list_folders(tmp_path)[0])
    assert (whole.object_id, whole.split, whole.width, whole.height) == ("K1", "train", 20, 10)
    assert [(b.box_xyxy, b.name) for b in whole.boxes] == [((0, 0, 20, 10), "AN")]
    assert damaged.boxes[0].box_xyxy == (0, 0, 1, 1)
    assert os.fspath(damaged.path).endswith("K1_2.png")
