"""The drawings of a parity report, as SVG: loss curves of both arms side by side, each metric against its margin."""

import io
from typing import Any

import numpy as np

from dubsar.pipelines.parity.report.sections import ARMS, signed, tone
from dubsar.pipelines.parity.result import Outcome, ParityResult

COLOURS = {"passed": "#116329", "undecided": "#8a5a00", "failed": "#a40e26"}
_MARKERS = {"passed": "o", "undecided": "s", "failed": "X"}


def draw_losses(result: ParityResult) -> str:
    """Draw the training losses: reference left, candidate right, on one scale, with the band of T4 behind both."""
    figure = _figure(10, 3.6)
    for axes, arm in zip(figure.subplots(1, 2, sharex=True, sharey=True), ARMS, strict=True):
        if result.band:
            band = {k: np.asarray(v, dtype=float) for k, v in result.band.items()}
            label = "band of reference reruns (T4)"
            axes.fill_between(band["steps"], band["low"], band["high"], color="#7a7a7a", alpha=0.35, lw=0, label=label)
        for curve in (c for c in result.curves if c.arm == arm):
            marker = "o" if len(curve.losses) < 30 else ""
            axes.plot(curve.steps, curve.losses, lw=1.2, label=f"seed {curve.seed}", marker=marker)
        axes.set(title=arm, xlabel="optimizer step", ylabel="training loss" if arm == ARMS[0] else "")
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", ncols=2)
    return _svg(figure)


def draw_forest(outcomes: list[Outcome]) -> str:
    """Draw each metric's gain with its bounds in units of its own margin: parity is what lies right of -1."""
    figure = _figure(10, 1.2 + 0.45 * len(outcomes))
    axes = figure.add_subplot()
    for row, o in enumerate(outcomes):
        low, gain, high = (x / o.margin for x in (o.low, o.gain, o.high))
        colour, marker = COLOURS[tone(o.verdict)], _MARKERS[tone(o.verdict)]
        axes.plot([low, high], [row, row], color=colour, lw=2, marker="|")
        axes.plot([gain], [row], color=colour, marker=marker, ms=7)
        axes.text(1.01, row, signed(o.verdict), color=colour, va="center", transform=axes.get_yaxis_transform())
    axes.axvline(0, color="#444", lw=0.8)
    axes.axvline(-1, color="#444", lw=1.2, ls="--")
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -1.5), max(right, 1.5))
    axes.axvspan(axes.get_xlim()[0], -1, color="#a40e26", alpha=0.08, lw=0)
    axes.set_ylim(len(outcomes) - 0.5, -0.5)
    axes.set_yticks(range(len(outcomes)), [f"{o.metric} (margin {o.margin:g} pp)" for o in outcomes])
    axes.set_xlabel("gain of the candidate, in margins; left of -1 the loss is more than was declared bearable")
    axes.grid(visible=True, axis="x", alpha=0.3)
    return _svg(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _svg(figure: Any) -> str:
    """Return the drawing, the same bytes for the same figures."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "dubsar"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
