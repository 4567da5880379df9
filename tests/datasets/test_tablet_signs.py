"""The `tablet-signs` reader: counts, flags, splits, and rows it refuses."""

from pathlib import Path

import pytest

from dubsar.datasets.formats.tablet_signs import read_tablet_signs, to_tablet
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
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\tnan\t2\t10", r"signs\.tsv:2: box nan.*not finite"),
        ("e/b.jpg\t1\t2\t10", "e/b.jpg\t1\t2\t-10", r"signs\.tsv:2: box is -10 x 20"),
        ("e/b.jpg\t30", "e/c.jpg\t30", r"signs\.tsv:3: e/c\.jpg is not in images\.tsv"),
        ("Rev\t\ttrain", "Rev\t\ttest", r"images\.tsv:2: e/b\.jpg is in split train, its box on signs\.tsv:3 in test"),
        ("e/b.jpg\t30\t2\t10\t20", "e/b.jpg\t30\t2\t10", r"signs\.tsv:3: 12 cells, expected 13"),
    ],
)
def test_a_faulty_sign_row_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tablet_signs(put(tmp_path, signs=SIGNS + SIGN_ROWS.replace(old, new)))


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
