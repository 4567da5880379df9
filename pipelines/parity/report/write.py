"""The report of a parity run: ``parity.json`` (everything), ``parity.md``, ``parity.html`` and ``parity.xml`` (JUnit).

The page needs nothing from elsewhere: style and drawings are inside.
"""

import base64
import html
import re
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.parity.report.drawings import COLOURS, draw_forest, draw_losses
from dubsar.pipelines.parity.report.junit import junit
from dubsar.pipelines.parity.report.sections import MEANING, Section, sections, signed, tone
from dubsar.pipelines.parity.result import ParityResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222;
       background: #fff; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: .9rem; }
.verdict { font-size: 1.3rem; padding: .6rem 1rem; border-left: .5rem solid; }
.passed { color: #116329; background: #e8f5ec; } .undecided { color: #8a5a00; background: #fff4d6; }
.failed { color: #a40e26; background: #fdecee; } .ongoing, .refused { color: #555; background: #f4f4f4; }
td[class] { padding-left: .5rem; } td.passed, td.undecided, td.failed { font-weight: 600; }
@media print { body { margin: 0; max-width: none; print-color-adjust: exact; } .scroll { overflow: visible; }
               tr, figure { break-inside: avoid; } h2 { break-after: avoid; } }
"""
_RICH = {**COLOURS, "ongoing": "dim", "refused": "dim"}
_CAPTIONS = {
    "curves": "Training loss by optimizer step, reference left, candidate right, on one scale; in grey the band of the"
    " reference's own reruns where it was measured.",
    "forest": "Gain of each metric with its 95 % bounds, in units of its margin; parity is what lies right of -1. The"
    " table holds the same figures.",
}


def write_reports(result: ParityResult, folder: Path) -> None:
    """Write ``parity.json``, ``parity.md``, ``parity.html`` and ``parity.xml``; each appears whole or not at all.

    Args:
        result: what was found.
        folder: made where it is missing.
    """
    write_json(folder / "parity.json", result.to_dict())
    write_atomically(folder / "parity.md", lambda file: file.write(markdown(result).encode()))
    write_atomically(folder / "parity.html", lambda file: file.write(page(result).encode()))
    write_atomically(folder / "parity.xml", lambda file: file.write(junit(result)))


def summarise(result: ParityResult) -> list[Table]:
    """Return the tables for the terminal; the last one gives the verdict of the whole and what has to be said of it."""
    parts = sections(result)
    tables = []
    for part in (p for p in parts if p.rows and p.picture != "curves"):
        table = Table(*part.head, title=part.title, title_justify="left")
        for row, colour in zip(part.rows, part.tones or [""] * len(part.rows), strict=True):
            table.add_row(*map(escape, row[:-1]), Text(row[-1], style=_RICH.get(colour, "")))
        tables.append(table)
    last = Table()
    last.add_column(Text(signed(result.verdict), style=_RICH[tone(result.verdict)]))
    last.add_column(MEANING[result.verdict])
    for part in parts:
        for text in part.texts:
            last.add_row(part.title, escape(text))
    return [*tables, last]


def markdown(result: ParityResult) -> str:
    """Return the report without its drawings."""
    lines = [f"# {_title(result)}", f"**{signed(result.verdict)}** {MEANING[result.verdict]}"]
    for part in sections(result):
        lines += [f"## {part.title}", *(_escaped(text) for text in _spoken(part))]
        if part.rows:
            rows = (part.head, ("---",) * len(part.head), *(tuple(map(_escaped, row)) for row in part.rows))
            lines.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(lines) + "\n"


def page(result: ParityResult) -> str:
    """Return the report as one HTML page."""
    drawings = {}
    if any(curve.steps for curve in result.curves):
        drawings["curves"] = draw_losses(result)
    if result.outcomes:
        drawings["forest"] = draw_forest(result.outcomes)
    parts = "".join(_part(part, drawings.get(part.picture, "")) for part in sections(result))
    title = html.escape(_title(result))
    verdict = f'<p class="verdict {tone(result.verdict)}"><b>{signed(result.verdict)}</b> {MEANING[result.verdict]}</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{title}</h1>{verdict}{parts}</main></body></html>\n"
    )


def _title(result: ParityResult) -> str:
    return f"Parity of {result.stage}"


def _spoken(part: Section) -> list[str]:
    return [*([part.intro] if part.intro and part.rows else []), *part.texts]


def _part(part: Section, drawing: str) -> str:
    texts = "".join(f"<p>{html.escape(text)}</p>" for text in _spoken(part))
    picture = ""
    if drawing:
        data, caption = base64.b64encode(drawing.encode()).decode(), html.escape(_CAPTIONS[part.picture])
        picture = (
            f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return f"<section><h2>{html.escape(part.title)}</h2>{texts}{picture}{_table(part) if part.rows else ''}</section>"


def _table(part: Section) -> str:
    head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in part.head)
    body = ""
    for row, colour in zip(part.rows, part.tones or [""] * len(part.rows), strict=True):
        cells = "".join(f"<td>{html.escape(c)}</td>" for c in row[:-1])
        marked = f' class="{colour}"' if colour else ""
        body += f"<tr>{cells}<td{marked}>{html.escape(row[-1])}</td></tr>"
    return (
        f'<div class="scroll"><table aria-label="{html.escape(part.title)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _escaped(text: str) -> str:
    """Return text that Markdown leaves as it is and that stays in its cell."""
    return re.sub(r"([\\`*|<>\[\]])", r"\\\1", " ".join(text.split()))
