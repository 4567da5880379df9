"""What a comparison compares: one stage's config with levers on against the same with all levers off."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import StageConfig
from dubsar.pipelines.doctor import EACH_ON
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.levers.table import BY_NAME, LEVERS
from dubsar.pipelines.parity.arms import with_settings
from dubsar.pipelines.parity.tallies import METRICS


@dataclass(frozen=True)
class Plan:
    """What is compared, and how.

    Attributes:
        config: the stage's config; its efficiency block is the bundle.
        levers: what is asked of each lever of the candidate; the reference has all levers off.
        margins: the loss declared bearable, percentage points by metric.
        seeds: of the paired trainings.
        folder: where arms and reports go.
        attribution: most further comparisons to find out which lever of a failing bundle is at fault.
        validated: whether the arms are also validated on the way, every ``trainer.val_every_steps``.
    """

    config: StageConfig
    levers: dict[str, Any]
    margins: dict[str, float]
    seeds: int
    folder: Path
    attribution: int = 25
    validated: bool = False

    def arm(self, levers: Mapping[str, Any], seed: int = 0) -> StageConfig:
        """Return the config of an arm with these levers on and all others off."""
        efficiency = Efficiency.model_validate(dict(levers), strict=False)
        config = self.config.model_copy(update={"efficiency": efficiency})
        return with_settings(config, seed=self.config.trainer.seed + seed)

    def resolved(self) -> Resolved:
        """Return what the levers of the candidate become on this machine."""
        return resolve_config(self.arm(self.levers))

    def acting(self) -> dict[str, Any]:
        """Return what the levers that act become."""
        return {row.lever: row.resolved for row in self.resolved().rows if row.resolved != BY_NAME[row.lever].off}


def choose_levers(config: StageConfig, names: Sequence[str]) -> dict[str, Any]:
    """Return what is asked of each lever: the config's whole bundle, or the named ones.

    A named lever has the config's value, or where that is off the value that `dubsar doctor` asks for.

    Raises:
        ValueError: an unknown name, or a bundle with all levers off.
    """
    block = config.efficiency.model_dump()
    on = {lever.name: block[lever.name] for lever in LEVERS if block[lever.name] != lever.off}
    if not names:
        if not on:
            raise ValueError(
                "efficiency: all levers are off, so there is nothing to compare; give --levers or a config"
            )
        return on
    for name in names:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            raise ValueError(f"--levers: unknown lever {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return {name: on.get(name, EACH_ON[name]) for name in names}


def parse_margins(given: Sequence[str]) -> dict[str, float]:
    """Read margins such as ``cer=0.2``.

    Raises:
        ValueError: not a name and a number.
    """
    margins = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            margins[name] = float(value)
        except ValueError as error:
            raise ValueError(f"--margin {text}: expected a metric and percentage points, such as cer=0.2") from error
    return margins


def require_margins(stage: str, margins: Mapping[str, float]) -> None:
    """Refuse a comparison whose margins were not declared for every metric of the stage.

    Raises:
        ValueError: a metric without margin, a margin that is not above 0, or one for an unknown metric.
    """
    known = METRICS[stage]
    if unknown := sorted(set(margins) - set(known)):
        raise ValueError(f"--margin: {stage} has no metric {unknown[0]!r}, only {', '.join(known)}")
    for name in known:
        if name not in margins:
            raise ValueError(
                f"no margin for {name}: declare before the run what loss is bearable, as --margin {name}=0.5 "
                "(percentage points)"
            )
        if not margins[name] > 0:
            raise ValueError(f"--margin {name}={margins[name]:g}: expected a loss above 0 percentage points")


def needs_outcome(config: StageConfig, levers: Mapping[str, Any]) -> bool:
    """Say whether the levers change more than rounding, so that only trainings can tell what they cost.

    Another random draw (S) is none where the model draws nothing.
    """
    classes = {letter for name in levers for letter in BY_NAME[name].exactness}
    draws = any(getattr(config.model, name, 0) for name in ("dropout", "drop_rate", "drop_path_rate"))
    return bool(classes & ({"P", "M", "S"} if draws else {"P", "M"}))
