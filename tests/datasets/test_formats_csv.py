"""Boxes in eBL's text files and CompVis tables: each fault is refused with file and line, or listed and counted."""

from pathlib import Path

import pytest

from dubsar.datasets.formats.collect import box_fault, is_cuneiform
from dubsar.datasets.formats.compvis_csv import COLUMNS, read_compvis_csv, write_compvis_csv
from dubsar.datasets.formats.ebl_txt import read_ebl_txt, write_ebl_txt
from dubsar.datasets.issues import Issue
from dubsar.datasets.tablet import Tablet


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def boxes(tablet: Tablet) -> list[tuple[float, ...]]:
    return [s.box for s in tablet.signs() if s.box is not None]


def errors(issues: list[Issue]) -> list[tuple[int, str]]:
    return [(i.line, i.message) for i in issues if i.severity == "error"]


# --- the shared rule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        ((0, 0, 100, 50), ""),
        ((-0.4, 0, 100.4, 50), ""),  # rounding at the edge
        ((10, 10, 5, 20), "swapped corners"),
        ((10, 10, 20, 5), "swapped corners"),
        ((10, 10, 10, 20), "no area"),
        ((-3, 10, 10, 20), "negative coordinate"),
        ((10, 10, 120, 20), "beyond the picture, which is 100 x 50"),
        ((float("nan"), 10, 10, 20), "not a finite number"),
        ((0, 10, float("inf"), 20), "not a finite number"),
    ],
)
def test_box_faults(box: tuple[float, float, float, float], fault: str) -> None:
    found = box_fault(box, (100, 50))
    assert fault in found
    assert bool(found) == bool(fault)


def test_cuneiform_labels_are_told_from_names() -> None:
    assert is_cuneiform("𒋗𒉀")
    assert is_cuneiform("\U00012400")
    assert not is_cuneiform("NA")
    assert not is_cuneiform("𒀀A")
    assert not is_cuneiform("")


# --- eBL -------------------------------------------------------------------------------------------------------------


def test_ebl_labels_may_hold_commas_and_a_mark_of_damage(tmp_path: Path) -> None:
    text = "1,2,10,20,|UD×(U.U,U)|\n30,2,10,20,NA?\n\n5,40,10,5,NULL\n60,40,10,5,𒀀\n"
    tablet, issues = read_ebl_txt(write(tmp_path / "gt_K.1.txt", text), (100, 100), glyph_of={"NA": "𒈾"})
    assert tablet.identifier == "K.1"
    assert [s.candidates[0].name for s in tablet.signs()] == ["|UD×(U.U,U)|", "NA", "NULL", ""]
    assert [s.glyph for s in tablet.signs()] == ["", "𒈾", "", "𒀀"]
    assert [s.damage for s in tablet.signs()] == ["intact", "damaged", "intact", "intact"]
    assert boxes(tablet)[0] == (1, 2, 11, 22)
    assert issues == []


def test_ebl_round_trip(tmp_path: Path) -> None:
    text = "1,2,10,20,|UD×(U.U,U)|\n30,2,10,20,NA?\n"
    path = write(tmp_path / "gt_K.1.txt", text)
    tablet, _ = read_ebl_txt(path, (100, 100))
    assert write_ebl_txt(tmp_path / "out.txt", tablet) == []
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == text


def test_ebl_blank_places_are_listed_even_without_area(tmp_path: Path) -> None:
    path = write(tmp_path / "gt_K.1.txt", "1,2,0,0,BLANK\n5,5,9,9,A\n")
    tablet, issues = read_ebl_txt(path, (100, 100))
    assert boxes(tablet) == [(5, 5, 14, 14)]
    assert [(i.line, i.severity) for i in issues] == [(1, "note")]


def test_ebl_repeated_boxes_are_counted_once_and_conflicts_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "gt_K.1.txt", "1,2,9,9,A\n1,2,9,9,A\n1,2,9,9,NA\n")
    tablet, issues = read_ebl_txt(path, (100, 100))
    assert len(boxes(tablet)) == 1
    assert [(i.line, i.severity) for i in issues] == [(2, "warning"), (3, "error")]
    assert "'NA' here and 'A' on line 1" in issues[1].message


EBL_FAULTS = [
    ("1,2,3,4", "4 fields"),
    ("1,2,x,4,A", "could not convert"),
    ("1,2,0,4,A", "no area"),
    ("1,2,-5,4,A", "swapped corners or a negative size"),
    ("-9,2,20,4,A", "negative coordinate"),
    ("1,2,200,4,A", "beyond the picture, which is 100 x 80"),
    ("1,2,nan,4,A", "not a finite number"),
    ("1,2,3,4,", "label is empty"),
    ("1,2,3,4,?", "label is empty"),
]


@pytest.mark.parametrize(("row", "message"), EBL_FAULTS)
def test_ebl_faults_are_refused_or_drop_the_box(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "gt_K.1.txt", f"5,5,9,9,A\n{row}\n50,50,9,9,NA\n")
    with pytest.raises(ValueError, match=rf"gt_K\.1\.txt:2: .*{message}"):
        read_ebl_txt(path, (100, 80))
    tablet, issues = read_ebl_txt(path, (100, 80), ignore_unknown=True)
    assert len(boxes(tablet)) == 2  # the box is dropped, not the picture
    assert [line for line, _ in errors(issues)] == [2]
    assert issues[-1].message == "1 of 3 boxes were dropped"


def test_ebl_unknown_labels_are_dropped_and_counted_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "gt_K.1.txt", "5,5,9,9,A\n20,5,9,9,ZZZ\n")
    kept, _ = read_ebl_txt(path, glyph_of={"A": "𒀀"})
    assert [s.glyph for s in kept.signs()] == ["𒀀", ""]
    tablet, issues = read_ebl_txt(path, glyph_of={"A": "𒀀"}, ignore_unknown=True)
    assert [s.glyph for s in tablet.signs()] == ["𒀀"]
    assert errors(issues) == [(2, "unknown label 'ZZZ'; the box was dropped")]


def test_ebl_empty_file_bom_and_mixed_newlines(tmp_path: Path) -> None:
    tablet, issues = read_ebl_txt(write(tmp_path / "gt_K.1.txt", ""), (10, 10))
    assert (boxes(tablet), issues, tablet.faces) == ([], [], ())
    path = tmp_path / "gt_K.2.txt"
    path.write_bytes("\ufeff1,2,3,4,A\r\n5,6,7,8,NA\n".encode())
    assert boxes(read_ebl_txt(path)[0]) == [(1, 2, 4, 6), (5, 6, 12, 14)]
    path.write_bytes(b"1,2,3,4,\xff\n")
    with pytest.raises(ValueError, match=r"gt_K\.2\.txt: not UTF-8"):
        read_ebl_txt(path)


# --- CompVis ---------------------------------------------------------------------------------------------------------


def compvis(*rows: str) -> str:
    return ",".join(COLUMNS) + "\n" + "".join(f"{row}\n" for row in rows)


GOOD = '7,P1,Obv,train,839,11,"[100, 200, 150, 260]","[10, 20, 60, 80]"'


def test_compvis_has_two_frames(tmp_path: Path) -> None:
    text = compvis(
        GOOD,
        '8,P1,Rev,train,110,12,"[100, 900, 150, 960]","[10.5, 20, 60.5, 80]"',
        '-1,P1,,train,579,13,"[5, 5, 20, 20]",[]',
    )
    path = write(tmp_path / "b.csv", text)
    (tablet,), issues = read_compvis_csv(path, {"P1": (400, 1000)}, glyph_of={"839": "𒀀"})
    assert [f.name for f in tablet.faces] == ["obverse", "reverse", "unknown"]
    assert boxes(tablet) == [(100, 200, 150, 260), (100, 900, 150, 960), (5, 5, 20, 20)]
    assert (tablet.width, tablet.height) == (400, 1000)
    assert next(tablet.signs()).glyph == "𒀀"
    assert issues == []
    views, issues = read_compvis_csv(path, frame="view")
    assert [t.identifier for t in views] == ["P1:7:Obv", "P1:8:Rev"]
    assert boxes(views[1]) == [(10.5, 20, 60.5, 80)]
    assert [(i.line, i.severity) for i in issues] == [(4, "note")]


def test_compvis_background_is_not_a_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "b.csv", compvis('7,P1,Obv,train,0,0,"[1, 2, 3, 4]","[1, 2, 3, 4]"', GOOD))
    (tablet,), issues = read_compvis_csv(path)
    assert len(boxes(tablet)) == 1
    assert [(i.line, i.severity) for i in issues] == [(2, "note")]


def test_compvis_duplicates_are_counted_once(tmp_path: Path) -> None:
    (tablet,), issues = read_compvis_csv(write(tmp_path / "b.csv", compvis(GOOD, GOOD, GOOD.replace("839", "110"))))
    assert len(boxes(tablet)) == 1
    assert [(i.line, i.severity) for i in issues] == [(3, "warning"), (4, "error")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD.replace("[100, 200, 150, 260]", "[150, 200, 100, 260]"), "swapped corners"),
        (GOOD.replace("[100, 200, 150, 260]", "[100, 200, 150, 200]"), "no area"),
        (GOOD.replace("[100, 200, 150, 260]", "[-100, 200, 150, 260]"), "negative coordinate"),
        (GOOD.replace("[100, 200, 150, 260]", "[100, 200, 150, 2600]"), "beyond the picture"),
        (GOOD.replace("[100, 200, 150, 260]", "[NaN, 200, 150, 260]"), "not a finite number"),
        (GOOD.replace("[100, 200, 150, 260]", "[100, 200, 150]"), "expected .x0, y0, x1, y1"),
        (GOOD.replace("[100, 200, 150, 260]", "__import__('os')"), "expected .x0, y0, x1, y1"),
        (GOOD.replace("[10, 20, 60, 80]", "?"), "relative_bbox is"),
        (GOOD.replace(",11,", ",-1,"), "train_label is '-1'"),
        (GOOD.replace(",11,", ",²,"), "train_label is '²'"),
        ("7,P1,Obv", "too few or too many cells"),
        (GOOD + ",more", "too few or too many cells"),
    ],
)
def test_compvis_faults_are_refused_or_drop_the_box(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "b.csv", compvis('7,P1,Obv,train,110,12,"[1, 2, 30, 40]",[]', row))
    with pytest.raises(ValueError, match=rf"b\.csv:3: .*{message}"):
        read_compvis_csv(path, {"P1": (400, 1000)})
    (tablet,), issues = read_compvis_csv(path, {"P1": (400, 1000)}, ignore_unknown=True)
    assert len(boxes(tablet)) == 1
    assert [line for line, _ in errors(issues)] == [3]
    assert any("dropped" in i.message and i.line == 0 for i in issues)


def test_compvis_missing_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.csv:1: the header lacks view_desc, collection"):
        read_compvis_csv(write(tmp_path / "b.csv", "segm_idx,tablet_CDLI\n1,P1\n"))


def test_compvis_what_is_no_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "b.csv", compvis(GOOD, f"7,{'x' * 200_000},Obv,train,839,11,,"))
    with pytest.raises(ValueError, match=r"b\.csv:\d+: not a CSV file"):
        read_compvis_csv(path)
    path.write_bytes(compvis(GOOD).encode() + b"\xff\n")
    with pytest.raises(ValueError, match=r"b\.csv:\d+: not a CSV file in UTF-8"):
        read_compvis_csv(path)


def test_compvis_round_trip(tmp_path: Path) -> None:
    tablets, _ = read_compvis_csv(write(tmp_path / "b.csv", compvis(GOOD)), {"P1": (400, 1000)})
    assert write_compvis_csv(tmp_path / "out.csv", tablets, collection="train") == []
    again, issues = read_compvis_csv(tmp_path / "out.csv", {"P1": (400, 1000)})
    assert issues == []
    assert [f.name for f in again[0].faces] == ["obverse"]
    assert boxes(again[0]) == boxes(tablets[0])
    assert [s.candidates for s in again[0].signs()] == [s.candidates for s in tablets[0].signs()]
