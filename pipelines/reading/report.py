"""Write ``report.html``: photograph and transliteration side by side, in one file that opens offline.

Point at a line, click it or reach it with the Tab key, and its signs light up on the photograph; point at a sign, and
its line lights up in the text. All text that comes from outside (file names, labels, readings) is escaped, and the
page's own policy allows no script but the one below, identified by its hash.
"""

import base64
import hashlib
import io
from html import escape
from pathlib import Path

from PIL import Image

from dubsar.datasets.images import LoadedImage
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.tablet import Line, Sign, Tablet
from dubsar.pipelines.reading.export import (
    ASIDE,
    NO_SIGNS,
    line_number,
    line_text,
    titled_faces,
    upright_boxes,
    write_atomic,
)

MAX_SIDE = 2000

_CSS = """
:root { --ink: #22201c; --soft: #6d675d; --rule: #ddd6c9; --paper: #fbf9f5; --mark: #c2410c; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
header, footer { padding: 1rem 1.5rem; }
header { border-bottom: 1px solid var(--rule); }
h1 { margin: 0; font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { margin: 1.2rem 0 .3rem; font-size: .95rem; letter-spacing: .06em; text-transform: uppercase; color: var(--soft); }
p { margin: .2rem 0; color: var(--soft); }
main { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1.5rem; padding: 1rem 1.5rem; }
figure { position: sticky; top: 1rem; margin: 0; align-self: start; }
svg { display: block; width: 100%; max-height: 94vh; background: #000; }
rect { fill: #38bdf8; fill-opacity: 0; stroke: #38bdf8; stroke-opacity: calc(.25 + .75 * var(--c));
       stroke-width: 1.5; vector-effect: non-scaling-stroke; cursor: pointer; }
rect.damaged, rect.broken { stroke-dasharray: 5 3; } rect.erased { stroke-dasharray: 1 3; }
rect.on { stroke: #fb923c; stroke-opacity: 1; stroke-width: 3; fill: #fb923c; fill-opacity: .22; }
ol { list-style: none; margin: 0; padding: 0; }
li { border-left: 4px solid transparent; padding: .15rem .5rem; cursor: pointer; }
li.on { border-color: var(--mark); background: #fdeee2; }
li:focus-visible, summary:focus-visible { outline: 2px solid var(--mark); outline-offset: 1px; }
.n { display: inline-block; min-width: 2.2em; color: var(--soft); font-variant-numeric: tabular-nums; }
.t { font-size: 1.05rem; overflow-wrap: anywhere; }
.g { font: 1.35rem/1.7 "Noto Sans Cuneiform", "CuneiformComposite", "Akkadian", sans-serif; margin-left: 2.2rem; }
.g span { display: inline-block; padding: 0 .1em; line-height: 1.25;
          border-bottom: 3px solid rgb(194 65 12 / calc(1 - var(--c))); }
.g span.on { background: #fed7aa; } .g .damaged { opacity: .75; } .g .broken, .g .erased { opacity: .5; }
details { margin-left: 2.4em; font-size: .85rem; color: var(--soft); cursor: auto; } summary { cursor: pointer; }
table { border-collapse: collapse; font-size: .85rem; } th, td { padding: .15rem .7rem .15rem 0; text-align: left;
        vertical-align: top; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
@media (max-width: 800px) { main { grid-template-columns: 1fr; } figure { position: static; } }
@media print { figure { position: static; } main { display: block; } svg { max-height: 60vh; }
               li { break-inside: avoid; } details { display: none; } body { background: none; } }
"""

_SCRIPT = """
const all = (selector) => Array.from(document.querySelectorAll(selector));
let pinned = null;
function show(line, sign, scroll) {
  for (const e of all('.on')) e.classList.remove('on');
  if (line === null) return;
  for (const e of all(`[data-line="${line}"]`))
    if (e.tagName === 'LI' || sign === null || e.dataset.sign === sign) e.classList.add('on');
  const item = document.getElementById('line-' + line);
  if (scroll && item) item.scrollIntoView({block: 'nearest'});
}
for (const e of all('[data-line]')) {
  const line = e.dataset.line, sign = e.dataset.sign ?? null, drawn = e.tagName === 'rect';
  e.addEventListener('mouseover', (event) => { event.stopPropagation(); show(line, sign, drawn); });
  e.addEventListener('mouseleave', () => show(pinned, null, false));
  e.addEventListener('click', (event) => {
    if (event.target.closest('details')) return;
    pinned = pinned === line && !drawn ? null : line;
    show(pinned, null, drawn);
    event.stopPropagation();
  });
  e.addEventListener('focus', () => { pinned = line; show(line, null, false); });
}
const items = all('li[data-line]');
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') { pinned = null; show(null, null, false); }
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  const at = items.indexOf(document.activeElement);
  if (step && at >= 0 && items[at + step]) { items[at + step].focus(); event.preventDefault(); }
});
"""


def write_report(image: LoadedImage, tablet: Tablet, path: Path, inventory: Inventory | None = None) -> None:
    """Write the report page of one photograph.

    Args:
        image: the photograph that was read.
        tablet: what was read on it; boxes in the file's own pixels.
        path: the HTML file, in an existing folder.
        inventory: gives the catalogue numbers of the likeliest sign, for the tooltips.

    Raises:
        ValueError: the tablet is of a picture of another size.
        OSError: the folder is missing or full.
    """
    write_atomic(path, _page(image, tablet, inventory).encode("utf-8", "replace"))


def _page(image: LoadedImage, tablet: Tablet, inventory: Inventory | None) -> str:
    script_hash = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'"
    title = escape(tablet.identifier or tablet.image or "tablet")
    count = sum(sign.box is not None for sign in tablet.signs())
    lines = sum(1 for _ in tablet.lines())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_CSS}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{escape(tablet.image)} · {tablet.width} × {tablet.height} px · {count} signs in {lines} lines</p>
</header>
<main>
<figure>{_drawing(image, tablet, inventory)}</figure>
<section aria-label="Transliteration">{_text(tablet, inventory)}</section>
</main>
<footer>{_notes(tablet)}{_provenance(tablet)}
<p>Faint box or red underline: low confidence. Dashed: damaged. <b>x</b> unread, <b>?</b> uncertain.</p>
</footer>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _drawing(image: LoadedImage, tablet: Tablet, inventory: Inventory | None) -> str:
    """Return the photograph as SVG with a rectangle per sign; line and sign numbers tie it to the text."""
    height, width = image.rgb_HW3.shape[:2]
    rects = []
    for k, (_, line) in enumerate(tablet.lines()):
        drawn = [(s, sign) for s, sign in enumerate(line.signs) if sign.box is not None]
        boxes = upright_boxes(image, tablet, [sign for _, sign in drawn]).tolist()
        for (s, sign), (x0, y0, x1, y1) in zip(drawn, boxes, strict=True):
            rects.append(
                f'<rect x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}" data-line="{k}" '
                f'data-sign="{s}" class="{sign.damage}" style="--c:{sign.confidence:.3f}">'
                f"<title>{escape(_tooltip(sign, inventory))}</title></rect>"
            )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Photograph with {len(rects)} sign boxes">'
        f'<image width="{width}" height="{height}" href="data:image/jpeg;base64,{_jpeg(image)}"/>{"".join(rects)}</svg>'
    )


def _jpeg(image: LoadedImage) -> str:
    picture = Image.fromarray(image.rgb_HW3)
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=85)
    return base64.b64encode(out.getvalue()).decode()


def _text(tablet: Tablet, inventory: Inventory | None) -> str:
    blocks, k = [], 0
    for title, face in titled_faces(tablet):
        items = []
        for position, line in enumerate(face.lines, start=1):
            items.append(_item(line, line_number(line, position), k, inventory))
            k += 1
        if items:
            heading = f"{title} {ASIDE}" if face.aside else title
            blocks.append(f"<h2>{escape(heading)}</h2><ol>{''.join(items)}</ol>")
    return "".join(blocks) or f"<p>{escape(NO_SIGNS)}</p>"


def _item(line: Line, number: str, k: int, inventory: Inventory | None) -> str:
    """Return one line of text: number, transliteration, glyphs, and a table of candidates that opens on demand."""
    glyphs = "".join(
        f'<span data-line="{k}" data-sign="{s}" class="{sign.damage}" style="--c:{sign.confidence:.3f}" '
        f'title="{escape(_tooltip(sign, inventory))}">{escape(_glyph(sign))}</span>'
        for s, sign in enumerate(line.signs)
    )
    rows = "".join(
        f"<tr><td>{s}</td><td>{escape(sign.reading)}{escape(''.join(sign.flags))}</td>"
        f"<td>{escape(_candidates(sign))}</td><td>{sign.damage}</td><td>{escape(sign.provenance)}</td></tr>"
        for s, sign in enumerate(line.signs, start=1)
    )
    table = (
        "<details><summary>candidates</summary><table><tr><th>#</th><th>reading</th><th>candidates</th><th>state</th>"
        f"<th>from</th></tr>{rows}</table></details>"
    )
    return (
        f'<li id="line-{k}" data-line="{k}" tabindex="0"><span class="n">{escape(number)}.</span>'
        f'<span class="t" title="confidence {line.confidence:.0%}">{escape(line_text(line))}</span>'
        f'<div class="g">{glyphs}</div>{table if rows else ""}</li>'
    )


def _glyph(sign: Sign) -> str:
    if sign.damage == "broken" and sign.box is None:
        return "[…]"
    return sign.glyph or "x"


def _candidates(sign: Sign) -> str:
    return ", ".join(f"{c.glyph} {c.name} {c.probability:.0%}" for c in sign.candidates) or "none"


def _tooltip(sign: Sign, inventory: Inventory | None) -> str:
    reading = f"{sign.reading}{''.join(sign.flags)}" if sign.reading else ""
    known = inventory.of_glyph(sign.glyph) if inventory else None
    parts = (reading, _candidates(sign), known.numbers if known else "", sign.damage)
    return " · ".join([*filter(None, parts), f"confidence {sign.confidence:.0%}"])


def _notes(tablet: Tablet) -> str:
    items = "".join(f"<p>{escape(note)}</p>" for note in tablet.notes)
    return f"<h2>Notes</h2>{items}" if items else ""


def _provenance(tablet: Tablet) -> str:
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in tablet.provenance.items())
    return f"<h2>Provenance</h2><table>{rows}</table>" if rows else ""
