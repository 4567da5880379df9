"""Pages that open offline: one HTML file each, pictures inside, no script; what comes from outside is escaped."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:left}"
    "pre{background:#f6f6f6;padding:1rem;overflow:auto}img{max-width:100%}"
)


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return a page with a heading and parts that are HTML already."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def html_text(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def html_picture(name: str, png: bytes) -> str:
    """Return a PNG as part of a page; ``name`` says what it shows."""
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table."""
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def new_figure(width: float, height: float, name: str = "") -> Any:
    """Return an empty figure of matplotlib, inches, with a heading or without, that needs no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if name:
        figure.suptitle(name)
    return figure


def figure_png(figure: Any, dpi: int = 100) -> bytes:
    """Return a figure as PNG, the same bytes for the same figures."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
