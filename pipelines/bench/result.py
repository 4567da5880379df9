"""What a benchmark found, for a program (``bench.json``), for the eye (``bench.png``) and in the terminal."""

import io
import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.bench.measure import UNDECIDED, UNMET, Comparison, Effort, Measured, Timing
from dubsar.pipelines.console import print_table
from dubsar.pipelines.training import commit, hardware

SCHEMA_VERSION = 1
_VERSIONS = ("torch", "lightning", "transformers", "timm", "ultralytics-opencv-headless", "numpy")
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True)
class Machine:
    """What measured: the figures hold for nothing else.

    Attributes:
        load: average number of processes that wanted to run in the minute before; other work makes times uncertain.
    """

    commit: str
    hardware: str
    threads: int
    load: float
    versions: dict[str, str]

    @classmethod
    def here(cls) -> "Machine":
        """Describe this machine now."""
        versions = {"python": platform.python_version()} | {name: version(name) for name in _VERSIONS}
        return cls(commit(), hardware(), torch.get_num_threads(), os.getloadavg()[0], versions)


@dataclass(frozen=True)
class BenchResult:
    """One benchmark: groups of arms that were timed interleaved."""

    bench: str
    effort: Effort
    groups: list[Measured]
    machine: Machine

    @property
    def passed(self) -> bool:
        """Whether every requirement is met; what is undecided is not."""
        return not any(c.outcome in {UNMET, UNDECIDED} for group in self.groups for c in group.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the schema's version and each comparison's outcome."""
        data = {"schema_version": SCHEMA_VERSION, "passed": self.passed, **asdict(self)}
        for plain, group in zip(data["groups"], self.groups, strict=True):
            for row, comparison in zip(plain["comparisons"], group.comparisons, strict=True):
                row["outcome"] = comparison.outcome
        return data


def write(result: BenchResult, folder: Path) -> None:
    """Write ``<bench>.json`` and ``<bench>.png`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result.to_dict(), ensure_ascii=False, indent=1) + "\n"
    picture = draw(result)
    write_atomically(folder / f"{result.bench}.json", lambda file: file.write(text.encode()))
    write_atomically(folder / f"{result.bench}.png", lambda file: file.write(picture))


def show(result: BenchResult) -> None:
    """Print times, speed-ups and notes."""
    machine = result.machine
    times = Table(
        "group",
        "arm",
        "median",
        "± MAD",
        "per",
        title=f"{result.bench}: {result.effort.rounds} interleaved rounds, {result.effort.clock} time",
    )
    for group in result.groups:
        for timing in group.timings:
            times.add_row(group.name, timing.arm, seconds(timing.median), seconds(timing.deviation), group.unit)
    print_table(times)
    ratios = Table("group", "speed-up of", "over", "x", "95 % interval", "bound", "required", "outcome")
    for group in result.groups:
        for comparison in group.comparisons:
            ratios.add_row(group.name, comparison.arm, comparison.baseline, *_figures(comparison))
    print_table(ratios)
    for group in result.groups:
        for note in group.notes:
            print(f"{group.name}: {note}")
    print(
        f"{machine.hardware}, {machine.threads} threads, load {machine.load:.1f} before, commit {machine.commit}, "
        f"torch {machine.versions['torch']}"
    )


def seconds(value: float) -> str:
    """Write a time with three digits, in the unit that suits it."""
    factor, unit = next(((f, u) for f, u in _SCALES if abs(value) >= f), _SCALES[-1])
    return f"{value / factor:.3g} {unit}"


def _figures(comparison: Comparison) -> tuple[str, ...]:
    ratio = comparison.speed_up
    bound, required = (f"{v:.3g}" if v is not None else "" for v in (comparison.bound, comparison.required))
    outcome = ": ".join(filter(None, (comparison.outcome, comparison.not_applicable)))
    return f"{ratio.value:.3g}", f"{ratio.low:.3g} to {ratio.high:.3g}", bound, required, outcome


def draw(result: BenchResult) -> bytes:
    """Draw the samples of every group above its speed-ups with interval, bound and requirement; returns a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = len(result.groups)
    figure = Figure(figsize=(4.5 * columns, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    machine = result.machine
    figure.suptitle(f"dubsar bench {result.bench}: {machine.hardware}, {machine.threads} threads, {machine.commit}")
    axes = figure.subplots(2, columns, squeeze=False)
    for column, group in enumerate(result.groups):
        _draw_times(axes[0, column], group.timings, f"{group.name}, s per {group.unit}")
        _draw_ratios(axes[1, column], group.comparisons)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def _draw_times(axes: Any, timings: list[Timing], title: str) -> None:
    axes.boxplot([t.seconds for t in timings], tick_labels=[t.arm for t in timings])
    slowest, fastest = max(t.median for t in timings), min(t.median for t in timings)
    axes.set(title=title, yscale="log" if slowest > 10 * fastest else "linear")
    axes.tick_params(axis="x", rotation=20)
    axes.grid(visible=True, axis="y", alpha=0.3)


def _draw_ratios(axes: Any, comparisons: list[Comparison]) -> None:
    names = [f"{c.arm}\nover {c.baseline}" for c in comparisons]
    for place, comparison in enumerate(comparisons):
        ratio = comparison.speed_up
        axes.errorbar(
            ratio.value, place, xerr=[[ratio.value - ratio.low], [ratio.high - ratio.value]], fmt="o", color="C0"
        )
        for value, colour, label in ((comparison.bound, "C2", "bound"), (comparison.required, "C3", "required")):
            if value is not None:
                axes.plot(value, place, "|", color=colour, markersize=22, markeredgewidth=2, label=label)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="times as fast (95 % interval)", ylim=(-1, len(names)))
    labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if labelled:
        axes.legend(labelled.values(), labelled.keys())
