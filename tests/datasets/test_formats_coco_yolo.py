"""COCO and YOLO labels: each fault is refused with file and line, or drops one box and is counted; round trips."""

import json
from pathlib import Path

import pytest

from dubsar.datasets.formats.coco import read_coco, write_coco
from dubsar.datasets.formats.yolo import read_yolo, write_yolo
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Tablet

SMALL = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒈾", "NA", "110"), SignClass("𒋗𒉀", "|ŠU.NAGA|")))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def boxes(tablet: Tablet) -> list[tuple[float, ...]]:
    return [s.box for s in tablet.signs() if s.box is not None]


def errors(issues: list[Issue]) -> list[tuple[int, str]]:
    return [(i.line, i.message) for i in issues if i.severity == "error"]


# --- COCO ------------------------------------------------------------------------------------------------------------


def coco(*annotations: dict[str, object], images: int = 1) -> str:
    return json.dumps(
        {
            "images": [
                {"id": n * 10, "file_name": f"sub/K.{n}.jpg", "width": 100, "height": 80} for n in range(images)
            ],
            "categories": [{"id": 7, "name": "𒀀"}, {"id": 40, "name": "NA"}],
            "annotations": [{"id": 5 + n, "image_id": 0, **a} for n, a in enumerate(annotations)],
        },
        ensure_ascii=False,
        indent=0,
    )


def test_coco_ids_are_arbitrary_and_pictures_without_boxes_stay(tmp_path: Path) -> None:
    text = coco({"category_id": 40, "bbox": [1, 2, 10.5, 20]}, {"category_id": 7, "bbox": [30, 2, 9, 9]}, images=2)
    tablets, issues = read_coco(write(tmp_path / "a.json", text), glyph_of={"NA": "𒈾"})
    assert issues == []
    assert [t.identifier for t in tablets] == ["K.0", "K.1"]
    assert [s.glyph for s in tablets[0].signs()] == ["𒈾", "𒀀"]
    assert boxes(tablets[0])[0] == (1, 2, 11.5, 22)
    assert tablets[1].faces == ()


def test_coco_messages_carry_the_line_of_the_object(tmp_path: Path) -> None:
    text = coco({"category_id": 7, "bbox": [1, 2, 9, 9]}, {"category_id": 7, "bbox": [30, 2, 0, 9]})
    line = next(n for n, row in enumerate(text.split("\n"), start=1) if row == '"id": 6,') - 1
    with pytest.raises(ValueError, match=rf"a\.json:{line}: box 30, 2, 30, 11 has no area"):
        read_coco(write(tmp_path / "a.json", text))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({"category_id": 7, "bbox": [1, 2, -9, 9]}, "swapped corners or a negative size"),
        ({"category_id": 7, "bbox": [1, 2, 900, 9]}, "beyond the picture"),
        ({"category_id": 7, "bbox": [-50, 2, 60, 9]}, "negative coordinate"),
        ({"category_id": 7, "bbox": [1, 2, float("nan"), 9]}, "not a finite number"),
        ({"category_id": 7, "bbox": [1, 2, 9]}, "expected .x, y, width, height"),
        ({"category_id": 7, "bbox": None}, "expected .x, y, width, height"),
        ({"category_id": 7}, "expected .x, y, width, height"),
        ({"category_id": 8, "bbox": [1, 2, 9, 9]}, "category id 8 is not defined"),
        ({"category_id": 7, "bbox": [1, 2, 9, 9], "image_id": 99}, "image_id 99 is not among the images"),
        ({"category_id": 7, "bbox": [50, 50, 9, 9]}, "duplicate row"),
        ({"category_id": [7], "bbox": [1, 2, 9, 9]}, "category id .7. is not defined"),
        ({"category_id": {}, "bbox": [1, 2, 9, 9]}, "category id {.*} is not defined"),
        ({"category_id": 7, "bbox": [1, 2, 9, 9], "image_id": [0]}, "image_id .0. is not among the images"),
        ({"category_id": 7, "bbox": [1, 2, 9, 9], "image_id": False}, "image_id False is not among the images"),
        ({"category_id": 7, "bbox": [1, 2, 10**400, 9]}, "expected .x, y, width, height"),
    ],
)
def test_coco_faults_are_refused_or_drop_the_box(tmp_path: Path, annotation: dict[str, object], message: str) -> None:
    path = write(tmp_path / "a.json", coco({"category_id": 7, "bbox": [50, 50, 9, 9]}, annotation))
    with pytest.raises(ValueError, match=rf"a\.json:\d+: .*{message}"):
        read_coco(path)
    (tablet,), issues = read_coco(path, ignore_unknown=True)
    assert len(boxes(tablet)) == 1
    assert len(errors(issues)) == 1
    assert any(i.line == 0 and "dropped" in i.message for i in issues)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"images": [],\n "categories": [}', r"a\.json:2: not JSON"),
        ("[]", r"a\.json:1: images, categories, annotations absent or no list"),
        ('{"images": 3, "categories": [], "annotations": []}', r"a\.json:1: images absent or no list"),
        ('{"images": [3], "categories": [], "annotations": []}', r"images holds something that is no object"),
        ('{"images": [{"id": 1, "width": 0, "height": 5}], "categories": [], "annotations": []}', r":1: .*0 x 5"),
        ("[" * 100_000, r"a\.json"),
        ("", r"a\.json:1: not JSON"),
    ],
)
def test_what_is_not_coco_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_coco(write(tmp_path / "a.json", text))


@pytest.mark.parametrize("ident", [[1], {"a": 1}, None, True, 1.5])
def test_coco_ids_are_whole_numbers_or_texts(tmp_path: Path, ident: object) -> None:
    data = json.loads(coco({"category_id": 40, "bbox": [1, 2, 9, 9]}, {"category_id": 7, "bbox": [30, 2, 9, 9]}))
    data["categories"][0]["id"] = ident
    path = write(tmp_path / "a.json", json.dumps(data, indent=0))
    with pytest.raises(ValueError, match=r"a\.json:11: category '𒀀' has id .*; expected a whole number or a text"):
        read_coco(path)
    (tablet,), issues = read_coco(path, ignore_unknown=True)
    assert len(boxes(tablet)) == 1
    assert next(m for line, m in errors(issues) if line == 11).endswith("the category was dropped")
    assert any("category id 7 is not defined" in m for _, m in errors(issues))
    data["images"][0]["id"], data["categories"][0]["id"] = ident, 7
    for ignore_unknown in (False, True):  # a picture that cannot be told from others is no bad box
        with pytest.raises(ValueError, match=r"a\.json:3: picture 'sub/K\.0\.jpg' has id .*; expected a whole number"):
            read_coco(write(path, json.dumps(data, indent=0)), ignore_unknown=ignore_unknown)


def test_coco_crowds_are_listed_not_read(tmp_path: Path) -> None:
    text = coco({"category_id": 7, "bbox": [1, 2, 9, 9], "iscrowd": 1})
    (tablet,), issues = read_coco(write(tmp_path / "a.json", text))
    assert boxes(tablet) == []
    assert [i.severity for i in issues] == ["note"]


def test_coco_round_trip_with_and_without_inventory(tmp_path: Path) -> None:
    text = coco({"category_id": 40, "bbox": [1, 2, 10.5, 20]}, {"category_id": 7, "bbox": [30, 2, 9, 9]}, images=2)
    before, _ = read_coco(write(tmp_path / "a.json", text), glyph_of={"NA": "𒈾"})
    for inventory in (SMALL, None):
        assert write_coco(tmp_path / "out.json", before, inventory) == []
        after, issues = read_coco(tmp_path / "out.json")
        assert issues == []
        assert [boxes(t) for t in after] == [boxes(t) for t in before]
        assert [[s.glyph for s in t.signs()] for t in after] == [["𒈾", "𒀀"], []]
    one_class = Inventory(SMALL.classes[:1])
    lost = write_coco(tmp_path / "out.json", before, one_class)
    assert ["'𒈾' is not in the inventory" in i.message for i in lost] == [True]


# --- YOLO ------------------------------------------------------------------------------------------------------------


def test_yolo_boxes_are_shares_of_the_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "K.1.txt", "2 0.5 0.5 0.2 0.5\n0 0.1 0.2 0.1 0.1 0.75\n")
    tablet, issues = read_yolo(path, (1000, 200), SMALL, image="K.1.jpg")
    assert issues == []
    assert boxes(tablet)[0] == pytest.approx((400, 50, 600, 150))
    assert [(s.glyph, s.confidence) for s in tablet.signs()] == [("𒋗𒉀", 1.0), ("𒀀", 0.75)]


def test_yolo_empty_file_is_a_picture_without_signs(tmp_path: Path) -> None:
    tablet, issues = read_yolo(write(tmp_path / "K.1.txt", ""), (10, 10), SMALL)
    assert (tablet.faces, issues) == ((), [])
    assert write_yolo(tmp_path / "out.txt", tablet, SMALL) == []
    assert (tmp_path / "out.txt").read_bytes() == b""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3 0.5 0.5 0.1 0.1", "class id 3 is out of range; expected 0 to 2"),
        ("-1 0.5 0.5 0.1 0.1", "class id -1 is out of range"),
        ("1.0 0.5 0.5 0.1 0.1", "class id 1.0 is out of range"),
        ("NA 0.5 0.5 0.1 0.1", "class id NA is out of range"),
        ("1 50 50 10 10", "50 is not between 0 and 1, so it looks like percent or pixels"),
        ("1 -0.5 0.5 0.1 0.1", "-0.5 is not between 0 and 1"),
        ("1 nan 0.5 0.1 0.1", "nan is not between 0 and 1"),
        ("1 0.5 0.5 inf 0.1", "inf is not between 0 and 1"),
        ("1 0.5 0.5 0 0.1", "no area"),
        ("1 0.01 0.5 0.5 0.1", "negative coordinate"),
        ("1 0.99 0.5 0.5 0.1", "beyond the picture"),
        ("1 0.25 0.25 0.1 0.1", "duplicate row"),
        ("1 0.5 0.5 0.1", "4 fields"),
        ("1 0.5 0.5 a 0.1", "could not convert"),
    ],
)
def test_yolo_faults_are_refused_or_drop_the_box(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "K.1.txt", f"1 0.25 0.25 0.1 0.1\n{row}\n0 0.75 0.75 0.1 0.1\n")
    with pytest.raises(ValueError, match=rf"K\.1\.txt:2: .*{message}"):
        read_yolo(path, (1000, 2000), SMALL)
    tablet, issues = read_yolo(path, (1000, 2000), SMALL, ignore_unknown=True)
    assert len(boxes(tablet)) == 2
    assert [line for line, _ in errors(issues)] == [2]
    assert issues[-1].message == "1 of 3 boxes were dropped"


def test_yolo_refuses_signs_of_another_inventory_and_writes_nothing(tmp_path: Path) -> None:
    tablet, _ = read_yolo(write(tmp_path / "K.1.txt", "2 0.5 0.5 0.2 0.5\n"), (1000, 200), SMALL)
    smaller = Inventory(SMALL.classes[:2])
    with pytest.raises(ValueError, match=rf"'𒋗𒉀'\) is not in sign inventory {smaller.hash} \(2 classes\)"):
        write_yolo(tmp_path / "out.txt", tablet, smaller)
    assert not (tmp_path / "out.txt").exists()
    issues = write_yolo(tmp_path / "out.txt", tablet, smaller, ignore_unknown=True)
    assert len(issues) == 1
