"""Exports: what goes in comes out, files are whole or absent, spreadsheets run no formula."""

import csv
import json
import os

import numpy as np
import pytest
from PIL import Image

from dubsar.datasets.images import LoadedImage
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.tablet import Candidate, Face, Line, Sign, Tablet
from dubsar.pipelines.reading import export
from dubsar.pipelines.reading.export import (
    CSV_COLUMNS,
    LINE_COLOURS,
    NO_SIGNS,
    to_text,
    upright_boxes,
    write_annotated,
    write_atomic,
    write_csv,
    write_json,
    write_text,
)


def sign(x, y, name="LUGAL", reading="", damage="intact", **more):
    candidates = (Candidate(glyph="𒈗", name=name, probability=0.75), Candidate(glyph="𒀀", name="A", probability=0.125))
    return Sign(box=(x, y, x + 10, y + 8), candidates=candidates, reading=reading, damage=damage, **more)


LOST = Sign(damage="broken")


def tablet(*faces, **more):
    return Tablet(identifier="P1", image="P1.png", width=120, height=80, faces=faces, **more)


@pytest.fixture
def two_faces():
    return tablet(
        Face(
            name="obverse",
            lines=(
                Line(label="1", signs=(sign(20, 10), LOST, sign(60, 10, "NA")), text="LUGAL-uš […] x"),
                Line(label="2", signs=(sign(20, 40),), text="A-NA"),
            ),
        ),
        Face(name="left"),
        Face(
            name="reverse", lines=(Line(label="", signs=(sign(80, 60, reading="lugal", flags=("?",)), LOST, Sign())),)
        ),
    )


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_text_is_numbered_per_face(two_faces, tmp_path):
    write_text(two_faces, tmp_path / "t.txt")
    text = (tmp_path / "t.txt").read_text("utf-8")
    assert text == "obverse\n1. LUGAL-uš […] x\n2. A-NA\n\nreverse\n1. lugal? […] x\n"


def test_second_view_of_a_side_has_a_title_of_its_own():
    line = Line(label="1", text="a")
    assert to_text(tablet(Face(name="left", lines=(line,)), Face(name="left", lines=(line,)))) == (
        "left\n1. a\n\nleft 2\n1. a\n"
    )


def test_text_of_one_line_stays_on_one_line():
    hostile = Line(label="1\n2", text="a\n\nreverse\n1. b")
    assert to_text(tablet(Face(name="obverse", lines=(hostile,)))) == "obverse\n1 2. a reverse 1. b\n"


def test_json_reads_back(two_faces, tmp_path):
    write_json(two_faces, tmp_path / "t.json")
    assert Tablet.from_dict(json.loads((tmp_path / "t.json").read_bytes())) == two_faces


def test_json_spells_file_names_that_are_not_unicode(tmp_path):
    odd = tablet().model_copy(update={"image": os.fsdecode(b"K\xff1.jpg")})
    write_json(odd, tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_bytes())["image"] == "K\udcff1.jpg"


def test_csv_has_a_row_per_sign_and_keeps_na(two_faces, tmp_path):
    write_csv(two_faces, tmp_path / "t.csv")
    found = rows(tmp_path / "t.csv")
    assert tuple(found[0]) == CSV_COLUMNS
    assert [(r["face"], r["line"], r["position"]) for r in found] == [
        *(("obverse", "1", "1"), ("obverse", "1", "2"), ("obverse", "1", "3"), ("obverse", "2", "1")),
        *(("reverse", "1", "1"), ("reverse", "1", "2"), ("reverse", "1", "3")),
    ]
    assert [r["name"] for r in found] == ["LUGAL", "", "NA", "LUGAL", "LUGAL", "", ""]
    assert [float(found[2][k]) for k in ("x0", "y0", "x1", "y1")] == [60, 10, 70, 18]
    assert (found[0]["glyph"], found[0]["probability"], found[0]["alternatives"]) == ("𒈗", "0.75", "𒀀 A 0.125")
    assert (found[1]["x0"], found[1]["damage"]) == ("", "broken")


def test_csv_gives_the_catalogue_numbers_of_the_likeliest_sign(two_faces, tmp_path):
    inventory = Inventory((SignClass("𒀀", "A", "839", "364|365", "579"), SignClass("𒈗", "LUGAL", "266", "(115)")))
    write_csv(two_faces, tmp_path / "t.csv", inventory)
    found = [(r["mzl"], r["hzl"], r["abz"]) for r in rows(tmp_path / "t.csv")]
    assert found[0] == ("266", "'(115)", "")  # a spreadsheet would read (115) as minus 115
    assert found[1] == ("", "", "")  # a lost stretch
    write_csv(two_faces, tmp_path / "t.csv", Inventory(inventory.classes[:1]))
    assert {(r["mzl"], r["hzl"], r["abz"]) for r in rows(tmp_path / "t.csv")} == {("", "", "")}
    write_csv(two_faces, tmp_path / "t.csv")
    assert {(r["mzl"], r["hzl"], r["abz"]) for r in rows(tmp_path / "t.csv")} == {("", "", "")}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-uš", "@SUM(A1)", "\t=1", "\r=1", "  =1"])
def test_csv_holds_no_formula(text, tmp_path):
    line = Line(label=text, signs=(sign(1, 1, name=text, reading=text),))
    write_csv(tablet(Face(lines=(line,))), tmp_path / "t.csv")
    (row,) = rows(tmp_path / "t.csv")
    for column in ("line", "name", "reading"):
        assert row[column].startswith("'"), column
    assert row["reading"] == "'" + text


def test_csv_keeps_quotes_commas_and_newlines(tmp_path):
    name = 'a",b\n|KA×U|'
    write_csv(tablet(Face(lines=(Line(label="1", signs=(sign(1, 1, name=name),)),))), tmp_path / "t.csv")
    assert rows(tmp_path / "t.csv")[0]["name"] == name


def test_a_tablet_without_signs_gives_valid_files(tmp_path):
    image = LoadedImage(np.zeros((80, 120, 3), np.uint8), 1, (120, 80))
    for empty in (tablet(), tablet(Face(name="obverse"))):
        assert to_text(empty) == NO_SIGNS + "\n"
        write_csv(empty, tmp_path / "t.csv")
        assert (tmp_path / "t.csv").read_text().splitlines() == [",".join(f'"{c}"' for c in CSV_COLUMNS)]
        write_annotated(image, empty, tmp_path / "t.png")
        assert not np.asarray(Image.open(tmp_path / "t.png")).any()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "t.txt"
    write_atomic(path, b"old")

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"t\.txt: could not be written \(No space left on device\)") as caught:
        write_atomic(path, b"new")
    assert caught.value.errno == 28
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.txt"]


def test_a_written_file_is_as_readable_as_others(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    write_atomic(tmp_path / "t", b"")
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_lie_on_the_same_clay_in_every_orientation(orientation):
    file_rgb = np.zeros((80, 120, 3), np.uint8)
    file_rgb[10:18, 20:30] = 255  # where the sign is in the file's own pixels
    picture = Image.fromarray(file_rgb)
    steps = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # Pillow's transposes
    upright = np.asarray(picture if orientation == 1 else picture.transpose(Image.Transpose(steps[orientation])))
    image = LoadedImage(upright, orientation, (120, 80))
    (box,) = upright_boxes(image, tablet(), [sign(20, 10)])
    x0, y0, x1, y1 = box.astype(int)
    assert (upright[y0:y1, x0:x1] == 255).all()
    assert upright.any(axis=2).sum() == (x1 - x0) * (y1 - y0) == 80
    assert image.to_file_pixels(box).tolist() == [[20, 10, 30, 18]]


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_annotated_picture_shows_boxes_in_the_colour_of_the_line(two_faces, tmp_path, suffix):
    image = LoadedImage(np.zeros((80, 120, 3), np.uint8), 1, (120, 80))
    path = tmp_path / f"a{suffix}"
    write_annotated(image, two_faces, path)
    drawn = Image.open(path)
    assert (drawn.format, drawn.size) == ({".png": "PNG", ".jpg": "JPEG"}[suffix], (120, 80))
    if suffix == ".png":
        for k, place in enumerate([(25, 10), (25, 40), (85, 60)]):
            assert drawn.getpixel(place) == tuple(bytes.fromhex(LINE_COLOURS[k][1:]))
    assert not image.rgb_HW3.any()  # the picture itself is not drawn upon


def test_annotated_picture_refuses_other_formats_and_other_pictures(two_faces, tmp_path):
    image = LoadedImage(np.zeros((80, 120, 3), np.uint8), 1, (120, 80))
    with pytest.raises(ValueError, match=r"'\.gif'; expected \.png"):
        write_annotated(image, two_faces, tmp_path / "a.gif")
    other = LoadedImage(np.zeros((40, 60, 3), np.uint8), 1, (60, 40))
    with pytest.raises(ValueError, match="read on a picture of 120 x 80 px, this one has 60 x 40"):
        write_annotated(other, two_faces, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_text_says_which_faces_are_seen_at_an_angle() -> None:
    line = Line(label="1", text="a")
    text = to_text(tablet(Face(name="obverse", lines=(line,)), Face(name="left", lines=(line,), aside=True)))
    assert text == "obverse\n1. a\n\nleft (seen at an angle: may repeat the faces)\n1. a\n"
