"""What `dubsar compare` does: is one config better than another? Paired trainings, the same tablets, an interval.

The trainings and the statistics are those of `dubsar parity`, which asks whether a lever costs accuracy; here any
setting may differ, nothing is declared beforehand, and the gain is estimated.
"""

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from dubsar.configs.schema import StageConfig
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.console import print_table
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.parity.arms import NEVER, Arm, made_by, train_arm, with_settings
from dubsar.pipelines.parity.run import compare_arms
from dubsar.pipelines.parity.statistics import Interval

NAMES = ("first", "second")


def compare_configs(first: StageConfig, second: StageConfig, folder: Path, *, seeds: int = 3) -> dict[str, Interval]:
    """Train both configs with the same seeds, score them on dev, and print and write how much better the second is.

    Args:
        first, second: of one stage; they may differ in anything but their dev set.
        folder: where trainings and ``compare.json`` go; finished trainings are used again.
        seeds: of the paired trainings.

    Returns:
        The gain by metric, percentage points.

    Raises:
        ValueError: the stages differ, there are fewer than two seeds, or the folder lies in the data folder.
    """
    require_outside_data(folder, "--out")
    if first.stage != second.stage:
        raise ValueError(f"the configs are of {first.stage} and {second.stage}, expected one stage")
    if seeds < 2:
        raise ValueError("--seeds is 1: one seed shows no spread; give at least two, better three")
    arms: tuple[list[Arm], list[Arm]] = ([], [])
    for seed in range(seeds):
        for name, config, trained in zip(NAMES, (first, second), arms, strict=True):
            seeded = with_settings(config, seed=config.trainer.seed + seed, val_every_steps=NEVER)
            prepared = stage_module(config.stage).prepare(seeded, data_root())
            trained.append(train_arm(seeded, name, folder / "arms", prepared=prepared))
    gains = compare_arms(first.stage, *arms)
    scores = {
        name: [arm.tally.percent for arm in trained if arm.tally] for name, trained in zip(NAMES, arms, strict=True)
    }
    made = made_by(arm for trained in arms for arm in trained)
    table = Table(
        "metric", *NAMES, "gain", "95 % bounds", title=f"{first.stage} on dev, {seeds} seeds ({made['commit']})"
    )
    for metric, gain in gains.items():
        means = [sum(score[metric] for score in scores[name]) / seeds for name in NAMES]
        table.add_row(metric, *(f"{m:.2f}" for m in means), f"{gain.mean:+.2f}", f"{gain.low:.2f} to {gain.high:.2f}")
    print_table(table)
    write_json(
        folder / "compare.json",
        {
            "configs": {n: c.model_dump(mode="json") for n, c in zip(NAMES, (first, second), strict=True)},
            "scores": scores,
            "gains": {metric: asdict(gain) for metric, gain in gains.items()},
            **made,
        },
    )
    return gains
