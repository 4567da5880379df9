"""What `dubsar recipes` does: named variants of a config trained with the same seeds, measured against the first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from dubsar.configs.schema import ClassifyConfig, StageConfig
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.console import print_table
from dubsar.pipelines.pages import figure_png, html_page, html_picture, html_table, html_text, new_figure
from dubsar.pipelines.parity.arms import Arm, made_by
from dubsar.pipelines.parity.run import compare_arms
from dubsar.pipelines.parity.statistics import Interval, holm, p_value
from dubsar.pipelines.parity.tallies import METRICS
from dubsar.pipelines.trials.seeded import train_seeds

INTRO = (
    "Gain over the first variant in percentage points, mean over seeds, with one-sided 95 % bounds over seeds and "
    "tablets of dev. p (Holm): chance of so large a gain where there is none, adjusted for the number of variants. "
    "Seconds are of one training's steps, beside whatever else the machine did."
)


@dataclass(frozen=True)
class Trial:
    """What a variant reached: mean scores, percent; gains over the first variant; seconds and crops/s of a training."""

    scores: dict[str, float]
    gains: dict[str, Interval]
    p: dict[str, float]
    seconds: float
    crops_per_second: float


def try_recipes(configs: Mapping[str, StageConfig], folder: Path, *, seeds: int = 3) -> dict[str, Trial]:
    """Train variants of ``classify``, score them on dev, and print and write how much better each is than the first.

    Args:
        configs: at least two, by name; see `dubsar.configs.variants.load_variants`.
        folder: where trainings, ``recipes.json`` and ``recipes.html`` go; finished trainings are used again.
        seeds: trainings of each variant.

    Returns:
        By name; the first has no gain and no p.

    Raises:
        ValueError: as of `train_seeds`, or the variants do not share one dev set.
    """
    arms = train_seeds(configs, folder / "arms", seeds)
    trials = measure(configs, arms)
    made = made_by(arm for trained in arms.values() for arm in trained)
    table = Table(*_head(), title=f"variants on dev, {seeds} seeds ({made['commit']}, {made['hardware']})")
    for row in _rows(trials):
        table.add_row(*row)
    print_table(table)
    about = {**made, "seeds": seeds}
    found = {name: asdict(trial) for name, trial in trials.items()}
    settings = {name: config.model_dump(mode="json") for name, config in configs.items()}
    write_json(folder / "recipes.json", {"split": "dev", **about, "variants": found, "configs": settings})
    page = _page(configs, trials, f"{seeds} seeds each, on dev. Commit {made['commit']}, {made['hardware']}.")
    write_atomically(folder / "recipes.html", lambda file: file.write(page.encode()))
    return trials


def measure(configs: Mapping[str, StageConfig], arms: Mapping[str, Sequence[Arm]]) -> dict[str, Trial]:
    """Compare each variant's trainings with those of the first."""
    first, metrics = next(iter(arms)), METRICS["classify"]
    gains = {name: compare_arms("classify", arms[first], arms[name]) for name in arms if name != first}
    p = {metric: holm({name: p_value(gain[metric], 0.0) for name, gain in gains.items()}) for metric in metrics}
    trials = {}
    for name, trained in arms.items():
        config = configs[name]
        assert isinstance(config, ClassifyConfig)
        scores = [arm.tally.percent for arm in trained if arm.tally]
        rate = sum(arm.curve.steps_per_second for arm in trained) / len(trained)
        trials[name] = Trial(
            {metric: sum(s[metric] for s in scores) / len(scores) for metric in metrics},
            gains.get(name, {}),
            {metric: p[metric][name] for metric in metrics} if name in gains else {},
            config.trainer.max_steps / rate,
            rate * config.data.batch_size * config.trainer.accumulate,
        )
    return trials


def _head() -> tuple[str, ...]:
    columns = (cell for metric in METRICS["classify"] for cell in (metric, "gain", "95 % bounds", "p (Holm)"))
    return ("variant", *columns, "seconds", "crops/s")


def _rows(trials: Mapping[str, Trial]) -> list[tuple[str, ...]]:
    rows = []
    for name, trial in trials.items():
        cells = []
        for metric, score in trial.scores.items():
            gain = trial.gains.get(metric)
            bounds = (f"{gain.mean:+.2f}", f"{gain.low:.2f} to {gain.high:.2f}") if gain else ("", "")
            cells += [f"{score:.2f}", *bounds, f"{trial.p[metric]:.3f}" if gain else ""]
        rows.append((name, *cells, f"{trial.seconds:.0f}", f"{trial.crops_per_second:.0f}"))
    return rows


def _page(configs: Mapping[str, StageConfig], trials: Mapping[str, Trial], about: str) -> str:
    first = next(iter(configs.values())).model_dump(mode="json")
    changes = [
        (name, "; ".join(_differences(first, config.model_dump(mode="json"))) or "what the others are measured against")
        for name, config in configs.items()
    ]
    picture = draw_gains(trials)
    parts = [
        html_text(about),
        html_text(INTRO),
        html_table(_head(), _rows(trials)),
        "<h2>Gains</h2>",
        html_picture("gains over the first variant", picture),
        "<h2>What differs from the first</h2>",
        html_table(("variant", "settings"), changes),
    ]
    return html_page("Variants of classify", parts)


def _differences(first: dict[str, object], other: dict[str, object], at: str = "") -> list[str]:
    """List the settings of ``other`` that are not those of ``first``, as key=value."""
    found: list[str] = []
    for key, value in other.items():
        before = first.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            found += _differences(before, value, f"{at}{key}.")
        elif value != before:
            found.append(f"{at}{key}={value}")
    return found


def draw_gains(trials: Mapping[str, Trial]) -> bytes:
    """Draw each variant's gain with its bounds, percentage points; returns a PNG."""
    measured = [(name, trial.gains) for name, trial in trials.items() if trial.gains]
    figure = new_figure(7, 1.2 + 0.4 * len(measured))
    axes = figure.add_subplot()
    for shift, metric, colour in zip((-0.12, 0.12), METRICS["classify"], ("#38618c", "#b3541e"), strict=True):
        for row, (_, gains) in enumerate(measured):
            g, place = gains[metric], row + shift
            axes.plot([g.low, g.high], [place, place], color=colour, lw=2)
            axes.plot([g.mean], [place], "o", color=colour, ms=5, label="" if row else metric)
    axes.axvline(0, color="#444", lw=0.8)
    axes.set_yticks(range(len(measured)), [name for name, _ in measured])
    axes.set_ylim(len(measured) - 0.5, -0.5)
    axes.set(xlabel="gain over the first variant, percentage points")
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.legend()
    return figure_png(figure)
