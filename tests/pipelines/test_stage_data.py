"""What the picture stages do with faulty data: skip up to a limit, drop on request, else refuse; never in dev."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.datasets.formats.tablet_signs import IMAGE_COLUMNS, SIGN_COLUMNS
from dubsar.datasets.images import ImageError
from dubsar.datasets.inventory import InventoryMismatch, read_inventory
from dubsar.datasets.photographs import DamagedDataError
from dubsar.datasets.synthetic.glyphs import FontError, GlyphFont, find_font
from dubsar.models.checkpoint import load_model, save_model
from dubsar.pipelines import cli, signs
from dubsar.pipelines.evaluation import evaluate_stage
from dubsar.pipelines.launch import describe
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import build_classifier, build_detector, load_classifier, load_detector
from dubsar.pipelines.ship import fit_temperature, ship
from dubsar.pipelines.stages import classify, detect

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"
MODULES = {"classify": classify, "detect": detect}
SPLITS = {"0.jpg": "train", "1.jpg": "train", "2.jpg": "train", "3.jpg": "dev"}
stages = pytest.mark.parametrize("stage", sorted(MODULES))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of three training photographs and one of dev, two signs on each."""
    root = tmp_path / "data"
    folder = root / "tablet-signs"
    (folder / "images").mkdir(parents=True)
    images, signs = ["\t".join(IMAGE_COLUMNS)], ["\t".join(SIGN_COLUMNS)]
    for file, split in SPLITS.items():
        Image.effect_noise((160, 120), 60).convert("RGB").save(folder / "images" / file)
        row = {"file": file, "source": "ebl", "object_id": file, "width": "160", "height": "120", "split": split}
        images.append("\t".join(row.get(c, "") for c in IMAGE_COLUMNS))
        for x, name, glyph in (("10", "A", "𒀀"), ("70", "NA", "𒈾")):
            row = {"file": file, "x": x, "y": "20", "w": "40", "h": "40", "sign_name": name, "glyph": glyph}
            signs.append("\t".join((row | {"split": split}).get(c, "") for c in SIGN_COLUMNS))
    (folder / "images.tsv").write_text("\n".join(images) + "\n", encoding="utf-8")
    (folder / "signs.tsv").write_text("\n".join(signs) + "\n", encoding="utf-8")
    (folder / "classes.tsv").write_text("class_id\tglyph\tsign_name\tmzl\n0\t𒀀\tA\t839\n1\t𒈾\tNA\t110\n")
    monkeypatch.setenv("DUBSAR_DATA", str(root))
    return root


def truncate(root: Path, *files: str) -> None:
    for file in files:
        path = root / "tablet-signs" / "images" / file
        path.write_bytes(path.read_bytes()[:-1500])


def rename_sign(root: Path, file: str) -> None:
    """Turn the second sign of a photograph into one that the inventory lacks."""
    path = root / "tablet-signs" / "signs.tsv"
    rows = path.read_text(encoding="utf-8").splitlines()
    changed = [r.replace("𒈾", "𒋗") if r.startswith(file) else r for r in rows]
    path.write_text("\n".join(changed) + "\n", encoding="utf-8")


def config(stage: str, *overrides: str) -> Any:
    return load(DEBUG / f"{stage}.yaml", STAGES[stage], ("data.limit=0", *overrides))


def build(stage: str, *overrides: str) -> tuple[Any, Any]:
    settings = config(stage, *overrides)
    return MODULES[stage].build(settings, resolve_config(settings))


def signs_learnt(stage: str, stream: Any) -> int:
    return len(stream.crops.classes_N) if stage == "classify" else sum(len(p.boxes_N4) for p in stream.real)


@stages
def test_damaged_training_pictures_are_skipped_up_to_max_bad(
    stage: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert signs_learnt(stage, build(stage)[1]) == 6
    truncate(root, "0.jpg", "2.jpg")
    assert signs_learnt(stage, build(stage)[1]) == 2
    err = capsys.readouterr().err
    assert "skipped (1 of at most 10): " in err
    assert all(f"images/{file}: the picture is damaged" in err for file in ("0.jpg", "2.jpg"))
    with pytest.raises(DamagedDataError, match=r"^2 training pictures .* data\.max_bad=1 allows: .*0\.jpg, .*2\.jpg;"):
        build(stage, "data.max_bad=1")


@stages
def test_without_a_whole_picture_there_is_nothing_to_train_on(stage: str, root: Path) -> None:
    truncate(root, "0.jpg", "1.jpg", "2.jpg")
    with pytest.raises(
        ValueError, match="tablet-signs: no training photograph with a box is left; `dubsar data check`"
    ):
        build(stage)


@stages
def test_a_damaged_dev_picture_is_an_error_before_training_starts(stage: str, root: Path) -> None:
    truncate(root, "3.jpg")
    with pytest.raises(ImageError, match=r"3\.jpg: the picture is damaged"):
        build(stage)


@pytest.mark.parametrize(
    ("stage", "options"), [("classify", ()), ("detect", ("model.classes=inventory",))], ids=["classify", "detect"]
)
def test_a_sign_without_a_class_is_refused_or_dropped_and_counted(
    stage: str, options: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename_sign(root, "1.jpg")
    with pytest.raises(ValueError, match=r"signs\.tsv:5: sign '𒋗' \(NA\) is not in sign inventory .* ignore_unknown"):
        build(stage, *options)
    assert signs_learnt(stage, build(stage, *options, "data.ignore_unknown=true")[1]) == 5
    assert (
        "train: 1 of 6 boxes dropped by data.ignore_unknown, 0 of 3 photographs are without" in capsys.readouterr().out
    )


@stages
def test_a_dev_box_that_cannot_be_used_is_refused_whatever_the_setting(stage: str, root: Path, tmp_path: Path) -> None:
    path = root / "tablet-signs" / "signs.tsv"
    whole = path.read_text(encoding="utf-8")
    spoilt = [r.replace("\t70\t", "\t-7\t") if r.startswith("3.jpg") else r for r in whole.splitlines()]
    path.write_text("\n".join(spoilt) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"signs\.tsv:9: .*; correct or flag the row$"):
        build(stage, "data.ignore_unknown=true")
    settings, inventory = config(stage, "data.ignore_unknown=true"), read_inventory(root)
    card = {"stage": stage, "config": settings.model_dump(mode="json"), "inventory": inventory.to_list()}
    state = {"classify": build_classifier, "detect": build_detector}[stage](settings, len(inventory)).state_dict()
    save_model(tmp_path / stage, state, card | {"inventory_hash": inventory.hash})
    with pytest.raises(ValueError, match=r"signs\.tsv:9: .*; correct or flag the row$"):
        evaluate_stage(stage, tmp_path / stage, "dev")
    if stage == "classify":
        with pytest.raises(ValueError, match=r"signs\.tsv:9: .*; correct or flag the row$"):
            fit_temperature(tmp_path / stage)
    spoilt = [r.replace("\t70\t", "\t-7\t") if r.startswith("1.jpg") else r for r in whole.splitlines()]
    path.write_text("\n".join(spoilt) + "\n", encoding="utf-8")  # a training row does not spoil dev
    assert signs_learnt(stage, build(stage, "data.ignore_unknown=true")[1]) == 5


def test_a_dry_run_counts_the_training_set(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rename_sign(root, "1.jpg")
    describe(config("classify", "data.ignore_unknown=true"))
    out = capsys.readouterr().out
    assert "training set: A 3, NA 2\n" in out
    assert "MiB (activations, which grow with the batch, come on top)\n" in out
    assert build("detect")[1].counts() == {"sign": 6}
    assert build("detect", "model.classes=inventory", "data.ignore_unknown=true")[1].counts() == {"A": 3, "NA": 2}


def test_a_detector_that_names_no_sign_needs_no_class(root: Path) -> None:
    rename_sign(root, "1.jpg")
    assert signs_learnt("detect", build("detect")[1]) == 6


@stages
def test_an_old_run_is_kept_where_the_new_one_cannot_start(
    stage: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"stage: {stage}\n")
    (run / "levers.json").write_text("[]")
    (run / "weights").write_text("hours of work")
    truncate(root, "0.jpg")
    arguments = ["train", stage, "--config", str(DEBUG / f"{stage}.yaml"), "--run", str(run), "--overwrite"]
    monkeypatch.setattr("sys.argv", ["dubsar", *arguments, "data.max_bad=0"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    err = capfd.readouterr().err
    assert err.startswith("dubsar: 1 training pictures cannot be read, more than data.max_bad=0 allows: ")
    assert len(err.splitlines()) == 1
    assert {p.name: p.read_text() for p in run.iterdir()} == {
        "config.yaml": f"stage: {stage}\n",
        "levers.json": "[]",
        "weights": "hours of work",
    }


# --- the font of rendered crops


def test_crops_are_rendered_in_assyrian_and_another_font_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        path = find_font((("NotoSansCuneiform-Regular.ttf",), ""))
    except FontError as error:
        pytest.skip(str(error))
    noto, assyrian = GlyphFont(path, "noto"), GlyphFont(path, "assyrian")
    for fonts, name in (((noto, assyrian), "assyrian"), ((noto,), "noto")):
        monkeypatch.setattr(signs, "available_fonts", lambda _, fonts=fonts: fonts)
        stream = build("classify", "data.synthetic_fraction=0.5")[1]
        assert {font.name for _, font in stream.covered} == {name}
        err = capsys.readouterr().err
        warning = (
            "data.synthetic_fraction: signs are rendered with the shapes of noto, not Neo-Assyrian ones: the font "
        )
        assert (err.startswith(warning), len(err.splitlines())) == ((True, 1) if name == "noto" else (False, 0))


# --- evaluation


def test_a_detector_of_another_inventory_is_refused_with_both_hashes(root: Path, tmp_path: Path) -> None:
    settings, inventory = config("detect", "model.classes=inventory"), read_inventory(root)
    card = {"stage": "detect", "config": settings.model_dump(mode="json"), "inventory": inventory.to_list()}
    state = build_detector(settings, len(inventory)).state_dict()
    save_model(tmp_path / "detect", state, card | {"inventory_hash": "0123456789abcdef"})
    with pytest.raises(InventoryMismatch, match=rf"0123456789abcdef, but the one in use is {inventory.hash}"):
        evaluate_stage("detect", tmp_path / "detect", "dev")
    save_model(tmp_path / "detect", state, card | {"inventory_hash": inventory.hash})
    assert evaluate_stage("detect", tmp_path / "detect", "dev")["ebl"]["photographs"] == 1
    (root / "tablet-signs" / "classes.tsv").write_text("class_id\tglyph\tsign_name\tmzl\n0\t𒈾\tNA\t110\n1\t𒀀\tA\t839\n")
    now = read_inventory(root).hash
    with pytest.raises(InventoryMismatch, match=rf"detect: made for sign inventory {inventory.hash}, but .* is {now}"):
        evaluate_stage("detect", tmp_path / "detect", "dev")


@stages
def test_weights_from_before_these_settings_still_load_and_ship(
    stage: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, inventory = config(stage), read_inventory(root)
    old = settings.model_dump(mode="json")
    for key in ("max_bad", "ignore_unknown"):
        del old["data"][key]
    rows = [row[:3] for row in inventory.to_list()]  # glyph, name, MZL
    card = {"stage": stage, "config": old, "inventory": rows, "inventory_hash": inventory.hash}
    state = {"classify": build_classifier, "detect": build_detector}[stage](settings, len(inventory)).state_dict()
    save_model(tmp_path / "run" / stage, state, card)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.0}\n')
    assert {"classify": load_classifier, "detect": load_detector}[stage](tmp_path / "run" / stage)[1] == settings
    monkeypatch.setattr("dubsar.pipelines.ship.shipped", lambda name: tmp_path / "shipped" / name)
    ship(stage, tmp_path / "run")
    shipped = load_model(tmp_path / "shipped" / stage, stage).card
    assert (shipped["inventory"], shipped["inventory_hash"]) == (inventory.to_list(), inventory.hash)
    assert shipped["metrics"]["dev"]
