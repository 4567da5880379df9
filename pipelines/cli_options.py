"""What several commands of the command line share: stages, overrides, and how a stage's config is found."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

SOME_FAILED = 1  # exit status


class Stage(StrEnum):
    """Trainable stages."""

    pretrain = "pretrain"
    classify = "classify"
    detect = "detect"
    transliterate = "transliterate"


class Split(StrEnum):
    """Splits of the data. Tune on dev; test is for the final number."""

    train = "train"
    dev = "dev"
    test = "test"


Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides such as `optim.lr=3e-4`.", show_default=False)]


def stage_config(stage: str, path: Path | None, overrides: list[str] | None) -> Any:
    """Load a stage's config: its own, which ships, or the given one.

    Raises:
        ConfigError: no such stage, or faults in the file or the overrides.
    """
    from dubsar.configs.base import ConfigError, load
    from dubsar.configs.schema import STAGES, shipped_config

    if stage not in STAGES:
        raise ConfigError(f"stage is {stage!r}, expected one of {', '.join([*STAGES, 'read'])}")
    return load(path or shipped_config(stage), STAGES[stage], tuple(overrides or ()))


def read_config(path: Path | None, overrides: list[str]) -> Any:
    """Load the settings of reading: those that ship, or a file.

    Raises:
        ConfigError: faults in the file or the overrides.
    """
    from dubsar.configs.base import load
    from dubsar.configs.schema import ReadConfig, shipped_config

    return load(path or shipped_config("read"), ReadConfig, tuple(overrides))
