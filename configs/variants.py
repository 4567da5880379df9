"""A file of variants: named lists of settings over one base config, to be trained beside each other."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dubsar.configs.base import Block, ConfigError, load, place_of
from dubsar.configs.schema import STAGES, Name, StageConfig

Settings = tuple[str, ...]  # key=value, as on the command line


class Variants(Block):
    """The first variant is the one that the others are measured against.

    ``base`` is a config of the stage, its path relative to this file. ``settings`` hold for all variants.
    """

    base: Annotated[str, Field(min_length=1)]
    settings: Settings = ()
    variants: Annotated[dict[Name, Settings], Field(min_length=2)]


def load_variants(path: Path, stage: str, overrides: tuple[str, ...] = ()) -> dict[str, StageConfig]:
    """Read a file of variants and the config that each of them comes to.

    Args:
        path: the YAML file.
        stage: what the base is a config of.
        overrides: ``key=value`` from the command line, for all variants: they are stronger than the file's
            ``settings``, and a variant's own are stronger than both.

    Returns:
        The config of each variant by name, in the order of the file, the first one first.

    Raises:
        ConfigError: every fault of the file, or of all variants, with file and line; or two variants are one config.
    """
    found = load(path, Variants)
    base, configs, faults = path.parent / found.base, dict[str, StageConfig](), list[str]()
    shared = (*found.settings, *overrides)
    if not base.is_file():
        raise ConfigError(
            f"{place_of(path, 'base')}: 'base' is {found.base!r}, but there is no {base}; its path is "
            "relative to this file"
        )
    _load(base, stage, found.settings, place_of(path, "settings"))  # what is wrong with all is said once
    load(base, STAGES[stage], shared)
    for name, settings in found.variants.items():
        where = f"{place_of(path, 'variants', name)}: variant {name!r}"
        try:
            config = _load(base, stage, (*shared, *settings), where)
        except ConfigError as error:
            faults.append(str(error))
            continue
        same = next((other for other, earlier in configs.items() if earlier == config), None)
        if same is not None:
            faults.append(f"{where} is the same as {same!r}; change a setting, or leave it out")
        configs[name] = config
    if faults:
        raise ConfigError("\n".join(faults))
    return configs


def _load(base: Path, stage: str, settings: Settings, where: str) -> StageConfig:
    """Load a config; a fault of the settings is said to be where they stand."""
    try:
        return load(base, STAGES[stage], settings)
    except ConfigError as error:
        raise ConfigError(re.sub("(?m)^command line", lambda _: where, str(error))) from error
