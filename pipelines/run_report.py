"""The report of a training run: ``curves.png`` and one self-contained ``report.html`` in its run folder.

Reads what the run has written (``config.yaml``, ``levers.json``, ``metrics.jsonl``), so that a broken run can be
looked at too.
"""

import html
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.callbacks import read_metrics
from dubsar.pipelines.pages import figure_png, html_page, html_picture, html_table, new_figure

_OFF = (None, False, "off", "fp32", "eager", "default")

Curves = dict[str, list[tuple[int, float]]]


def write_run_report(folder: Path, scores: dict[str, float]) -> None:
    """Write ``curves.png`` and ``report.html``.

    Args:
        folder: the run folder.
        scores: of the weights that were kept, on dev.
    """
    curves = read_curves(folder / "metrics.jsonl")
    picture = draw_curves(curves, folder.name)
    page = _page(folder, scores, picture)
    write_atomically(folder / "curves.png", lambda file: file.write(picture))
    write_atomically(folder / "report.html", lambda file: file.write(page.encode()))


def read_curves(path: Path) -> Curves:
    """Return (step, value) pairs by metric, such as ``train/loss`` and ``val/cer``."""
    curves: Curves = defaultdict(list)
    for row in read_metrics(path) if path.exists() else []:
        for name, value in row.items():
            if name not in {"step", "seconds"}:
                curves[name].append((int(row["step"]), float(value)))
    return dict(curves)


def draw_curves(curves: Curves, title: str) -> bytes:
    """Draw the loss on the left and each validation metric beside it; returns a PNG."""
    names = [n for n in ("train/loss", *sorted(n for n in curves if n.startswith("val/"))) if n in curves]
    figure = new_figure(4 * max(1, len(names)), 3, title)
    for position, name in enumerate(names, start=1):
        axes = figure.add_subplot(1, len(names), position)
        steps, values = zip(*curves[name], strict=True)
        axes.plot(steps, values, marker="o" if len(steps) < 30 else "")
        axes.set(title=name, xlabel="optimizer step")
        axes.grid(visible=True, alpha=0.3)
    return figure_png(figure)


def read_levers(folder: Path) -> list[dict[str, Any]]:
    """Read a run's ``levers.json``; empty where it has none."""
    path = folder / "levers.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def lever_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and body of the table of those levers that were asked for.

    What was seen of them has columns once a run has looked; a lever that was resolved to off has nothing there.
    """
    asked = [row for row in rows if row["asked"] not in _OFF]
    seen = ("engaged", "observed") if any("observed" in row for row in asked) else ()
    columns = ("lever", "exactness", "asked", "resolved", *seen, "why")
    head = tuple("class" if column == "exactness" else column for column in columns)
    return head, [tuple(str(row.get(column, "")) for column in columns) for row in asked]


def _page(folder: Path, scores: dict[str, float], picture: bytes) -> str:
    head, levers = lever_table(read_levers(folder))
    config = folder / "config.yaml"
    parts = [
        "<h2>Best weights on dev</h2>",
        html_table(("metric", "value"), [(k, f"{v:.4g}") for k, v in scores.items()]),
        "<h2>Curves</h2>",
        html_picture("curves", picture),
        *_pictures(folder),
        "<h2>Efficiency levers</h2>",
        html_table(head, levers) if levers else "<p>All off: the reference.</p>",
        "<h2>Config</h2>",
        f"<pre>{html.escape(config.read_text(encoding='utf-8') if config.exists() else '')}</pre>",
    ]
    return html_page(folder.name, parts)


def _pictures(folder: Path) -> list[str]:
    """Show what the stage has drawn besides."""
    paths = (path for path in sorted(folder.glob("*.png")) if path.name != "curves.png")
    return [f"<h2>{path.stem.capitalize()}</h2>{html_picture(path.stem, path.read_bytes())}" for path in paths]
