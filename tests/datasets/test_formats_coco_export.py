"""A COCO data set on disk: its splits or drawn ones, labels as they are written, faults refused in what they spoil."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dubsar.datasets.formats.coco_export import JSON, find_coco, list_coco, read_coco_split

BOX = [1, 2, 10, 12]


def put(folder: Path, pictures: dict[str, list[tuple[str, list[float]]]], name: str = JSON) -> Path:
    """Write pictures of 40 x 30 and their boxes (label, bbox)."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = sorted({label for boxes in pictures.values() for label, _ in boxes})
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (file, boxes) in enumerate(pictures.items()):
        if ".." not in file:
            (folder / file).parent.mkdir(exist_ok=True)
            Image.new("RGB", (40, 30)).save(folder / file)
        images.append({"id": number, "file_name": file, "width": 40, "height": 30})
        for label, bbox in boxes:
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": labels.index(label)} | {"bbox": bbox}
            )
    categories = [{"id": n, "name": label} for n, label in enumerate(labels)]
    document = {"images": images, "categories": categories, "annotations": annotations}
    (folder / name).write_text(json.dumps(document, ensure_ascii=False, indent=0), encoding="utf-8")
    return folder


def test_a_data_sets_own_splits_are_kept(tmp_path: Path) -> None:
    put(tmp_path / "train", {"K1-0.png": [("SU", BOX), ("su", [20, 2, 10, 12])], "K3.png": []})
    put(tmp_path / "valid", {"K2-0.png": [(unicodedata.normalize("NFD", "šu"), BOX), ("ŠU", [20, 2, 10, 12])]})
    photographs, issues = list_coco(tmp_path)
    assert issues == []
    assert [(p.file, p.object_id, p.split, [b.name for b in p.boxes]) for p in photographs] == [
        ("train/K1-0.png", "K1", "train", ["SU", "su"]),
        ("train/K3.png", "K3", "train", []),
        ("valid/K2-0.png", "K2", "dev", ["šu", "ŠU"]),
    ]
    (dev,), _ = read_coco_split(tmp_path, "dev")
    assert dev.path == tmp_path / "valid" / "K2-0.png"
    assert dev.boxes[0].box_xyxy == (1, 2, 11, 14)
    assert (dev.boxes[0].split, dev.width, dev.height) == ("dev", 40, 30)


def test_one_file_is_split_by_tablet_with_pictures_beside_it_or_in_images(tmp_path: Path) -> None:
    views = {f"K{n}-{view}.png": [("AN", BOX)] for n in range(40) for view in range(2)}
    put(tmp_path, views, "signs.json")
    (tmp_path / "images").mkdir()
    (tmp_path / "K0-0.png").rename(tmp_path / "images" / "K0-0.png")
    photographs, _ = list_coco(tmp_path)
    assert {p.split for p in photographs} == {"train", "dev", "test"}
    split_of: dict[str, set[str]] = {}
    for photograph in photographs:
        split_of.setdefault(photograph.object_id, set()).add(photograph.split)
    assert len(split_of) == 40
    assert all(len(splits) == 1 for splits in split_of.values())
    read = [p for split in ("train", "dev", "test") for p in read_coco_split(tmp_path, split)[0]]
    assert sorted(read, key=lambda p: p.file) == photographs
    assert all(p.path.exists() for p in read)


@pytest.mark.parametrize("name", ["{:03}.png", "DSC0{}.png", "obverse{}.png"])
def test_pictures_of_one_folder_are_of_one_tablet_whatever_their_names(tmp_path: Path, name: str) -> None:
    views = {f"tablet {n}/{name.format(view)}": [("AN", BOX)] for n in range(40) for view in range(3)}
    photographs = list_coco(put(tmp_path, views, "signs.json"))[0]
    assert {p.split for p in photographs} == {"train", "dev", "test"}
    split_of: dict[str, set[str]] = {}
    for photograph in photographs:
        split_of.setdefault(photograph.path.parent.name, set()).add(photograph.split)
    assert len({p.object_id for p in photographs}) == len(split_of) == 40
    assert all(len(splits) == 1 for splits in split_of.values())


def test_a_pattern_finds_the_tablet_in_the_folder_as_well(tmp_path: Path) -> None:
    views = {f"box {n}/K{n}/{view}.png": [("AN", BOX)] for n in range(2) for view in range(2)}
    for file in views:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    photographs = list_coco(put(tmp_path, views, "signs.json"), r"K\d+")[0]
    assert [p.object_id for p in photographs] == ["K0", "K0", "K1", "K1"]


def test_a_tablet_in_two_splits_is_listed(tmp_path: Path) -> None:
    put(tmp_path / "train", {"K1-0.png": [("AN", BOX)]})
    put(tmp_path / "valid", {"K1-1.png": [("AN", BOX)]})
    (issue,) = list_coco(tmp_path)[1]
    assert "tablet K1 is in split dev here and in train on K1-0.png:0" in issue.message


def test_a_bad_box_spoils_its_own_split_alone(tmp_path: Path) -> None:
    names = {f"K{n}.png": [("AN", BOX)] for n in range(40)}
    put(tmp_path, names)
    of_split = {p.split: p for p in list_coco(tmp_path)[0]}
    put(tmp_path, names | {Path(of_split["train"].file).name: [("AN", [-7, 2, 10, 12]), ("AN", BOX)]})
    assert [i.severity for i in list_coco(tmp_path)[1]] == ["warning", "error"]
    assert read_coco_split(tmp_path, "dev")[0]
    with pytest.raises(ValueError, match=r"_annotations\.coco\.json:\d+: box -7, 2, 3, 14 has a negative coordinate"):
        read_coco_split(tmp_path, "train")
    photographs, issues = read_coco_split(tmp_path, "train", ignore_unknown=True)
    assert len(issues) == 2
    assert all(len(p.boxes) == 1 for p in photographs)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (
            (),
            r": holds no JSON file; expected ROOT/train/_annotations\.coco\.json with valid and test beside it, or one",
        ),
        (("train/",), r"train/_annotations\.coco\.json is not there; expected"),
        (("a.json", "b.json"), r": holds 2 JSON files \(a\.json, b\.json\); expected"),
    ],
)
def test_another_layout_is_refused_with_the_reason(tmp_path: Path, folders: tuple[str, ...], message: str) -> None:
    for name in folders:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=message):
        find_coco(tmp_path)


def test_two_folders_for_one_split_and_a_missing_root_are_refused(tmp_path: Path) -> None:
    for name in ("train", "valid", "val"):
        put(tmp_path / name, {"a.png": []})
    with pytest.raises(ValueError, match="holds valid and val, which are names of one split; keep one of them"):
        find_coco(tmp_path)
    with pytest.raises(FileNotFoundError, match="x: no such folder; expected ROOT/train"):
        find_coco(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match=r"coco\.json: is a file; give the folder that it lies in"):
        find_coco(tmp_path / "train" / JSON)


@pytest.mark.parametrize("name", ["../other.png", "/etc/passwd"])
def test_a_name_that_leads_out_of_the_data_set_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, {"a.png": []})
    path = tmp_path / JSON
    path.write_text(path.read_text().replace("a.png", name))
    with pytest.raises(ValueError, match=f"file_name '{name}' leads out of the data set; expected a name below"):
        list_coco(tmp_path)


def test_another_size_than_the_json_says_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "train", {"a.png": [("AN", BOX)]})
    Image.new("RGB", (30, 40)).save(tmp_path / "train" / "a.png")
    with pytest.raises(
        ValueError, match=r"a\.png: the JSON says 40 x 30 pixels, the file has 30 x 40; boxes are in the"
    ):
        read_coco_split(tmp_path, "train")
