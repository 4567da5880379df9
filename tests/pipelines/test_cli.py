"""The command line: help with examples, one line for each expected fault, and exit statuses."""

import errno
import io
import os
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dubsar.pipelines import cli, cli_data

COMMANDS = [
    ["read"],
    ["train"],
    ["evaluate"],
    ["synth"],
    ["config"],
    ["ship"],
    ["export"],
    ["parity"],
    ["compare"],
    ["curve"],
    ["ensemble"],
    ["recipes"],
    ["features"],
    ["similar"],
    ["bench"],
    ["doctor"],
    ["data", "check"],
    ["data", "labels"],
    ["data", "align"],
    ["data", "list"],
]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dubsar", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize("command", [[], ["data"], *COMMANDS], ids=" ".join)
def test_help_exits_0(command: list[str]) -> None:
    for option in ("--help", "-h"):
        result = CliRunner().invoke(cli.app, [*command, option])
        assert result.exit_code == 0
        assert "Usage: " in plain(result.output)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(command: list[str]) -> None:
    output = plain(CliRunner().invoke(cli.app, [*command, "--help"]).output)
    assert re.search(r"Examples?:", output)
    assert f"dubsar {' '.join(command)}" in output.split("Example", 1)[1]


def test_every_command_is_tested_here() -> None:
    names = {c.name or c.callback.__name__ for c in cli.app.registered_commands if c.callback}
    names |= {f"data {c.name or c.callback.__name__}" for c in cli_data.data.registered_commands if c.callback}
    assert names == {" ".join(c) for c in COMMANDS}


def test_no_command_shows_help_and_exits_2() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert result.exit_code == 2
    assert "train" in result.output


def test_a_misspelt_key_exits_2_with_file_line_and_suggestion(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "stage: classify\ndatas:\n  crop_px: 32\nmodel: {backbone: resnet10t}\n"
        "optim: {lr: 1.0}\ntrainer: {max_step: 1}\n"
    )
    assert run(monkeypatch, "train", "classify", "--config", str(path), "--run", str(tmp_path / "run")) == 2
    out, err = capfd.readouterr()
    assert f"{path}:2: unknown key 'datas' (did you mean 'data'?)" in err
    assert f"{path}:6: unknown key 'trainer.max_step' (did you mean 'max_steps'?)" in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "detect", "--config", "none.yaml"], "none.yaml: no such config file"),
        (["train", "detect", "optim.lr"], "'optim.lr' is not a setting; expected key=value, such as optim.lr=3e-4"),
        (["config", "clasify"], "stage is 'clasify', expected one of pretrain, classify, detect, transliterate, read"),
        (["config", "read", "topk=3"], "unknown key 'topk' (did you mean 'top_k'?)"),
    ],
)
def test_wrong_use_exits_2_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    out, err = capfd.readouterr()
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err


def test_an_unknown_stage_exits_2_and_names_the_known_ones() -> None:
    result = CliRunner().invoke(cli.app, ["train", "clasify"])
    assert result.exit_code == 2
    for word in ("clasify", "classify", "detect", "transliterate"):
        assert word in plain(result.output)


def test_missing_data_exit_2_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "nowhere"))
    for stage, folder in (("classify", "tablet-signs"), ("transliterate", "akkadian-oracc-lines")):
        assert run(monkeypatch, "train", stage, "--run", str(tmp_path / "run")) == 2
        assert f"{folder}: no such file or folder" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


class DivergedError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.ENOSPC, "w.ckpt: could not be written"), 4),
        (OSError(errno.EROFS, "w.ckpt: could not be written"), 4),
        (PermissionError(errno.EACCES, "no"), 2),
        (FileNotFoundError("photo.jpg: no such file"), 2),
        (ValueError("bad"), 2),
        (DivergedError("step 3: gradients are not finite"), 5),
    ],
    ids=repr,
)
def test_faults_have_their_exit_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    assert run(monkeypatch) == status
    assert capfd.readouterr().err == f"dubsar: {error}\n"


def test_a_file_name_in_another_encoding_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def prints() -> None:
        print("# tablet\udcff.jpg")
        print("tablet\udcff.jpg: damaged", file=sys.stderr)

    held = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") for name in ("stdout", "stderr")}
    for name, stream in held.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(cli, "app", prints)
    cli.main()
    for stream in held.values():
        stream.flush()
        assert b"tablet?.jpg" in stream.buffer.getvalue()  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # a stream of another program's making
    monkeypatch.setattr(sys, "stderr", None)
    cli.main()


def test_a_negative_limit_is_refused() -> None:
    result = CliRunner().invoke(cli.app, ["evaluate", "read", "--limit", "-1"])
    assert result.exit_code == 2
    assert "--limit" in plain(result.output)


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_an_address_stays_on_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    from dubsar.datasets.sources import SOURCES

    monkeypatch.setenv("COLUMNS", width)
    output = CliRunner().invoke(cli.app, ["data", "list"]).output
    for source in SOURCES:
        assert all(part in output for part in (source.name, source.address, source.sha256, source.licence, source.note))


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def test_the_real_error_of_a_diverged_run_is_the_one_that_exits_5() -> None:
    from dubsar.pipelines.callbacks import DivergedError as real

    assert (real.__name__, issubclass(real, RuntimeError)) == (DivergedError.__name__, True)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dubsar", "config", "nothing"])
    monkeypatch.setitem(os.environ, "DUBSAR_DEBUG", "1")
    with pytest.raises(ValueError, match="stage is 'nothing'"):
        cli.main()


@pytest.mark.parametrize("stage", ["classify", "detect", "transliterate", "read"])
def test_config_prints_what_train_would_run(stage: str, tmp_path: Path) -> None:
    from dubsar.configs.base import load
    from dubsar.configs.schema import STAGES, ReadConfig, shipped_config

    result = CliRunner().invoke(cli.app, ["config", stage])
    assert result.exit_code == 0
    (tmp_path / "c.yaml").write_text(result.output, encoding="utf-8")
    schema = STAGES.get(stage, ReadConfig)
    assert load(tmp_path / "c.yaml", schema) == load(shipped_config(stage), schema)
