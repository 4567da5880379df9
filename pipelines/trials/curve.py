"""What `dubsar curve` does: how good a config becomes with a share of the labels, over seeds, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from dubsar.configs.schema import ClassifyConfig
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.console import print_table
from dubsar.pipelines.pages import figure_png, new_figure
from dubsar.pipelines.parity.arms import made_by
from dubsar.pipelines.parity.run import count_arms
from dubsar.pipelines.parity.statistics import Estimate, estimate
from dubsar.pipelines.parity.tallies import METRICS
from dubsar.pipelines.signs import open_signs
from dubsar.pipelines.trials.seeded import train_seeds

Curve = dict[float, dict[str, Estimate]]


def learning_curve(config: ClassifyConfig, fractions: Sequence[float], folder: Path, *, seeds: int = 3) -> Curve:
    """Train a config on shares of its training crops, score it on dev, and print, draw and write what it reached.

    Which crops are in a share is drawn by the seed, so the spread of seeds holds the luck of that draw. All shares are
    trained for the same number of steps.

    Args:
        config: of ``classify``.
        fractions: shares of the training crops, above 0, at most 1.
        folder: where trainings, ``curve.json`` and ``curve.png`` go; finished trainings are used again.
        seeds: trainings of each share.

    Returns:
        By share and metric the mean over seeds, percent, with its 95 % interval over seeds and tablets.

    Raises:
        ValueError: a share is out of range or stands twice, or as of `train_seeds`.
    """
    shares = _checked(fractions)
    configs = {f"share-{f:g}": _with_share(config, f) for f in shares}
    arms = train_seeds(configs, folder / "arms", seeds)
    curve: Curve = {}
    rows: list[dict[str, Any]] = []
    total = _training_crops(config)
    for share, trained in zip(shares, arms.values(), strict=True):
        curve[share] = {m: estimate(count_arms(trained, m)) for m in METRICS["classify"]}
        found = {metric: asdict(e) for metric, e in curve[share].items()}
        scores = [arm.tally.percent for arm in trained if arm.tally]
        rows.append({"fraction": share, "crops": max(1, round(share * total)), **found, "scores": scores})
    made = made_by(arm for trained in arms.values() for arm in trained)
    print_table(_table(f"{config.name} on dev, {seeds} seeds ({made['commit']}, {made['hardware']})", rows))
    picture = draw_learning_curve(rows)
    write_atomically(folder / "curve.png", lambda file: file.write(picture))
    about = {"config": config.model_dump(mode="json"), **made, "seeds": seeds}
    write_json(folder / "curve.json", {"split": "dev", **about, "shares": rows})
    return curve


def _checked(fractions: Sequence[float]) -> list[float]:
    for f in fractions:
        if not 0 < f <= 1:
            raise ValueError(f"--fractions: {f:g} is no share of the labels; expected numbers above 0, at most 1")
    if not fractions or len(set(fractions)) < len(fractions):
        given = ",".join(f"{f:g}" for f in fractions)
        raise ValueError(f"--fractions is {given!r}, expected one share or more, each once, such as 0.1,0.3,1")
    return sorted(fractions)


def _with_share(config: ClassifyConfig, share: float) -> ClassifyConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"label_fraction": share})})


def _training_crops(config: ClassifyConfig) -> int:
    """Count the training crops of the whole; photographs that cannot be read are counted as well."""
    photographs = open_signs(config.data).photographs("train", ignore_unknown=config.data.ignore_unknown)
    total = sum(len(p.boxes) for p in photographs)
    return min(total, config.data.limit or total)


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    metrics = METRICS["classify"]
    head = [cell for metric in metrics for cell in (metric, "95 % interval")]
    table = Table("share", "crops", *head, title=title)
    for row in rows:
        cells = [(f"{row[m]['mean']:.2f}", f"{row[m]['low']:.2f} to {row[m]['high']:.2f}") for m in metrics]
        table.add_row(f"{row['fraction']:g}", str(row["crops"]), *(cell for pair in cells for cell in pair))
    return table


def draw_learning_curve(rows: Sequence[dict[str, Any]]) -> bytes:
    """Draw scores, percent, against training crops on a logarithmic axis, with intervals; returns a PNG."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    crops = [row["crops"] for row in rows]
    for metric, colour in zip(METRICS["classify"], ("#38618c", "#b3541e"), strict=True):
        mean, low, high = ([row[metric][key] for row in rows] for key in ("mean", "low", "high"))
        axes.fill_between(crops, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(crops, mean, "o-", color=colour, label=metric)
    axes.set_xscale("log")
    axes.set_xticks(crops, [f"{c}\n{row['fraction']:g}" for c, row in zip(crops, rows, strict=True)])
    axes.minorticks_off()
    axes.set(xlabel="training crops, and their share", ylabel="% on dev")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure_png(figure)
