"""What `dubsar data align` does: label signs that nobody has boxed, by the transliteration of their tablet.

A photograph is read as far as lines of finds with their class probabilities; each face is aligned with the part of the
text that fits it best (`dubsar.datasets.text_alignment`); and a find takes the class of the sign of the text that it
is joined with, where both the classifier and the neighbours speak for it, or the neighbours strongly. Finds on signs
that are boxed already tell how often that is right, and are left out of the table.

Honest figures come from dev: on training photographs the classifier has seen the boxed signs before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dubsar.configs.schema import ReadConfig
from dubsar.datasets.boxes import Floats, iou_matrix
from dubsar.datasets.formats.catf import read_catf
from dubsar.datasets.formats.tablet_signs import FOLDER, SIGN_COLUMNS, Photograph, read_tablet_signs
from dubsar.datasets.images import load_image
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.sign_readings import Readings, TextSign, read_readings, text_signs
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.datasets.text_alignment import Joined, align_face, support
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.reading.engine import Engine
from dubsar.pipelines.reading.progress import watched
from dubsar.pipelines.reading.read import load_engine, put_in_order

SOURCE = "text"  # of the boxes, in the table
LEAST_GAIN, LEAST_SUPPORT, AMPLE_SUPPORT = 0.0, 0.0, 2.0  # of a label: the first two, or the last
SAME, APART = 0.5, 0.2  # intersection over union with a boxed sign: it is that sign; it is another one
_VIEWS = {"obverse": "Obv", "reverse": "Rev"}


@dataclass(frozen=True)
class TextLabel:
    """A find that the text names: its box in the file's pixels, class id, and the face and reading of the text."""

    box: Floats
    class_id: int
    reading: str
    face: str


def label_from_text(split: str, out: Path | None, config: ReadConfig) -> dict[str, int]:
    """Label finds on the photographs of a split that have a text, and say how far such labels can be believed.

    Args:
        split: ``train``, ``dev`` or ``test``; a table is for training, so it is written of ``train`` alone.
        out: table of the new labels with the columns of ``signs.tsv``; none is written where None.
        config: weights and thresholds of reading.

    Returns:
        Counts: photographs, labels, those on boxed signs, those of them that agree with the box, and new ones.

    Raises:
        FileNotFoundError: data or weights are absent.
        ValueError: a table is asked for of another split, or in the data folder.
    """
    if out is not None:
        require_outside_data(out, "--out")
        if split != "train":
            raise ValueError(f"split is {split}, but a table to learn from is of train; without --out, it is measured")
    root, engine = data_root(), load_engine(config)
    readings = read_readings(root, engine.inventory)
    texts = {p: root / FOLDER / "text" / f"{p.object_id}.atf" for p in read_tablet_signs(root, split=split)}
    photographs = [p for p, text in texts.items() if text.is_file()]
    counts = dict.fromkeys(("photographs", "labels", "on boxed signs", "agreeing", "new"), 0)
    rows = ["\t".join(SIGN_COLUMNS)]
    for photograph in watched(photographs, "aligning"):
        labels = align_photograph(photograph, texts[photograph], engine, config, readings)
        overlap_NM = iou_matrix([label.box for label in labels], [b.box_xyxy for b in photograph.boxes])
        counts["photographs"] += 1
        counts["labels"] += len(labels)
        for label, overlap_M in zip(labels, overlap_NM, strict=True):
            most = overlap_M.max(initial=0.0)
            if most >= SAME:
                boxed = photograph.boxes[int(overlap_M.argmax())].glyph
                counts["on boxed signs"] += 1
                counts["agreeing"] += boxed == engine.inventory[label.class_id].glyph
            elif most < APART:
                counts["new"] += 1
                rows.append(_row(label, photograph, engine.inventory))
    print(f"{split}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if out is not None:
        text = "\n".join(rows) + "\n"
        write_atomically(out, lambda file: file.write(text.encode()))
        print(f"{out}: {len(rows) - 1} boxes; train with data.more_signs={out}")
    return counts


def align_photograph(
    photograph: Photograph, text: Path, engine: Engine, config: ReadConfig, readings: Readings
) -> list[TextLabel]:
    """Find the signs of a photograph and return those that its text names."""
    image = load_image(photograph.path, max_megapixels=config.max_megapixels)
    place = put_in_order(image.rgb_HW3, engine.find(image.rgb_HW3), config)
    likely_NK, classes_NK = engine.classify(image.rgb_HW3, place.found.boxes_N4, len(engine.inventory))
    seen_NC = np.zeros_like(likely_NK)
    np.put_along_axis(seen_NC, classes_NK, likely_NK, axis=1)
    boxes_N4 = image.to_file_pixels(place.found.boxes_N4)
    parts: dict[str, list[list[TextSign]]] = {}
    for line in read_catf(text):
        parts.setdefault(line.face, []).append(text_signs(line.text, readings))
    views = {v: [row for view, row in place.rows if view == v] for v in dict.fromkeys(v for v, _ in place.rows)}
    labels = []
    for view, face, found in _best_pairs(views, parts, seen_NC):
        for seen, written, joined in found:
            signs, row = parts[face][written], views[view][seen]
            for one, held in zip(joined, support(joined, signs), strict=True):
                sign, index = signs[one.written], row[one.seen]
                certain = (one.gain > LEAST_GAIN and held > LEAST_SUPPORT) or held > AMPLE_SUPPORT
                if sign.classes and certain:
                    class_id = sign.classes[int(seen_NC[index, list(sign.classes)].argmax())]
                    labels.append(TextLabel(boxes_N4[index], class_id, sign.reading, face))
    return labels


def _best_pairs(
    views: dict[int, list[list[int]]], parts: dict[str, list[list[TextSign]]], seen_NC: Floats
) -> Iterator[tuple[int, str, list[tuple[int, int, list[Joined]]]]]:
    """Yield which view of the photograph is which face of the text, the surest first, with their aligned lines."""
    tried = [
        (*align_face([seen_NC[row] for row in rows], lines), view, face)
        for view, rows in views.items()
        for face, lines in parts.items()
    ]
    left_views, left_faces = set(views), set(parts)
    for _, found, view, face in sorted(tried, key=lambda t: -t[0]):
        if view in left_views and face in left_faces:
            left_views.remove(view)
            left_faces.remove(face)
            yield view, face, found


def _row(label: TextLabel, photograph: Photograph, inventory: Inventory) -> str:
    sign = inventory[label.class_id]
    x0, y0, x1, y1 = (round(float(v), 1) for v in label.box)
    cells = (x0, y0, round(x1 - x0, 1), round(y1 - y0, 1))
    about = (SOURCE, label.reading, sign.mzl, sign.name, sign.glyph, _VIEWS.get(label.face, ""), "", photograph.split)
    return "\t".join(map(str, (photograph.file, *cells, *about)))
