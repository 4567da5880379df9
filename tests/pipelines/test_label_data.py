"""Training, scoring and reloading a classifier on data sets of labels, rendered here: a folder per class, and COCO."""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.datasets.images import ImageError
from dubsar.datasets.photographs import DamagedDataError
from dubsar.datasets.signs import SignSource
from dubsar.datasets.synthetic.glyphs import NOTO, FontError, GlyphFont, find_font
from dubsar.datasets.synthetic.scene import render_sign
from dubsar.models.checkpoint import load_model
from dubsar.pipelines import cli
from dubsar.pipelines.ensembling import ensemble
from dubsar.pipelines.evaluation import evaluate_stage
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import inventory_of, load_classifier
from dubsar.pipelines.ship import fit_temperature, ship
from dubsar.pipelines.stages import classify

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug" / "classify.yaml"
GLYPHS = {"SU": "𒋢", "su": "𒋤", "šu": "𒋗", "ŠU": "𒀀"}
NUMBERS = {"8": "𒀭", "335": "𒄭", "364": "𒀀"}
TABLETS = {"train": ("K1", "K2"), "valid": ("K3",), "test": ("K4",)}
SIDE = 32
SIGN_LIST = (
    "sign_name\tform_of\tglyph\tmzl\thzl\thzl_extra\n"
    "AN\t\t𒀭\t10\t8\t\nHI\t\t𒄭\t631\t335\t\nŠAR₂\t\t𒊹\t632\t335\t\nA\t\t𒀀\t839\t364\t\n"
)


@pytest.fixture(scope="module")
def font() -> Path:
    try:
        return find_font(NOTO)
    except FontError as error:
        pytest.skip(str(error))


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small sign list, and nothing else."""
    folder = tmp_path / "shared" / "sign-list"
    folder.mkdir(parents=True)
    (folder / "signs.tsv").write_text(SIGN_LIST, encoding="utf-8")
    monkeypatch.setenv("DUBSAR_DATA", str(folder.parent))
    return folder.parent


@cache
def render(font: Path, glyph: str, seed: int) -> Any:
    return render_sign(glyph, GlyphFont(font), np.random.default_rng(seed), SIDE, keep_aspect=False)


def folders(root: Path, font: Path, glyphs: dict[str, str]) -> Path:
    for split, tablets in TABLETS.items():
        for label, glyph in glyphs.items():
            for number, tablet in enumerate(tablets):
                path = root / split / label / f"{tablet}_{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(render(font, glyph, number)).save(path)
    return root


def coco(root: Path, font: Path, glyphs: dict[str, str]) -> Path:
    for split, tablets in TABLETS.items():
        folder = root / split
        folder.mkdir(parents=True)
        images, annotations = [], []
        for number, tablet in enumerate(tablets):
            row = np.concatenate([render(font, glyph, number) for glyph in glyphs.values()], axis=1)
            Image.fromarray(row).save(folder / f"{tablet}-0.png")
            images.append({"id": number, "file_name": f"{tablet}-0.png", "width": row.shape[1], "height": SIDE})
            boxes = [
                {"category_id": n, "bbox": [n * SIDE, 0, SIDE, SIDE], "image_id": number} for n in range(len(glyphs))
            ]
            annotations += boxes
        categories = [{"id": n, "name": label} for n, label in enumerate(glyphs)]
        document = {"images": images, "categories": categories, "annotations": annotations}
        (folder / "_annotations.coco.json").write_text(json.dumps(document), encoding="utf-8")
    return root


def dubsar(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dubsar", *arguments])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def settings(root: Path, *overrides: str) -> list[str]:
    return ["data.source=folders", f"data.root={root}", "data.context=0", "trainer.max_steps=3", *overrides]


def build(root: Path, *overrides: str) -> tuple[Any, Any]:
    config = load(DEBUG, STAGES["classify"], tuple(settings(root, *overrides)))
    return classify.build(config, resolve_config(config))


@pytest.mark.parametrize("layout", ["folders", "coco"])
def test_labels_are_learnt_scored_and_loaded_again_by_commands(
    layout: str, tmp_path: Path, shared: Path, font: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = {"folders": folders, "coco": coco}[layout](tmp_path / "crops", font, GLYPHS)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    run = tmp_path / "run"
    train = ["train", "classify", "--config", str(DEBUG), "--run", str(run)]
    assert dubsar(monkeypatch, *train, *settings(root, f"data.source={layout}")) == 0
    network, config, file = load_classifier(run / "classify")
    inventory = inventory_of(file, run)
    assert [(c.name, c.glyph) for c in inventory.classes] == [(label, label) for label in sorted(GLYPHS)]
    assert config.data.source == layout
    assert network.net.num_classes == 4
    assert str(root) in file.card["licence"]
    assert "British Museum" not in file.card["licence"]
    out = tmp_path / "scores.json"
    score = ["evaluate", "classify", "--weights", str(run / "classify"), "--split", "test", "-o", str(out)]
    assert dubsar(monkeypatch, *score) == 0
    scores = json.loads(out.read_text())["scores"]
    assert scores["three margins, 4 classes"]["top5"] == 100.0
    assert fit_temperature(run / "classify") > 0
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
    monkeypatch.setattr("dubsar.pipelines.ship.shipped", lambda name: tmp_path / "shipped" / name)
    ship("classify", run)
    assert load_model(tmp_path / "shipped" / "classify", "classify").card["inventory_hash"] == inventory.hash
    if layout == "folders":
        (root / "test" / "SU").rename(root / "test" / "AN")
        with pytest.raises(ValueError, match="label 'AN' is not in sign inventory"):
            evaluate_stage("classify", run / "classify", "test")


def test_classifiers_vote_and_are_compared_on_the_data_set_that_they_know(
    tmp_path: Path, shared: Path, font: Path, a_member: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folders(tmp_path / "crops", font, GLYPHS)
    for picture in sorted(root.glob("valid/*/K3_0.png")):
        Image.open(picture).rotate(90).save(picture.with_name("K5_0.png"))
    signs = SignSource(root, "folders").inventory()
    here = ["data.source=folders", f"data.root={root}"]
    one, two = (
        a_member(tmp_path / f"run{n}", *here, f"data.crop_px={32 + 16 * n}", signs=signs, seed=n) for n in (0, 1)
    )
    assert dubsar(monkeypatch, "ensemble", "classify", str(one), str(two), "-o", str(tmp_path / "both")) == 0
    margins = ["--margin", "top1=100", "--margin", "top5=100", "-o", str(tmp_path / "p")]
    judged = ["parity", "classify", "--reference", str(tmp_path / "both"), "--candidate", str(one), "--split", "dev"]
    assert dubsar(monkeypatch, *judged, *margins) in {0, 10}
    other = folders(tmp_path / "other", font, GLYPHS)
    elsewhere = a_member(tmp_path / "elsewhere", here[0], f"data.root={other}", signs=signs, seed=2)
    with pytest.raises(ValueError, match=r"elsewhere: trained on the folders signs in .*other, but .*run0 on .*crops"):
        ensemble([one, elsewhere], tmp_path / "mixed")


def test_labels_as_hzl_numbers_are_rendered_where_they_are_one_sign(tmp_path: Path, shared: Path, font: Path) -> None:
    root = folders(tmp_path / "crops", font, NUMBERS)
    options = ("data.catalogue=HZL", "data.synthetic_fraction=0.5", f"data.font={font}")
    system, stream = build(root, *options)
    glyphs = [stream.classes[c].glyph for c, _ in stream.covered]
    assert glyphs == ["𒀀", "𒀭"]  # 335 is ḪI and ŠÁR
    assert {own.path for _, own in stream.covered} == {font}
    assert stream.batch(0)["classes_B"].max() < 3
    assert stream.counts() == {"335": 2, "364": 2, "8": 2}
    assert sorted(set(system.dev.tablets_N)) == ["K3"]


def test_latin_labels_are_never_rendered_with_the_latin_letters_of_a_font(
    tmp_path: Path, shared: Path, font: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GlyphFont, "covers", lambda self, glyph: True)
    root = folders(tmp_path / "crops", font, GLYPHS)
    assert build(root, "data.synthetic_fraction=0.5", f"data.font={font}")[1].covered == []


def test_a_font_that_is_none_is_refused(tmp_path: Path, shared: Path, font: Path) -> None:
    root = folders(tmp_path / "crops", font, GLYPHS)
    with pytest.raises(FontError, match=r"none\.ttf: no readable font .* expected a \.ttf, \.otf or \.woff file"):
        build(root, "data.synthetic_fraction=0.5", "data.font=none.ttf")


def test_damaged_pictures_are_skipped_in_training_alone(
    tmp_path: Path, shared: Path, font: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folders(tmp_path / "crops", font, GLYPHS)
    (root / "train" / "SU" / "K1_0.png").write_bytes(b"no picture")
    assert len(build(root)[1].crops.classes_N) == 7
    assert "skipped (1 of at most 10): " in capsys.readouterr().err
    with pytest.raises(DamagedDataError, match=r"1 training pictures cannot be read, more than data\.max_bad=0 allows"):
        build(root, "data.max_bad=0")
    (root / "valid" / "SU" / "K3_0.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"valid/SU/K3_0\.png: not a picture in a known format"):
        build(root)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.root=nowhere",), "dubsar: nowhere: no such folder; give the data set's folder as data.root"),
        (("data.catalogue=MZL",), "sign-list/signs.tsv: no such file or folder"),
    ],
)
def test_what_is_not_there_is_one_line_and_status_2(
    overrides: tuple[str, ...],
    message: str,
    tmp_path: Path,
    font: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "none"))
    root, run = folders(tmp_path / "crops", font, GLYPHS), tmp_path / "run"
    train = ["train", "classify", "--config", str(DEBUG), "--run", str(run), *settings(root, *overrides)]
    assert dubsar(monkeypatch, *train) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not run.exists()


def test_a_run_folder_in_the_data_set_is_refused(
    tmp_path: Path, shared: Path, font: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = folders(tmp_path / "crops", font, GLYPHS)
    train = ["train", "classify", "--config", str(DEBUG), "--run", str(root / "run"), *settings(root)]
    assert dubsar(monkeypatch, *train) == 2
    assert "lies in the data folder" in capsys.readouterr().err


def test_the_map_is_printed_and_written_and_a_data_set_is_looked_through(
    tmp_path: Path, shared: Path, font: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shared / "sign-list" / "hzl_readings.tsv").write_text("hzl\n8\n9\n")
    root, table = folders(tmp_path / "crops", font, {**NUMBERS, "KUR": "𒆳"}), tmp_path / "hzl.tsv"
    assert dubsar(monkeypatch, "data", "labels", "--root", str(root), "-o", str(table)) == 0
    out = capsys.readouterr().out
    assert "HZL numbers: 4  with one sign in Unicode: 2  with several: 1  with none: 1" in out
    assert f"{root}: 4 labels, 2 without a sure code point: 335, KUR\n" in out
    assert "label 'KUR' has no sure glyph: the sign list has no HZL KUR\n" in out
    assert "train: 8 signs of 4 labels\ndev: 4 signs of 4 labels\ntest: 4 signs of 4 labels\n" in out
    assert table.read_text(encoding="utf-8").splitlines()[1] == "8\t8\t\tAN\t𒀭\tU+1202D\t10\t"
    assert dubsar(monkeypatch, "data", "labels", "-o", str(shared / "x.tsv")) == 2
    assert "is never written to" in capsys.readouterr().err
