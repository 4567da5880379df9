"""Write what was read: JSON, plain text, CSV, and the photograph with its boxes drawn in.

Every file appears whole or not at all (temporary file in the same folder, then renamed). A tablet without signs gives a
valid, empty file. To read the CSV with pandas, pass ``keep_default_na=False`` (a sign may be called NA) and, for the
catalogue numbers, ``dtype=str`` (several are separated by ``|``).
"""

import csv
import io
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dubsar.datasets.boxes import Floats
from dubsar.datasets.images import LoadedImage
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.tablet import Face, Line, Sign, Tablet

CSV_COLUMNS = (
    *("face", "line", "position", "x0", "y0", "x1", "y1"),
    *("glyph", "name", "probability", "alternatives", "reading", "damage"),
    *("mzl", "hzl", "abz"),
)
# told apart by readers with any colour vision, and from clay (Okabe and Ito)
LINE_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
NO_SIGNS = "(no signs found)"
ASIDE = "(seen at an angle: may repeat the faces)"


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: a reader never sees half of it, and a full disk leaves the old one intact.

    Args:
        path: in an existing folder.
        data: the whole content.

    Raises:
        OSError: the folder is missing or full; the message names ``path``.
    """
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"{path}: could not be written ({reason}); the old file is unchanged") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(tablet: Tablet, path: Path) -> None:
    """Write the whole tablet model; `Tablet.from_dict` reads it back."""
    text = json.dumps(tablet.to_dict(), ensure_ascii=False, indent=1) + "\n"
    # a file name in another encoding holds lone surrogates; JSON can spell them
    write_atomic(path, text.encode("utf-8", "backslashreplace"))


def write_text(tablet: Tablet, path: Path) -> None:
    """Write the transliteration, as `to_text` gives it."""
    write_atomic(path, to_text(tablet).encode("utf-8", "replace"))


def to_text(tablet: Tablet) -> str:
    """Return the line-numbered transliteration, one block per face that has lines; faces that are aside say so."""
    blocks = []
    for title, face in titled_faces(tablet):
        lines = [f"{line_number(line, k)}. {line_text(line)}" for k, line in enumerate(face.lines, start=1)]
        if lines:
            blocks.append("\n".join([f"{title} {ASIDE}" if face.aside else title, *lines]))
    return "\n\n".join(blocks or [NO_SIGNS]) + "\n"


def titled_faces(tablet: Tablet) -> Iterator[tuple[str, Face]]:
    """Yield each face with a title of its own: a second view of the left edge is ``left 2``."""
    seen: Counter[str] = Counter()
    for face in tablet.faces:
        seen[face.name] += 1
        yield face.name if seen[face.name] == 1 else f"{face.name} {seen[face.name]}", face


def line_number(line: Line, position: int) -> str:
    """Return the line's own label, or its place on the face (from 1) where it has none."""
    return _one_line(line.label).rstrip(".") or str(position)


def line_text(line: Line) -> str:
    """Return the line's transliteration, or its signs' readings or names where none was made; ``x`` is unread."""
    return _one_line(line.text) or " ".join(_sign_text(sign) for sign in line.signs)


def write_csv(tablet: Tablet, path: Path, inventory: Inventory | None = None) -> None:
    """Write one row per sign, boxes in px of the file's own pixels.

    Args:
        tablet: what was read.
        path: in an existing folder.
        inventory: gives the catalogue numbers of the likeliest sign; without it their cells are empty.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for title, face in titled_faces(tablet):
        for k, line in enumerate(face.lines, start=1):
            for position, sign in enumerate(line.signs, start=1):
                cells = [*_sign_cells(sign), *_number_cells(sign, inventory)]
                writer.writerow([title, _cell(line_number(line, k)), position, *cells])
    write_atomic(path, out.getvalue().encode("utf-8", "replace"))


def write_annotated(image: LoadedImage, tablet: Tablet, path: Path) -> None:
    """Write the upright photograph with a box per sign, coloured by line, and the number of each line.

    Args:
        image: the photograph that was read.
        tablet: what was read on it; boxes in the file's own pixels.
        path: its suffix (.png, .jpg, .jpeg) names the format.

    Raises:
        ValueError: another suffix, or the tablet is of another picture.
    """
    formats = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    if path.suffix.lower() not in formats:
        raise ValueError(f"{path}: cannot write a picture of type '{path.suffix}'; expected .png, .jpg or .jpeg")
    picture = Image.fromarray(image.rgb_HW3)
    draw = ImageDraw.Draw(picture)
    stroke = max(2, round(max(picture.size) / 1200))
    font = ImageFont.load_default(size=8 * stroke)
    for k, (_, line) in enumerate(tablet.lines()):
        colour = LINE_COLOURS[k % len(LINE_COLOURS)]
        boxes = upright_boxes(image, tablet, [s for s in line.signs if s.box is not None])
        for box in boxes.tolist():
            draw.rectangle(box, outline=colour, width=stroke)
        if len(boxes):
            x0, y0, _, _ = boxes[0]
            place = (max(0.0, x0 - 3 * stroke), y0)
            draw.text(
                place, line_number(line, k + 1), colour, font, anchor="ra", stroke_width=stroke, stroke_fill="black"
            )
    out = io.BytesIO()
    picture.save(out, formats[path.suffix.lower()], **({"quality": 90} if path.suffix.lower() != ".png" else {}))
    write_atomic(path, out.getvalue())


def upright_boxes(image: LoadedImage, tablet: Tablet, signs: list[Sign]) -> Floats:
    """Return boxes (N, 4) xyxy in px of the upright picture, clipped to it, of signs that all have a box.

    Raises:
        ValueError: the tablet is of a picture of another size.
    """
    if (tablet.width, tablet.height) != tuple(image.file_size):
        raise ValueError(
            f"{tablet.identifier}: the tablet was read on a picture of {tablet.width} x {tablet.height} px, "
            f"this one has {image.file_size[0]} x {image.file_size[1]} px; give the photograph that was read"
        )
    boxes = image.from_file_pixels(np.array([s.box for s in signs], dtype=np.float64).reshape(-1, 4))
    height, width = image.rgb_HW3.shape[:2]
    return np.asarray(np.clip(boxes, 0, np.array([width, height, width, height], dtype=np.float64)))


def _sign_cells(sign: Sign) -> list[str | float]:
    first = sign.candidates[0] if sign.candidates else None
    others = "; ".join(f"{c.glyph} {c.name} {c.probability:.3f}" for c in sign.candidates[1:])
    return [
        *(sign.box or ("", "", "", "")),
        _cell(first.glyph if first else ""),
        _cell(first.name if first else ""),
        round(first.probability, 6) if first else "",
        _cell(others),
        _cell(sign.reading + "".join(sign.flags)),
        sign.damage,
    ]


def _number_cells(sign: Sign, inventory: Inventory | None) -> list[str]:
    known = inventory.of_glyph(sign.glyph) if inventory else None
    return [_cell(number) for number in (known.mzl, known.hzl, known.abz)] if known else ["", "", ""]


def _cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula, nor ``(251)`` for minus 251."""
    formula = text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\r", "\n"))
    return f"'{text}" if formula or re.fullmatch(r"\(\d+\)", text) else text


def _sign_text(sign: Sign) -> str:
    if sign.damage == "broken" and sign.box is None:
        return "[…]"
    text = sign.reading or (sign.candidates[0].name if sign.candidates else "")
    return _one_line(text + "".join(sign.flags)) if text else "x"


def _one_line(text: str) -> str:
    return " ".join(text.split())
