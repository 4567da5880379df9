"""What happens to a run folder that is not empty: nothing is deleted or rewritten before the new run can start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.utilities.rank_zero import rank_zero_only

from dubsar.configs.base import ConfigError, load
from dubsar.configs.schema import STAGES
from dubsar.datasets.inventory import read_inventory
from dubsar.pipelines import cli
from dubsar.pipelines.callbacks import read_metrics
from dubsar.pipelines.launch import launch
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.stages import transliterate
from dubsar.pipelines.training import RESUMABLE, RunFolder, RunFolderError, build_trainer, model_card, open_run

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug"


def debug_config(*overrides: str) -> Any:
    return load(DEBUG / "transliterate.yaml", STAGES["transliterate"], overrides)


def opened(path: Path, *overrides: str, **options: bool) -> RunFolder:
    config = debug_config(*overrides)
    return open_run(path, config, resolve_config(config), **options)


def started(path: Path, *overrides: str) -> RunFolder:
    """A run that has a checkpoint to resume from."""
    run = opened(path, *overrides)
    run.checkpoints.mkdir()
    run.last.write_bytes(b"")
    return run


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- resume


def test_a_resumed_run_may_change_its_length_and_what_it_shows(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "efficiency.ema={decay: 0.9}")
    changes = ("trainer.max_steps=99", "trainer.val_every_steps=2", "trainer.log_every_steps=7", "trainer.threads=2")
    changes += ("trainer.workers=1", "trainer.accelerator=auto", "trainer.checkpoint_every_minutes=1")
    opened(run.path, *changes, "efficiency.strict=true", "efficiency.ema={decay: 0.9}", resume=True)
    stored = load(run.path / "config.yaml", STAGES["transliterate"])
    assert (stored.trainer.max_steps, stored.trainer.accelerator, stored.efficiency.strict) == (99, "auto", True)
    assert len(changes) + 1 == len(RESUMABLE)


def test_every_setting_that_may_change_exists() -> None:
    for key in RESUMABLE:
        block, name = key.split(".")
        assert name in type(getattr(debug_config(), block)).model_fields


def test_a_resumed_run_with_another_config_is_refused_and_the_stored_one_stays(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "efficiency.ema={decay: 0.9}")
    before = files(run.path)
    with pytest.raises(RunFolderError) as caught:
        opened(run.path, "optim.lr=0.5", "data.limit=7", "trainer.max_steps=99", resume=True)
    message = str(caught.value)
    assert message.startswith(
        f"{run.path}: --resume with another config than the run's: data.limit is 7 (was 100), efficiency.ema is None "
        "(was {'decay': 0.9}), optim.lr is 0.5 (was 0.001); put the old values back, or start anew with --overwrite"
    )
    assert "(only efficiency.strict, trainer.accelerator, " in message
    assert files(run.path) == before


def test_resume_needs_the_config_that_the_run_was_started_with(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    (run.path / "config.yaml").write_text("stage: transliterate\nold_block: {}\n")
    with pytest.raises(ConfigError, match=r"run/config\.yaml:2: unknown key 'old_block'"):
        opened(run.path, resume=True)
    (run.path / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"to resume from \(expected .*config\.yaml\)"):
        opened(run.path, resume=True)


def classes_tsv(root: Path, *names: str) -> str:
    """Write sign classes and return the inventory's hash."""
    folder = root / "tablet-signs"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{i}\t{glyph}\t{glyph}\t{i}" for i, glyph in enumerate(names)]
    (folder / "classes.tsv").write_text("\n".join(["class_id\tglyph\tsign_name\tmzl", *rows]) + "\n", encoding="utf-8")
    return read_inventory(root).hash


@pytest.mark.parametrize("stage", ["classify", "detect"])
def test_a_run_is_not_resumed_on_other_sign_classes(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "data"))
    before = classes_tsv(tmp_path / "data", "𒀀", "𒈾")
    config = load(DEBUG / f"{stage}.yaml", STAGES[stage])
    levers = resolve_config(config)
    run = open_run(tmp_path / "run", config, levers)
    assert json.loads(run.data.read_text()) == {"inventory_hash": before}
    run.checkpoints.mkdir()
    run.last.write_bytes(b"")
    open_run(run.path, config, levers, resume=True)
    now = classes_tsv(tmp_path / "data", "𒈾", "𒀀")
    arguments = ["train", stage, "--config", str(DEBUG / f"{stage}.yaml"), "--run", str(run.path), "--resume"]
    monkeypatch.setattr("sys.argv", ["dubsar", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    err = capfd.readouterr().err
    assert err.startswith(f"dubsar: {run.path}: started on sign inventory {before}, but that of ")
    assert f" is {now}: its classes were changed or reordered" in err
    run.data.write_text("[]")
    with pytest.raises(RunFolderError, match=r"data\.json: cannot be read \(.*\), expected an inventory_hash"):
        open_run(run.path, config, levers, resume=True)
    run.data.unlink()  # as in a run of before the hash was written down
    open_run(run.path, config, levers, resume=True)
    assert json.loads(run.data.read_text()) == {"inventory_hash": now}


# --- several processes


def test_only_the_first_rank_checks_deletes_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(tmp_path / "run")
    before = files(run.path)
    two = ("trainer.devices=2", "trainer.strategy=ddp")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        assert opened(run.path, *two, **options) == run
    assert files(run.path) == before
    with pytest.raises(RunFolderError, match="a run is there already"):
        opened(run.path)  # a run of one process has no other rank, whatever the environment says
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    with pytest.raises(RunFolderError, match="a run is there already"):
        opened(run.path, *two)
    monkeypatch.setenv("NODE_RANK", "1")
    assert opened(run.path, *two) == run


@pytest.mark.slow
@pytest.mark.data
def test_two_processes_train_into_one_folder(tmp_path: Path, data_root: Path) -> None:
    few = ["data.sources=[hittite]", "data.limit=40", "data.val_lines=1", "trainer.max_steps=2"]
    command = [Path(sys.executable).with_name("dubsar"), "train", "transliterate", *few]
    command += ["trainer.val_every_steps=2", "trainer.devices=2", "trainer.strategy=ddp"]
    command += ["--config", DEBUG / "transliterate.yaml", "--run", tmp_path / "run"]
    environment = os.environ | {"DUBSAR_DATA": str(data_root)}
    for options in ((), ("--overwrite",)):
        done = subprocess.run(
            [*map(str, command), *options], env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.count("kept weights on dev") == 1
        rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
        assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
        assert (tmp_path / "run" / "transliterate.safetensors").exists()


# --- overwrite


@pytest.mark.parametrize("options", [{"overwrite": True}, {"resume": True}], ids=["overwrite", "resume"])
def test_a_run_that_fails_to_build_leaves_the_old_one_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    run = started(tmp_path / "run")
    before = files(run.path)

    def fails(*_: Any) -> Any:
        raise ValueError("the data cannot be used")

    monkeypatch.setattr(transliterate, "build", fails)
    monkeypatch.setattr("dubsar.pipelines.launch._require_inputs", lambda _: None)
    with pytest.raises(ValueError, match="the data cannot be used"):
        launch(debug_config("trainer.max_steps=9"), run.path, **options)
    assert files(run.path) == before


def test_building_the_trainer_writes_nothing(tmp_path: Path) -> None:
    config = debug_config("efficiency.ema={decay: 0.9}")
    build_trainer(config, RunFolder(tmp_path / "run"), resolve_config(config), monitor="val/cer", mode="min")
    assert not (tmp_path / "run").exists()


def test_a_started_run_deletes_the_old_one(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    opened(run.path, overwrite=True)
    assert sorted(files(run.path)) == ["config.yaml", "levers.json"]
    assert opened(tmp_path / "new", overwrite=True).path.is_dir()  # nothing there: nothing to delete


# --- the card


def test_a_model_card_says_what_was_trained_on_what() -> None:
    config = debug_config()
    card = model_card(config, {"cer": 1.0}, licence="CC0", text_form="nfc")
    assert list(card) == ["stage", "config", "licence", "text_form", "metrics", "commit", "hardware"]
    assert (card["stage"], card["metrics"], card["licence"]) == ("transliterate", {"dev": {"cer": 1.0}}, "CC0")
    assert STAGES["transliterate"].model_validate(card["config"], strict=False) == config
    assert card["hardware"] == f"{os.cpu_count()} CPU cores"  # what accelerator: cpu computes on, with a GPU or not
