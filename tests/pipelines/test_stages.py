"""Each stage through the command line for a few steps on real data: the golden loss trace, and a whole run folder.

After a change that is meant to change the losses, write the traces anew and look at the difference::

    DUBSAR_WRITE_GOLDEN=1 pytest tests/pipelines/test_stages.py
"""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES
from dubsar.models.checkpoint import load_model
from dubsar.pipelines.callbacks import read_metrics
from dubsar.pipelines.cli import app, main

TESTS = Path(__file__).resolve().parents[1]
DEBUG = TESTS.parent / "configs" / "debug"
VALIDATED = {
    "pretrain": "val/knn_top1",
    "classify": "val/top1",
    "detect": "val/ap50",
    "transliterate": "val/cer",
}
FEWER = {"pretrain": [], "classify": [], "detect": ["data.limit=1"], "transliterate": []}

pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module", params=sorted(STAGES))
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_root: Path
) -> tuple[str, Path, str]:
    """Train a stage's debug config; gives stage, run folder and what was printed."""
    stage = request.param
    folder = tmp_path_factory.mktemp(stage) / "run"
    arguments = ["train", stage, "--config", str(DEBUG / f"{stage}.yaml"), "--run", str(folder), *FEWER[stage]]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return stage, folder, result.output


def test_the_loss_trace_is_the_golden_one(trained: tuple[str, Path, str]) -> None:
    stage, folder, _ = trained
    trace = [row["train/loss"] for row in read_metrics(folder / "metrics.jsonl") if "train/loss" in row]
    golden = TESTS / "golden" / f"{stage}.json"
    if os.environ.get("DUBSAR_WRITE_GOLDEN"):
        golden.write_text(json.dumps({"train/loss": [round(x, 5) for x in trace]}) + "\n")
    wanted = json.loads(golden.read_text())["train/loss"]
    assert len(trace) == load(DEBUG / f"{stage}.yaml", STAGES[stage]).trainer.max_steps
    assert trace == pytest.approx(wanted, rel=1e-3)


def test_the_run_folder_is_whole(trained: tuple[str, Path, str]) -> None:
    stage, folder, _ = trained
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    events = {n for n in names if n.startswith("tensorboard/events.out.tfevents")}
    assert len(events) == 1
    assert names - events == {
        "config.yaml",
        "levers.json",
        "metrics.jsonl",
        "curves.png",
        "report.html",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "tensorboard/hparams.yaml",
        f"{stage}.safetensors",
        f"{stage}.json",
        *(("data.json",) if stage in {"classify", "detect"} else ()),
        *(("features.png",) if stage == "pretrain" else ()),
    }
    config = load(folder / "config.yaml", STAGES[stage])
    assert config == load(DEBUG / f"{stage}.yaml", STAGES[stage], tuple(FEWER[stage]))


def test_validation_was_logged(trained: tuple[str, Path, str]) -> None:
    stage, folder, _ = trained
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if VALIDATED[stage] in row]
    assert rows
    assert rows[-1]["step"] == load(folder / "config.yaml", STAGES[stage]).trainer.max_steps


def test_the_weights_load_and_say_what_they_are(trained: tuple[str, Path, str]) -> None:
    from dubsar.pipelines.networks import load_byt5, load_classifier, load_detector, load_encoder

    stage, folder, _ = trained
    loaders = {
        "pretrain": load_encoder,
        "classify": load_classifier,
        "detect": load_detector,
        "transliterate": load_byt5,
    }
    network, config, file = loaders[stage](folder / stage)
    assert config == load(folder / "config.yaml", STAGES[stage])
    assert not network.training
    card = load_model(folder / stage, stage).card
    assert card["sha256"] == file.card["sha256"]
    assert set(card["metrics"]) == {"dev"}
    assert card["licence"].startswith("Weights: CC BY")
    assert card["hardware"]
    assert str(Path.home()) not in json.dumps(card)  # no path of this computer


def test_the_report_shows_scores_and_config(trained: tuple[str, Path, str]) -> None:
    _, folder, output = trained
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "trainer:" in page
    assert "kept weights on dev" in output


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_a_dry_run_describes_and_writes_nothing(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_root: Path
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        app,
        ["train", stage, "--config", str(DEBUG / f"{stage}.yaml"), "--dry-run", *FEWER[stage]],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert list(tmp_path.iterdir()) == []
    counted = {
        "pretrain": "training set: photographs ",
        "classify": "training set: ",
        "detect": "training set: sign ",
        "transliterate": "training set: lines ",
    }
    for text in ("max_steps: ", "parameters: ", "MiB (activations", "first batch: ", counted[stage]):
        assert text in result.output
    assert re.search(r"first batch: (?:\w+ \([\d, ]*\) (?:float32|int64|uint8|bool)\s+)+", result.output)


def test_a_run_goes_on_with_resume(tmp_path: Path, data_root: Path) -> None:
    few = ["data.sources=[hittite]", "data.limit=40", "data.val_lines=1", "trainer.val_every_steps=2"]
    start = [
        "train",
        "transliterate",
        "--config",
        str(DEBUG / "transliterate.yaml"),
        "--run",
        str(tmp_path / "run"),
        *few,
    ]
    for options, steps in (((), 2), (("--resume",), 5)):
        result = CliRunner().invoke(app, [*start, f"trainer.max_steps={steps}", *options], catch_exceptions=False)
        assert result.exit_code == 0
        rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
        assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, steps + 1))
    card = load_model(tmp_path / "run" / "transliterate", "transliterate").card
    assert card["config"]["trainer"]["max_steps"] == 5


def test_a_diverged_run_exits_5_and_reports(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    few = ["data.sources=[hittite]", "data.limit=40", "optim.lr=1e30", "optim.warmup_steps=0"]
    start = [
        "train",
        "transliterate",
        "--config",
        str(DEBUG / "transliterate.yaml"),
        "--run",
        str(tmp_path / "run"),
        *few,
    ]
    monkeypatch.setattr("sys.argv", ["dubsar", *start])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 5
    err = capfd.readouterr().err
    assert "gradients are not finite; see" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "nan_report.json").read_text())["step"] >= 1
    assert not (tmp_path / "run" / "transliterate.safetensors").exists()
