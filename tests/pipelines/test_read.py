"""Reading with an engine that is told what it sees: faces, lines, doubt, breaks, folders, formats."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dubsar.configs.schema import ReadConfig
from dubsar.datasets.images import ImageError
from dubsar.datasets.inventory import Inventory, SignClass
from dubsar.datasets.tablet import Candidate, Face, Line, Sign, Tablet
from dubsar.pipelines.reading import folder
from dubsar.pipelines.reading.read import read_photograph, set_aside, show

CONFIG = ReadConfig(detect_threshold=0.3, doubtful_below=0.5, unread_below=0.2)
INVENTORY = Inventory((SignClass("𒀀", "A", "839"), SignClass("𒎌", "|ME.U.U.U|", ""), SignClass("𒁹", "DIŠ", "748")))


@dataclass(frozen=True)
class Boxes:
    boxes_N4: Any
    scores_N: Any

    def above(self, threshold: float) -> "Boxes":
        return Boxes(self.boxes_N4[self.scores_N >= threshold], self.scores_N[self.scores_N >= threshold])

    def weighted(self, weights: Any) -> "Boxes":
        return Boxes(self.boxes_N4, self.scores_N * weights)


@dataclass
class KnownEngine:
    """Finds given boxes, names them by given probabilities, and reads each code point as its number in the line."""

    boxes: list[tuple[float, float, float, float]]
    probabilities: list[float]
    classes: list[int]
    inventory: Inventory = INVENTORY
    provenance: dict[str, str] = field(default_factory=lambda: {"detector": "known"})
    asked: list[Any] = field(default_factory=list)

    def find(self, rgb: Any) -> Boxes:
        return Boxes(np.array(self.boxes, dtype=np.float64).reshape(-1, 4), np.ones(len(self.boxes)))

    def classify(self, rgb: Any, boxes: Any, top_k: int) -> tuple[Any, Any]:
        count = len(boxes)
        return np.array(self.probabilities)[:count].reshape(-1, 1), np.array(self.classes)[:count].reshape(-1, 1)

    def transliterate(self, lines: Any, beams: int) -> list[tuple[list[str], float]]:
        self.asked = list(lines)
        return [([f"{'-' if i else ''}s{i}" for i in range(len(signs))], -0.1) for signs, _ in lines]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.full((300, 600, 3), 150, np.uint8)
    path = tmp_path / "tablet.png"
    Image.fromarray(pixels).save(path)
    return path


def row(y: float, *xs: float) -> list[tuple[float, float, float, float]]:
    return [(x, y, x + 40, y + 30) for x in xs]


def test_lines_are_read_in_order_with_doubt_and_breaks(photo: Path) -> None:
    engine = KnownEngine(
        boxes=[*row(120, 60, 105), *row(40, 60, 105, 300)],
        probabilities=[0.9, 0.4, 0.9, 0.1, 0.9],
        classes=[0, 0, 0, 0, 1],
    )
    tablet = read_photograph(photo, engine, CONFIG).tablet  # type: ignore[arg-type]
    lines = [line for _, line in tablet.lines()]
    assert [line.text for line in lines] == ["s0-x [...] -s3-s4", "s0-s1?"]
    assert engine.asked[0] == (["𒀀", "𒀀", "…", "𒈨", "𒌍"], "akk")  # MEŠ is spelled out as the line tables spell it
    assert [s.damage for s in lines[0].signs] == ["intact", "intact", "broken", "intact"]
    assert lines[0].signs[2].box is None
    # the doubt is on each sign too, so that a table of signs does not read as if certain
    assert [(s.reading, s.flags) for s in lines[0].signs] == [("s0", ()), ("x", ()), ("", ()), ("s3", ())]
    assert [(s.reading, s.flags) for s in lines[1].signs] == [("s0", ()), ("s1", ("?",))]
    assert tablet.provenance == {"detector": "known"}
    assert Tablet.from_dict(json.loads(json.dumps(tablet.to_dict()))) == tablet


def test_boxes_are_in_the_files_own_pixels(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the picture is shown 300 wide, 600 high
    Image.fromarray(np.full((300, 600, 3), 150, np.uint8)).save(path, exif=exif)
    engine = KnownEngine(boxes=[(10, 20, 50, 60)], probabilities=[0.9], classes=[0])
    tablet = read_photograph(path, engine, CONFIG).tablet  # type: ignore[arg-type]
    assert (tablet.width, tablet.height) == (600, 300)
    assert next(tablet.signs()).box == (20, 250, 60, 290)


def test_a_sign_outside_every_view_is_kept(photo: Path) -> None:
    pixels = np.zeros((400, 900, 3), np.uint8)
    pixels[50:350, 50:500] = 150
    Image.fromarray(pixels).save(photo)
    boxes = [*row(100, 80, 150), (860, 380, 872, 392)]
    engine = KnownEngine(boxes=boxes, probabilities=[0.9] * 3, classes=[0] * 3)
    tablet = read_photograph(photo, engine, CONFIG).tablet  # type: ignore[arg-type]
    assert sorted(s.box for s in tablet.signs() if s.box) == sorted(boxes)


def test_no_sign_is_an_empty_valid_reading(photo: Path, tmp_path: Path) -> None:
    reading = read_photograph(photo, KnownEngine([], [], []), CONFIG)  # type: ignore[arg-type]
    assert reading.inventory == INVENTORY
    folder.write_results(reading, tmp_path / "out")
    assert reading.tablet.notes == ("no sign was found on this photograph",)
    with (tmp_path / "out" / "signs.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == []
    assert "no sign was found" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for name in ("tablet.json", "tablet.txt", "annotated.jpg"):
        assert (tmp_path / "out" / name).exists()


@pytest.mark.parametrize(
    ("piece", "confidence", "damage", "shown"),
    [
        ("-uš", 0.9, "intact", "-uš"),
        ("-uš", 0.4, "intact", "-uš?"),
        ("-uš", 0.1, "intact", "-x"),
        (" {d}", 0.4, "intact", " {d?}"),
        ("-me-eš", 0.1, "intact", "-x-x"),
        ("-me-eš", 0.4, "intact", "-me?-eš?"),
        ("", 0.1, "intact", "x"),
        ("", 0.9, "intact", ""),
        (" …", 0.0, "broken", " [...] "),
    ],
)
def test_doubt_is_shown(piece: str, confidence: float, damage: Any, shown: str) -> None:
    sign = Sign(candidates=(Candidate(glyph="𒀀", probability=confidence),), confidence=confidence, damage=damage)
    assert show(piece, sign, CONFIG) == shown


def test_a_folder_goes_on_past_a_bad_file(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = KnownEngine(boxes=row(40, 60, 105), probabilities=[0.9, 0.9], classes=[0, 2])
    monkeypatch.setattr(folder, "load_engine", lambda _: engine)
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "c.png"):
        (photos / name).write_bytes(photo.read_bytes())
    (photos / "b.png").write_bytes(photo.read_bytes()[:200])
    outcome = folder.read_photographs(photos, tmp_path / "out", CONFIG)
    assert [p.name for p in outcome.done] == ["a.png", "c.png"]
    assert [p.name for p, _ in outcome.failed] == ["b.png"]
    shown = capsys.readouterr()
    assert "1 of 3 were not read" in shown.err
    assert "damaged" in shown.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]
    assert "s0-s1" in (tmp_path / "out" / "a.png" / "tablet.txt").read_text(encoding="utf-8")


def test_results_are_not_read_as_photographs_and_names_are_no_markup(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "load_engine", lambda _: KnownEngine(row(40, 60), [0.9], [0]))
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.png").write_bytes(photo.read_bytes())
    (photos / "[bold].png").write_bytes(b"no picture")
    for _ in range(2):
        assert len(folder.read_photographs(photos, photos / "out", CONFIG).done) == 1
    assert "[bold].png" in capsys.readouterr().err
    with pytest.raises(ImageError, match="cannot go where the photographs are"):
        folder.read_photographs(photos, photos, CONFIG)


def test_results_of_another_photograph_are_replaced_only_on_request(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "load_engine", lambda _: KnownEngine(row(40, 60), [0.9], [0]))
    out, other = tmp_path / "out", tmp_path / "other.png"
    other.write_bytes(photo.read_bytes())
    for _ in range(2):  # the same photograph may be read again
        folder.read_photographs(photo, out, CONFIG)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(FileExistsError, match=r"holds the results of tablet\.png, not of other\.png; .*--overwrite"):
        folder.read_photographs(other, out, CONFIG)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    folder.read_photographs(other, out, CONFIG, overwrite=True)
    assert json.loads((out / "tablet.json").read_text(encoding="utf-8"))["image"] == "other.png"
    (out / "tablet.json").write_text("[]", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds the results of something else"):
        folder.read_photographs(other, out, CONFIG)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "load_engine", lambda _: KnownEngine([], [], []))
    with pytest.raises(FileNotFoundError, match="no such photograph"):
        folder.read_photographs(tmp_path / "absent.jpg", None, CONFIG)
    with pytest.raises(ImageError, match="no pictures in this folder"):
        folder.read_photographs(tmp_path, None, CONFIG)
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(ImageError, match="0 bytes"):
        folder.read_photographs(tmp_path / "empty.jpg", None, CONFIG)


def test_views_of_the_edges_stand_behind_the_faces_and_out_of_the_running_text() -> None:
    faces = [Face(name=n, lines=(Line(label="1", text=n),)) for n in ("obverse", "bottom", "reverse", "left")]
    tablet = Tablet(identifier="T", width=9, height=9, faces=tuple(set_aside(faces)))
    assert [(f.name, f.aside) for f in tablet.faces] == [
        ("obverse", False),
        ("reverse", False),
        ("bottom", True),
        ("left", True),
    ]
    assert [line.text for line in tablet.text()] == ["obverse", "reverse"]


def test_an_edge_photographed_alone_is_the_text() -> None:
    faces = [Face(name="left", lines=(Line(label="1", text="x"),))]
    assert set_aside(faces) == faces


def test_results_may_go_to_a_folder_above_the_photographs(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = photo.parent / "photographs"
    inner.mkdir()
    photo.rename(inner / photo.name)
    monkeypatch.setattr(folder, "load_engine", lambda _: KnownEngine([], [], []))
    assert len(folder.read_photographs(inner, photo.parent, CONFIG).done) == 1
    assert (photo.parent / photo.name / "tablet.json").exists()


def composite(photo: Path) -> KnownEngine:
    """A photograph of a face with an edge beside it, and a sign on each."""
    pixels = np.zeros((400, 900, 3), np.uint8)
    pixels[20:180, 50:500] = pixels[220:380, 50:500] = pixels[20:180, 560:660] = 150
    Image.fromarray(pixels).save(photo)
    boxes = [*row(100, 80, 150), *row(300, 80), *row(100, 590)]
    return KnownEngine(boxes=boxes, probabilities=[0.9] * 4, classes=[0] * 4)


def test_a_find_on_an_edge_counts_by_its_weight(photo: Path) -> None:
    def found(**settings: float) -> list[float]:
        config = CONFIG.model_copy(update=settings)
        reading = read_photograph(photo, composite(photo), config)  # type: ignore[arg-type]
        return [s.found for f in reading.tablet.faces for line in f.lines for s in line.signs]

    assert found(edge_weight=0.5) == [1, 1, 1, 0.5]
    assert found(edge_weight=0.2) == [1, 1, 1]  # below the threshold of 0.3


def test_edges_are_text_where_that_is_asked_for(photo: Path) -> None:
    def running_text(edges: str) -> int:
        config = CONFIG.model_copy(update={"edges": edges})
        return len(list(read_photograph(photo, composite(photo), config).tablet.text()))  # type: ignore[arg-type]

    assert (running_text("aside"), running_text("text")) == (2, 3)
