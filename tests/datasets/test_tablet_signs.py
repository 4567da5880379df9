"""The `tablet-signs` reader: counts, flags, splits, and rows it refuses."""

from pathlib import Path

import pytest

from dubsar.datasets.formats.tablet_signs import read_tablet_signs, to_tablet
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.sources import SOURCES, data_root, require_data

IMAGES = "file\tsource\tobject_id\tcollection\twidth\theight\tsplit\tbytes\tsha256\n"
SIGNS = "file\tx\ty\tw\th\tsource\tlabel_raw\tmzl\tsign_name\tglyph\tview\tflag\tsplit\n"
IMAGE_ROWS = "e/b.jpg\tebl\tK.2\t\t100\t80\ttrain\t1\tx\ne/a.jpg\tebl\tK.1\tsaa05\t50\t60\ttest\t1\tx\n"
SIGN_ROWS = (
    "e/b.jpg\t1\t2\t10\t20\tebl\tNA\t110\tNA\t𒈾\tObv\t\ttrain\n"
    "e/b.jpg\t30\t2\t10\t20\tebl\tNULL\t\tNULL\t𒀀\tRev\t\ttrain\n"
    "e/b.jpg\t1\t2\t0\t0\tebl\tBLANK\t\t\t\t\ttiny,nosign\ttrain\n"
)


def put(root: Path, images: str = IMAGES + IMAGE_ROWS, signs: str = SIGNS + SIGN_ROWS) -> Path:
    (root / "tablet-signs").mkdir(exist_ok=True)
    (root / "tablet-signs" / "images.tsv").write_text(images, encoding="utf-8")
    (root / "tablet-signs" / "signs.tsv").write_text(signs, encoding="utf-8")
    return root


def test_photographs_are_sorted_and_hold_unflagged_boxes(tmp_path: Path) -> None:
    first, second = read_tablet_signs(put(tmp_path))
    assert (first.file, first.boxes, first.collection) == ("e/a.jpg", (), "saa05")
    assert second.path == tmp_path / "tablet-signs" / "images" / "e" / "b.jpg"
    assert [(b.box_xyxy, b.name, b.glyph, b.line) for b in second.boxes] == [
        ((1.0, 2.0, 11.0, 22.0), "NA", "𒈾", 2),
        ((30.0, 2.0, 40.0, 22.0), "NULL", "𒀀", 3),
    ]


def test_flagged_boxes_and_splits_are_on_request(tmp_path: Path) -> None:
    root = put(tmp_path)
    assert [len(p.boxes) for p in read_tablet_signs(root, keep_flagged=True)] == [0, 3]
    assert [p.file for p in read_tablet_signs(root, split="test")] == ["e/a.jpg"]
    assert read_tablet_signs(root, split="dev") == []
    with pytest.raises(ValueError, match="split is 'val', expected one of train, dev, test"):
        read_tablet_signs(root, split="val")


def test_to_tablet_has_a_face_per_view_and_no_empty_box(tmp_path: Path) -> None:
    tablet = to_tablet(read_tablet_signs(put(tmp_path), keep_flagged=True)[1])
    assert [f.name for f in tablet.faces] == ["obverse", "reverse"]
    assert [s.glyph for s in tablet.signs()] == ["𒈾", "𒀀"]
    assert (tablet.identifier, tablet.width, tablet.height) == ("K.2", 100, 80)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\tx\t2\t10", r"signs\.tsv:2: could not convert.*x, y, w, h in pixels"),
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\tnan\t2\t10", r"signs\.tsv:2: box nan.*not a finite number"),
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\t1\t2\t-10", r"signs\.tsv:2: box 1, 2, -9, 22 has .*negative size"),
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\t-9\t2\t10", r"signs\.tsv:2: box -9.*negative coordinate"),
        (
            "e/b.jpg\t30\t2",
            "e/b.jpg\t95\t2",
            r"signs\.tsv:3: box 95.*beyond the picture.*or drop such boxes with ignore",
        ),
        ("e/b.jpg\t30", "e/b.jpg\t1", r"signs\.tsv:3: two signs in one box: the box stands on line 2 already, as '𒈾'"),
        ("e/b.jpg\t30", "e/c.jpg\t30", r"signs\.tsv:3: e/c\.jpg is not in images\.tsv"),
        ("Rev\t\ttrain", "Rev\t\ttest", r"images\.tsv:2: e/b\.jpg is in split train, its box on signs\.tsv:3 in test"),
        ("e/b.jpg\t30\t2\t10\t20", "e/b.jpg\t30\t2\t10", r"signs\.tsv:3: 12 cells, expected 13"),
    ],
)
def test_a_faulty_sign_row_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tablet_signs(put(tmp_path, signs=SIGNS + SIGN_ROWS.replace(old, new)))


BAD_ROWS = (
    "e/b.jpg\tx\t2\t10\t20\tebl\tA\t\tA\t𒀀\t\t\ttrain\n"
    "e/b.jpg\t50\tnan\t10\t20\tebl\tA\t\tA\t𒀀\t\t\ttrain\n"
    "e/b.jpg\t50\t2\t0\t20\tebl\tA\t\tA\t𒀀\t\t\ttrain\n"
    "e/b.jpg\t30\t2\t10\t20\tebl\tNULL\t\tNULL\t𒀀\t\t\ttrain\n"
    "e/c.jpg\t50\t2\t10\t20\tebl\tA\t\tA\t𒀀\t\t\ttrain\n"
    "e/b.jpg\t70\t2\t10\t20\tebl\tŠU\t\tŠU\t𒋗\t\t\ttrain\n"
    "e/a.jpg\t10\t2\t99\t20\tebl\tA\t\tA\t𒀀\t\t\ttest\n"
)
SMALL = Inventory((SignClass("𒈾", "NA"), SignClass("𒀀", "A")))


def test_bad_boxes_are_dropped_and_listed_on_request_and_the_picture_stays(tmp_path: Path) -> None:
    root, dropped = put(tmp_path, signs=SIGNS + SIGN_ROWS + BAD_ROWS), []
    (photograph,) = read_tablet_signs(root, split="train", inventory=SMALL, dropped=dropped)
    assert [b.line for b in photograph.boxes] == [2, 3]
    assert [i.line for i in dropped] == [5, 6, 7, 8, 9, 10]  # line 11 is of another split
    assert str(dropped[1]).endswith(
        "signs.tsv:6: error: box 50, nan, 60, nan has a coordinate that is not a finite "
        "number; expected pixels; the box was dropped"
    )
    assert f"sign '𒋗' (ŠU) is not in sign inventory {SMALL.hash} (2 classes); the box" in dropped[-1].message
    read_tablet_signs(root, split="test", dropped=(of_test := []))
    assert [i.line for i in of_test] == [11]


def test_a_sign_without_a_class_is_refused_where_classes_are_asked_for(tmp_path: Path) -> None:
    root = put(tmp_path, signs=SIGNS + SIGN_ROWS.replace("𒈾", "𒋗"))
    assert [len(p.boxes) for p in read_tablet_signs(root)] == [0, 2]
    with pytest.raises(
        ValueError, match=r"signs\.tsv:2: sign '𒋗' \(NA\) is not in sign inventory .* \(2 classes\); corr"
    ):
        read_tablet_signs(root, split="train", inventory=SMALL)
    read_tablet_signs(root, split="test", inventory=SMALL)  # only of the split that is read


def test_a_box_in_the_wrong_split_is_never_dropped(tmp_path: Path) -> None:
    root = put(tmp_path, signs=SIGNS + SIGN_ROWS.replace("Rev\t\ttrain", "Rev\t\ttest"))
    with pytest.raises(ValueError, match="give both the same split"):
        read_tablet_signs(root, dropped=[])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("e/a.jpg", "e/b.jpg", r"images\.tsv:3: e/b\.jpg stands twice"),
        ("\ttest\t", "\tval\t", r"images\.tsv:3: split is 'val'"),
        ("50\t60", "wide\t60", r"images\.tsv:3: .*whole pixels"),
        ("50\t60", "0\t60", r"images\.tsv:3: picture is 0 x 60"),
    ],
)
def test_a_faulty_image_row_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tablet_signs(put(tmp_path, images=IMAGES + IMAGE_ROWS.replace(old, new)))


def test_missing_data_says_what_and_which_variable(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"images\.tsv: no such file.*set DUBSAR_DATA.*holds tablet-signs"):
        read_tablet_signs(tmp_path)
    assert require_data(put(tmp_path), "tablet-signs", "images.tsv").is_file()


def test_data_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBSAR_DATA", "/somewhere")
    assert data_root() == Path("/somewhere")
    for unset in ("", None):
        monkeypatch.delenv("DUBSAR_DATA") if unset is None else monkeypatch.setenv("DUBSAR_DATA", unset)
        assert data_root() == Path("../shared/data")


def test_every_public_source_states_address_licence_and_use() -> None:
    assert len({s.name for s in SOURCES}) == len(SOURCES) >= 7
    for source in SOURCES:
        assert source.address.startswith("https://")
        assert source.licence
        assert source.use
        assert source.sha256 == "" or len(source.sha256) == 64
