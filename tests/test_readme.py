"""The README keeps its promises: links lead somewhere, commands and targets exist, no figure is missing."""

import re
from pathlib import Path

import pytest
import typer

from dubsar.pipelines.cli import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`(?:src/)?((?:configs|datasets|models|pipelines)/[\w/]+\.\w+)`", README + GUIDE)))
)
def test_named_files_exist(name: str) -> None:
    assert (ROOT / name).exists()


COMMANDS = (
    "read|train|evaluate|synth|ship|export|config|parity|compare|ensemble|curve|recipes|bench|features|similar|doctor|"
    "data \\w+"
)


@pytest.mark.parametrize("command", sorted(set(re.findall(f"dubsar ({COMMANDS})", README))))
def test_commands_exist(command: str) -> None:
    group = typer.main.get_command(app)
    for word in command.split():
        group = group.commands[word]  # type: ignore[attr-defined]
    assert group.help


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^ {4}make ([\w-]+)|`make ([\w-]+)", README, re.M))))
def test_targets_exist(target: tuple[str, str]) -> None:
    name = target[0] or target[1]
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)


def test_no_figure_is_missing() -> None:
    assert "@@" not in README
    assert "AGPL-3.0-or-later" in README
