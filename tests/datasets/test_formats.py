"""Every box format on the real samples: the same boxes, whatever file they come from."""

import json
import os
from pathlib import Path

import pytest

from dubsar.datasets.formats.coco import read_coco, write_coco
from dubsar.datasets.formats.compvis_csv import read_compvis_csv
from dubsar.datasets.formats.ebl_txt import read_ebl_txt
from dubsar.datasets.formats.tablet_signs import read_tablet_signs, to_tablet
from dubsar.datasets.formats.yolo import read_yolo, write_yolo
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Tablet

ROOT = Path(os.environ.get("DUBSAR_DATA", "../shared/data"))
needs_data = pytest.mark.skipif(
    not (ROOT / "tablet-signs").is_dir(), reason="the shared data folder is not here (DUBSAR_DATA)"
)


def boxes(tablet: Tablet) -> list[tuple[float, ...]]:
    return [s.box for s in tablet.signs() if s.box is not None]


def errors(issues: list[Issue]) -> list[tuple[int, str]]:
    return [(i.line, i.message) for i in issues if i.severity == "error"]


@pytest.mark.data
@needs_data
def test_one_tablet_is_the_same_in_every_format(tmp_path: Path) -> None:
    """K.2638 from the tables, from the eBL file, and from the converted COCO and YOLO samples."""
    folder = ROOT / "format-samples" / "generated-K.2638"
    inventory = read_inventory(ROOT)
    (photograph,) = [p for p in read_tablet_signs(ROOT) if p.object_id == "K.2638"]
    size = (photograph.width, photograph.height)
    table = to_tablet(photograph)
    ebl, ebl_issues = read_ebl_txt(ROOT / "tablet-signs" / "raw" / "ebl" / "gt_K.2638.txt", size)
    (coco_tablet,), coco_issues = read_coco(folder / "K.2638.coco.json")
    yolo, yolo_issues = read_yolo(folder / "K.2638.yolo.txt", size, inventory)
    assert ebl_issues == coco_issues == yolo_issues == []
    assert len(boxes(table)) == 73
    assert boxes(ebl) == boxes(coco_tablet) == boxes(table)
    glyphs = [s.glyph for s in table.signs()]
    assert [s.glyph for s in coco_tablet.signs()] == [s.glyph for s in yolo.signs()] == glyphs
    for got, expected in zip(boxes(yolo), boxes(table), strict=True):
        assert got == pytest.approx(expected, abs=0.01)
    for writer, reader in (
        (lambda p: write_yolo(p, table, inventory), lambda p: read_yolo(p, size, inventory)[0]),
        (lambda p: write_coco(p, [table], inventory), lambda p: read_coco(p)[0][0]),
    ):
        assert writer(tmp_path / "out") == []
        back = reader(tmp_path / "out")
        assert [s.glyph for s in back.signs()] == glyphs
        for got, expected in zip(boxes(back), boxes(table), strict=True):
            assert got == pytest.approx(expected, abs=1e-3)


@pytest.mark.data
@needs_data
def test_the_real_coco_sample_has_one_box_without_area() -> None:
    path = ROOT / "format-samples" / "coco" / "ebl_detection_one_class_4_images.json"
    with pytest.raises(ValueError, match=r"\.json:\d+: box 406, 832, 406, 833 has no area"):
        read_coco(path)
    tablets, issues = read_coco(path, ignore_unknown=True)
    assert len(tablets) == 4
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert sum(len(boxes(t)) for t in tablets) == len(raw["annotations"]) - 1
    assert len(errors(issues)) == 1


@pytest.mark.data
@needs_data
def test_the_real_ebl_files_hold_the_boxes_of_the_table() -> None:
    folder = ROOT / "tablet-signs" / "raw" / "ebl"
    total = 0
    for photograph in read_tablet_signs(ROOT, keep_flagged=True):
        if photograph.source != "ebl":
            continue
        path = folder / f"gt_{photograph.object_id}.txt"
        tablet, _ = read_ebl_txt(path, (photograph.width, photograph.height))
        signs = [b.box_xyxy for b in photograph.boxes if "nosign" not in b.flag]
        assert sorted(boxes(tablet)) == sorted(signs)
        total += len(signs)
    assert total == 3598


@pytest.mark.data
@needs_data
@pytest.mark.parametrize(("part", "tablets", "signs", "views"), [("train", 47, 4700, 67), ("test", 34, 3421, 57)])
def test_the_real_compvis_tables_in_both_frames(part: str, tablets: int, signs: int, views: int) -> None:
    path = ROOT / "tablet-signs" / "raw" / "compvis" / f"bbox_annotations_{part}_full.csv"
    sizes = {p.object_id: (p.width, p.height) for p in read_tablet_signs(ROOT)}
    found, _ = read_compvis_csv(path, sizes)
    assert (len(found), sum(len(boxes(t)) for t in found)) == (tablets, signs)
    in_views, _ = read_compvis_csv(path, frame="view")
    assert len(in_views) == views


@pytest.mark.data
@needs_data
def test_the_real_tables() -> None:
    photographs = read_tablet_signs(ROOT)
    assert [p.file for p in photographs] == sorted(p.file for p in photographs)
    assert len(photographs) == 111
    assert sum(len(p.boxes) for p in photographs) == 10_166
    assert sum(len(p.boxes) for p in read_tablet_signs(ROOT, keep_flagged=True)) == 10_354
    assert {s: len(read_tablet_signs(ROOT, split=s)) for s in ("train", "dev", "test")} == {
        "train": 59, "dev": 12, "test": 40,
    }  # fmt: skip
    assert all(p.path.is_file() for p in photographs)
    # 255 rows are called NA; pandas would have lost them
    named = [b for p in photographs for b in p.boxes if b.name == "NA"]
    assert len(named) > 100
    assert all(b.glyph == "𒈾" for b in named)
