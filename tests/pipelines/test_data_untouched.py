"""The data folder is never written to: not by what reads it, and not by results that are sent there."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

import dubsar.datasets
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.sources import require_outside_data
from dubsar.datasets.tablet import Tablet
from dubsar.models.checkpoint import load_model, shipped
from dubsar.pipelines.cli import main

SAMPLE = Path(next(iter(dubsar.datasets.__path__))) / "sample"
PARTS = {"train": (0, 650, 1000, 1300), "dev": (0, 0, 1000, 350)}  # of the sample tablet: x0, y0, x1, y1 in px


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with two photographs, made from the sample tablet."""
    folder = tmp_path / "data" / "tablet-signs"
    (folder / "images" / "compvis").mkdir(parents=True)
    (folder / "text").mkdir()
    images = ["file\tsource\tobject_id\tcollection\twidth\theight\tn_boxes\tsplit\tbytes\tsha256"]
    signs = ["file\tx\ty\tw\th\tsource\tlabel_raw\tmzl\tsign_name\tglyph\tview\tflag\tsplit"]
    tablet = Tablet.from_dict(json.loads((SAMPLE / "tablet.json").read_text(encoding="utf-8")))
    for split, (left, top, right, bottom) in PARTS.items():
        file = f"compvis/{split}.jpg"
        Image.open(SAMPLE / "tablet.jpg").crop((left, top, right, bottom)).save(folder / "images" / file, quality=95)
        data = (folder / "images" / file).read_bytes()
        inside = [(s, s.box) for s in tablet.signs() if s.box and top <= s.box[1] and s.box[3] <= bottom]
        sha = hashlib.sha256(data).hexdigest()
        size = f"{right - left}\t{bottom - top}"
        images.append(f"{file}\tcompvis\t{split}\t\t{size}\t{len(inside)}\t{split}\t{len(data)}\t{sha}")
        for sign, (x0, y0, x1, y1) in inside:
            box = f"{x0}\t{y0 - top}\t{x1 - x0}\t{y1 - y0}"
            signs.append(f"{file}\t{box}\tcompvis\tx\t\tx\t{sign.glyph}\t\t\t{split}")
        (folder / "text" / f"{split}.atf").write_text("&P1 = K.1\n@tablet\n@obverse\n1. a-na\n", encoding="utf-8")
    classes = ["class_id\tglyph\tsign_name\tmzl\tn_total"]
    inventory = Inventory.from_list(load_model(shipped("classify"), "classify").card["inventory"])
    classes += [f"{number}\t{c.glyph}\t{c.name}\t{c.mzl}\t1" for number, c in enumerate(inventory.classes)]
    for name, rows in (("images", images), ("signs", signs), ("classes", classes)):
        (folder / f"{name}.tsv").write_text("\n".join([*rows, ""]), encoding="utf-8")
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def hashes(root: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dubsar", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_evaluating_and_checking_change_no_file(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(root)
    assert len(before) == 7
    for what in ("read", "classify"):
        scores = tmp_path / f"{what}.json"
        assert run(monkeypatch, "evaluate", what, "--split", "dev", "--device", "cpu", "-o", str(scores)) == 0
        assert hashes(root) == before
        written = json.loads(scores.read_text(encoding="utf-8"))
        assert written["hardware"].endswith("CPU cores")
    assert json.loads((tmp_path / "read.json").read_text(encoding="utf-8"))["scores"]["read"]["sign_recall50"] > 50
    assert run(monkeypatch, "data", "check", str(root)) in (0, 1)
    assert hashes(root) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", str(SAMPLE / "tablet.jpg"), "-o"),
        ("evaluate", "read", "-o"),
        ("evaluate", "classify", "-o"),
        ("synth", "1", "-o"),
        ("export", "detect", "-o"),
        ("train", "classify", "--run"),
    ],
    ids=lambda a: " ".join(a[:2]) if a[0] == "evaluate" else a[0],
)
def test_results_inside_the_data_folder_are_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    before = hashes(root)
    inside = root / "made" / "here"
    assert run(monkeypatch, *arguments, str(inside)) == 2
    option = "--run" if arguments[0] == "train" else "--out"
    assert capfd.readouterr().err == (
        f"dubsar: {option} {inside}: lies in the data folder {root}, which is never written to; "
        "name a place outside it\n"
    )
    assert hashes(root) == before
    assert not inside.parent.exists()


def test_the_way_in_is_followed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(root)
    for inside in (root, root / "a", tmp_path / "link" / "a", tmp_path / "x" / ".." / "data"):
        with pytest.raises(ValueError, match="lies in the data folder"):
            require_outside_data(inside, "--out")
    monkeypatch.chdir(root)
    with pytest.raises(ValueError, match="--run runs: lies in the data folder"):
        require_outside_data(Path("runs"), "--run")
    for outside in (tmp_path, tmp_path / "data2", Path("..") / "out"):
        require_outside_data(outside, "--out")


@pytest.mark.slow
def test_a_damaged_photograph_is_scored_as_one_on_which_nothing_was_found(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = root / "tablet-signs" / "images" / "compvis" / "dev.jpg"
    photo.write_bytes(photo.read_bytes()[:9000])
    scores = tmp_path / "read.json"
    assert run(monkeypatch, "evaluate", "read", "--split", "dev", "--device", "cpu", "-o", str(scores)) == 0
    assert "counted as all deletions" in capsys.readouterr().out
    read = json.loads(scores.read_text(encoding="utf-8"))["scores"]["read"]
    assert (read["cer"], read["sign_recall50"], read["ap50 class-agnostic, compvis"]) == (100, 0, 0)
