"""`dubsar curve` and `dubsar recipes`: several configs, the same seeds, one table."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, DetectConfig
from dubsar.configs.variants import load_variants
from dubsar.pipelines import cli
from dubsar.pipelines.parity.arms import Arm, arm_file, train_arm
from dubsar.pipelines.parity.result import Curve
from dubsar.pipelines.parity.tallies import TALLIES, Tally
from dubsar.pipelines.stages import classify
from dubsar.pipelines.trials.curve import draw_learning_curve, learning_curve
from dubsar.pipelines.trials.recipes import measure, try_recipes
from dubsar.pipelines.trials.seeded import CropShelf, train_seeds

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug"


def config(*overrides: str) -> ClassifyConfig:
    few = ("trainer.max_steps=2", "data.limit=40", *overrides)
    return load(DEBUG / "classify.yaml", ClassifyConfig, few)  # type: ignore[no-any-return]


def fails(*_: Any, **__: Any) -> None:
    raise AssertionError("done again")


def an_arm(right: list[float], seed: int, rate: float = 4.0) -> Arm:
    ones = np.ones(len(right))
    tablets = np.array([f"P{n % 3}" for n in range(len(right))])
    values = np.array(right)
    tally = Tally(tablets, {"top1": values, "top5": ones}, {"top1": ones, "top5": ones}, {})
    return Arm(Curve("a", seed, [1, 2], [1.0, 1.0], rate, {}, "", ""), tally, [])


@pytest.mark.data
def test_a_curve_has_a_point_for_each_share_and_trains_nothing_twice(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads: list[str] = []
    whole = classify.prepare
    monkeypatch.setattr(classify, "prepare", lambda c, root: reads.append("once") or whole(c, root))
    found = learning_curve(config(), [1.0, 0.25], tmp_path, seeds=2)
    assert reads == ["once"]  # two shares, two seeds, one look at the photographs
    assert list(found) == [0.25, 1.0]
    printed = capsys.readouterr().out
    assert "10 training crops" in printed
    assert "40 training crops" in printed
    written = json.loads((tmp_path / "curve.json").read_text())
    assert [row["crops"] for row in written["shares"]] == [10, 40]
    for row in written["shares"]:
        scores = [s["top1"] for s in row["scores"]]
        assert row["top1"]["mean"] == pytest.approx(np.mean(scores))
        assert row["top1"]["low"] <= row["top1"]["mean"] <= row["top1"]["high"]
    assert Image.open(tmp_path / "curve.png").width > 300
    monkeypatch.setattr(classify, "build", fails)
    monkeypatch.setattr(classify, "prepare", fails)
    assert learning_curve(config(), [0.25, 1.0], tmp_path, seeds=2) == found


@pytest.mark.data
def test_crops_are_read_anew_only_where_they_are_cut_otherwise(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, reads = CropShelf(), []
    whole = classify.prepare
    monkeypatch.setattr(classify, "prepare", lambda c, root: reads.append(c.data.crop_px) or whole(c, root))
    few = config("data.label_fraction=0.5")
    train, dev = shelf.take(few)
    alone, _ = whole(few, data_root)
    assert np.array_equal(train.pixels_NSS3, alone.pixels_NSS3)
    assert (len(train.classes_N), len(dev.classes_N)) == (20, 40)
    shelf.take(config("data.sampler=balanced", "data.synthetic_fraction=0.5", "trainer.seed=3"))
    assert reads == [32]
    shelf.take(config("data.crop_px=24"))
    assert reads == [32, 24]


@pytest.mark.data
def test_variants_are_tabulated_against_the_first(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    base = (DEBUG / "classify.yaml").as_posix()
    file.write_text(
        f"base: {base}\nsettings: [trainer.max_steps=2, data.limit=40]\n"
        'variants:\n  full: []\n  ema: ["efficiency.ema={decay: 0.5}"]\n  mixup: [model.mixup=0.2]\n'
    )
    configs, folder = load_variants(file, "classify"), tmp_path / "out"
    trials = try_recipes(configs, folder, seeds=2)
    printed = capsys.readouterr().out
    page = (folder / "recipes.html").read_text(encoding="utf-8")
    written = json.loads((folder / "recipes.json").read_text())
    assert list(trials) == list(written["variants"]) == ["full", "ema", "mixup"]
    assert (trials["full"].gains, trials["full"].p) == ({}, {})
    assert set(trials["ema"].gains) == {"top1", "top5"}
    assert all(t.seconds > 0 and t.crops_per_second > 0 for t in trials.values())
    for name, trial in trials.items():
        assert re.search(rf"{name} .*{trial.scores['top1']:.2f}", printed)
        assert f"<td>{name}</td><td>{trial.scores['top1']:.2f}</td>" in page
    assert "<td>model.mixup=0.2</td>" in page
    assert "what the others are measured against" in page
    monkeypatch.setattr(classify, "build", fails)
    assert try_recipes(configs, folder, seeds=2) == trials


@pytest.mark.data
def test_a_variant_with_prototypes_is_scored_with_them(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[bool] = []
    tally = TALLIES["classify"]
    monkeypatch.setitem(
        TALLIES, "classify", lambda s, stream: scored.append(s.network.prototypes is not None) or tally(s, stream)
    )
    train_arm(config("model.prototypes={weight: 1}"), "prototypes", tmp_path)
    assert scored == [True]


def test_an_arm_is_another_one_where_a_file_that_its_config_names_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    teacher = config("model.distill={weight: 0.5}", f"model.teacher={run}")
    absent = arm_file(teacher, "one", tmp_path)
    assert absent == arm_file(teacher, "one", tmp_path)
    found = {absent}
    for content in (b"one", b"other"):
        (run / "classify.safetensors").write_bytes(content)
        found |= {arm_file(teacher, "one", tmp_path), arm_file(teacher, "one", tmp_path)}
    assert len(found) == 3
    table = config("data.more_signs=" + str(tmp_path / "more.tsv"))
    before = arm_file(table, "one", tmp_path)
    (tmp_path / "more.tsv").write_text("x", encoding="utf-8")
    assert arm_file(table, "one", tmp_path) != before


def test_gains_are_adjusted_for_the_number_of_variants() -> None:
    rng = np.random.default_rng(0)
    arms: dict[str, list[Arm]] = {"full": [], "better": [], "same": []}
    for seed in range(4):
        base = (rng.random(300) < 0.5).astype(float)
        better = np.maximum(base, rng.random(300) < 0.3).astype(float)
        arms["full"].append(an_arm(base.tolist(), seed))
        arms["better"].append(an_arm(better.tolist(), seed, rate=2.0))
        arms["same"].append(an_arm(base.tolist(), seed))
    trials = measure(dict.fromkeys(arms, config("data.batch_size=8", "trainer.max_steps=6")), arms)
    gain = trials["better"].gains["top1"]
    assert gain.mean == pytest.approx(trials["better"].scores["top1"] - trials["full"].scores["top1"])
    assert gain.low > 0
    assert trials["better"].p["top1"] < 0.05
    assert (trials["same"].gains["top1"].mean, trials["same"].p["top1"]) == (0.0, 1.0)
    assert (trials["better"].seconds, trials["better"].crops_per_second) == (3.0, 16.0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ([0.0], "--fractions: 0 is no share of the labels; expected numbers above 0, at most 1"),
        ([0.5, 1.5], "--fractions: 1.5 is no share"),
        ([float("nan")], "--fractions: nan is no share"),
        ([], "--fractions is '', expected one share or more"),
        ([0.5, 0.5], "--fractions is '0.5,0.5', expected one share or more, each once"),
    ],
)
def test_shares_that_are_none_are_refused(tmp_path: Path, fractions: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        learning_curve(config(), fractions, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.data
def test_what_cannot_be_tried_is_refused(tmp_path: Path, data_root: Path) -> None:
    with pytest.raises(ValueError, match="one seed shows no spread"):
        train_seeds({"a": config()}, tmp_path, 1)
    with pytest.raises(ValueError, match="a is a config of detect, expected classify"):
        train_seeds({"a": load(DEBUG / "detect.yaml", DetectConfig)}, tmp_path, 2)
    with pytest.raises(ValueError, match="lies in the data folder"):
        train_seeds({"a": config()}, data_root / "runs", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curve", "detect"], "`dubsar curve` knows classify alone, not detect"),
        (["curve", "classify", "--fractions", "half"], "--fractions is 'half', expected numbers such as 0.1,0.3,1"),
        (["recipes", "detect", "file.yaml"], "`dubsar recipes` knows classify alone, not detect"),
        (["recipes", "classify", "absent.yaml"], "absent.yaml: no such config file"),
    ],
)
def test_the_command_line_says_what_is_wrong(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith(message)


def test_a_curve_of_one_share_can_be_drawn() -> None:
    point = {"mean": 50.0, "low": 40.0, "high": 60.0}
    picture = draw_learning_curve([{"fraction": 1.0, "crops": 100, "top1": point, "top5": point}])
    assert np.asarray(Image.open(io.BytesIO(picture)).convert("L")).std() > 5
