"""The report of a classifier on a split: ``report.html`` with its pictures, and ``scores.json``."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dubsar.datasets.crops import CropSize, cut_crops
from dubsar.datasets.formats.tablet_signs import Photograph
from dubsar.datasets.inventory import Inventory
from dubsar.datasets.photographs import open_photographs
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.calibration import best_guess, reliability
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.console import cell
from dubsar.pipelines.feature_pictures import Tile, png, sheet
from dubsar.pipelines.pages import html_page, html_picture, html_table, html_text
from dubsar.pipelines.scoring.confusions import Pair, confused_pairs, confusion_shares
from dubsar.pipelines.scoring.evaluate import Examined
from dubsar.pipelines.scoring.pictures import draw_confusions, draw_frequencies, draw_reliability
from dubsar.pipelines.scoring.scores import FREQUENCIES, Scores, answers, frequency_name
from dubsar.pipelines.signs import sign_font
from dubsar.pipelines.training import commit, hardware

CREDIT = (
    "Crops are of photographs (c) The Trustees of the British Museum: CC BY-NC-SA 4.0, non-commercial. "
    "Boxes: eBL (MIT) and Dencker et al. 2020. Pass this page on under these terms alone."
)
OTHER_CREDIT = "Crops are of pictures in {}: pass this page on as their licence allows, which dubsar does not know."
CLASSES, PAIRS = 40, 20
Pixels = npt.NDArray[np.uint8]


def write_sign_report(folder: Path, seen: Examined, scores: Scores, title: str) -> None:
    """Write the report of a split; a split without crops has tables only.

    Args:
        folder: made where it is absent; files of an earlier report are replaced.
        seen: what the classifier made of the split.
        scores: of it.
        title: of the page.

    Raises:
        OSError, ImageError: a picture cannot be written, or a training photograph not be read.
    """
    found = answers(seen.looks, seen.temperature)
    pictures, pairs = dict[str, bytes](), list[Pair]()
    if len(found.truth_N):
        guess_N = found.probabilities_NC.argmax(1)
        classes_K, shares_KL = confusion_shares(found.truth_N, guess_N, CLASSES)
        signs = [seen.inventory[int(c)] for c in classes_K]
        pictures["confusion"] = draw_confusions(signs, shares_KL, sign_font(seen.data))
        pairs = confused_pairs(found.truth_N, guess_N, PAIRS)
        before = answers(seen.looks, 1.0)
        kinds = {"temperature 1": before, f"temperature {seen.temperature:.2f}, of the card": found}
        reliable = {n: reliability(*best_guess(a.probabilities_NC, a.truth_N)) for n, a in kinds.items()}
        pictures["reliability"] = draw_reliability(reliable)
        bins = [frequency_name(low, high) for low, high in FREQUENCIES]
        pictures["frequency"] = draw_frequencies([(name, scores[name]) for name in bins if name in scores])
    if pairs:
        pictures["confused"] = png(_examples(pairs, seen, found.confidence_N))
    for name, data in pictures.items():
        write_atomically(folder / f"{name}.png", partial(_put, data))
    page = html_page(title, _parts(scores, pictures, pairs, seen))
    write_atomically(folder / "report.html", lambda file: file.write(page.encode()))
    rows = [_pair_row(pair, seen.inventory) for pair in pairs]
    about = {"title": title, "commit": commit(), "hardware": hardware(), "temperature": seen.temperature}
    write_json(folder / "scores.json", {**about, "scores": scores, "confused": rows})


def _put(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def first_crops(
    photographs: Sequence[Photograph], wanted: set[int], inventory: Inventory, size: CropSize
) -> dict[int, Pixels]:
    """Cut the first labelled sign of each wanted class; only photographs that hold one are read.

    Args:
        photographs: to look through, in their order.
        wanted: class ids.
        inventory: of the classes.
        size: of the crops.

    Returns:
        By class id uint8 (S, S, 3); a class that has no sign on them is absent.
    """
    chosen: dict[str, dict[int, int]] = {}
    left = set(wanted)
    for photograph in photographs:
        for number, box in enumerate(photograph.boxes):
            class_id = inventory.id_of_glyph.get(box.glyph, -1)
            if class_id in left:
                left.remove(class_id)
                chosen.setdefault(photograph.file, {})[class_id] = number
    crops: dict[int, Pixels] = {}
    for photograph, image in open_photographs([p for p in photographs if p.file in chosen]):
        for class_id, number in chosen[photograph.file].items():
            boxes = image.from_file_pixels(np.array([photograph.boxes[number].box_xyxy]))
            crops[class_id] = cut_crops(image.rgb_HW3, boxes, size)[0]
    return crops


def _examples(pairs: Sequence[Pair], seen: Examined, confidence_N: npt.NDArray[np.float64]) -> Pixels:
    """Lay out for each pair, half a row: a crop that was misread, and a training crop of both classes."""
    wanted = {c for pair in pairs for c in (pair.truth, pair.taken)}
    training = first_crops(seen.training, wanted, seen.inventory, seen.size)
    tiles = []
    for pair in pairs:
        truth, taken = (_name(seen.inventory, c) for c in (pair.truth, pair.taken))
        worst = max(pair.crops, key=lambda n: (confidence_N[n], -n))
        sure = f"{100 * confidence_N[worst]:.0f} % sure, {len(pair.crops)} of {pair.of}"
        tiles.append(Tile(seen.looks.pixels_NSS3[worst], (f"{truth} as {taken}", sure)))
        for c, name in ((pair.truth, truth), (pair.taken, taken)):
            tiles.append(Tile(training.get(c), (name, "training" if c in training else "not in training")))
    return sheet(tiles, columns=6, framed=False)


def _parts(scores: Scores, pictures: dict[str, bytes], pairs: Sequence[Pair], seen: Examined) -> list[str]:
    captions = {
        "reliability": "Reliability on this split at temperature 1, and at that of the model card, which `dubsar ship` "
        "fits on dev; weights of a run that did not ship have 1",
        "frequency": "Right answers by training crops of the class",
        "confusion": f"What the {CLASSES} most frequent signs are taken for, share of each row (colour by square root)",
        "confused": "The most frequent confusions: the crop misread with most confidence, a training crop of the true "
        "sign, and one of the sign that it was taken for",
    }
    parts = [html_text(f"Commit {commit()}, {hardware()}.")]
    if "confused" in pictures:
        known = seen.data.source == "tablet-signs"
        parts.append(html_text(CREDIT if known else OTHER_CREDIT.format(seen.data.root)))
    kinds: dict[tuple[str, ...], list[tuple[str, dict[str, float]]]] = {}
    for name, row in scores.items():
        kinds.setdefault(tuple(row), []).append((name, row))
    for columns, rows in kinds.items():
        parts.append(html_table(("", *columns), [(n, *(cell(k, v) for k, v in row.items())) for n, row in rows]))
    for name, caption in captions.items():
        if name in pictures:
            parts += [f"<h2>{name.capitalize()}</h2>", html_text(caption + "."), html_picture(name, pictures[name])]
    if pairs:
        rows_of_pairs = [_pair_row(pair, seen.inventory).values() for pair in pairs]
        parts.append(html_table(tuple(_pair_row(pairs[0], seen.inventory)), map(tuple, rows_of_pairs)))
    return parts


def _pair_row(pair: Pair, inventory: Inventory) -> dict[str, str | int]:
    signs = {"sign": pair.truth, "taken for": pair.taken}
    named = {key: f"{inventory[c].glyph} {_name(inventory, c)}" for key, c in signs.items()}
    return {**named, "crops": len(pair.crops), "of": pair.of}


def _name(inventory: Inventory, class_id: int) -> str:
    return inventory[class_id].name or inventory[class_id].glyph
