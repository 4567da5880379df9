"""What `dubsar evaluate` does: score shipped or given weights on a split, print a table, write JSON on request."""

import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from dubsar.configs.schema import ReadConfig
from dubsar.datasets.alignment import ReadingTable
from dubsar.datasets.formats.catf import read_catf
from dubsar.datasets.formats.tablet_signs import Photograph, read_tablet_signs
from dubsar.datasets.images import ImageError
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.lines import read_line_pairs
from dubsar.datasets.photographs import labelled_photographs
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.models.checkpoint import shipped
from dubsar.pipelines.callbacks import write_json
from dubsar.pipelines.console import cell, print_table
from dubsar.pipelines.metrics import Found, average_precision, score_text
from dubsar.pipelines.networks import find_device, inventory_of, load_byt5, load_detector
from dubsar.pipelines.reading.evaluate import ReadScores, add_signs, add_text
from dubsar.pipelines.reading.progress import watched
from dubsar.pipelines.reading.read import Reading, load_engine, read_photograph
from dubsar.pipelines.scoring.evaluate import evaluate_signs
from dubsar.pipelines.scoring.scores import FREQUENT, Scores
from dubsar.pipelines.training import commit, hardware

_CPU = torch.device("cpu")


def evaluate_stage(
    stage: str,
    weights: Path | None,
    split: str,
    *,
    limit: int = 0,
    out: Path | None = None,
    device: str = "auto",
    report: Path | None = None,
    relight: int = 0,
) -> Scores:
    """Score one stage's weights on a split, and print and return the scores by subset.

    Args:
        stage: which one.
        weights: those that ship where None.
        split: ``train``, ``dev`` or ``test``.
        limit: at most so many crops, photographs or lines; 0: all.
        out: JSON to write.
        device: see `find_device`.
        report: of ``classify``: a folder for a page with pictures.
        relight: of ``classify``: also look at each crop under so many other exposures.

    Raises:
        ValueError: the device is not there, ``out`` or ``report`` lies in the data folder, or another stage than
            ``classify`` is asked for what only that has.
    """
    for path, option in ((out, "--out"), (report, "--report")):
        if path is not None:
            require_outside_data(path, option)
    found = find_device(device)
    if stage == "classify":
        asked: dict[str, Any] = {"report": report, "relight": relight}
    elif report is not None or relight:
        option = "--relight" if report is None else "--report"
        raise ValueError(f"{option}: only `evaluate classify` has it, not {stage}; leave it out")
    else:
        asked = {}
    scores = SCORERS[stage](weights or shipped(stage), split, limit, found, **asked)
    _report(f"{stage} on {split}", scores, out, found)
    return scores


def _detect(path: Path, split: str, limit: int, device: torch.device = _CPU) -> Scores:
    """Score detection on the CompVis part and on the eBL part."""
    from dubsar.pipelines.stages.detect import score_photographs

    network, config, file = load_detector(path)
    network.to(device)
    inventory = inventory_of(file, path)
    if config.model.classes == "inventory":  # its classes are scored by the data's ids
        read_inventory(data_root()).require(inventory.hash, str(path))
    drop = config.data.ignore_unknown and split == "train"
    photographs = labelled_photographs(data_root(), split, ignore_unknown=drop)
    parts = {s: [p for p in photographs if p.source == s][: limit or None] for s in ("compvis", "ebl")}
    return {
        name: score_photographs(network, part, config) | {"photographs": len(part)}
        for name, part in parts.items()
        if part
    }


def _transliterate(path: Path, split: str, limit: int, device: torch.device = _CPU) -> Scores:
    """Score lines by source: as shipped, the network without its table of readings, and the commonest readings alone.

    Hittite also on KBo 32.14 alone, whose tablet is in no other split.
    """
    from dubsar.pipelines.stages.transliterate import score_lines

    network, config, _ = load_byt5(path)
    network.to(device)
    compact, beams = config.model.sign_encoding == "compact", config.model.beams
    score = partial(score_lines, network, compact=compact, beams=beams)
    weight = network.readings_weight
    scores: Scores = {}
    for source in config.data.sources:
        lines = [p for p in read_line_pairs(data_root(), source, split) if p.language != "xhu" and p.signs]
        lines = lines[: limit or None]
        scores[source] = score(lines).to_dict()
        alone = [p for p in lines if p.text_id == "KBo 32.14"]
        if alone:
            scores["hittite, KBo 32.14"] = score(alone).to_dict()
        network.readings_weight = 0.0
        scores[f"{source}, network alone"] = score(lines).to_dict()
        network.readings_weight = weight
        table = ReadingTable.count((p.signs, p.translit) for p in read_line_pairs(data_root(), source, "train"))
        scores[f"{source}, commonest readings"] = score_text(
            ["-".join(map(table.commonest, p.signs)) for p in lines], [p.translit for p in lines]
        ).to_dict()
    return scores


def _pretrain(path: Path, split: str, limit: int, device: torch.device = _CPU) -> Scores:
    """Score frozen features of true boxes: k-NN and a linear probe from train to the split.

    Over all classes, and over those with `FREQUENT` training crops or more. Beside them stand gradients of the pixels
    (HOG), where scikit-image is installed, and, for what `dubsar train pretrain` wrote, the same network with random
    weights. Weights of a classifier can be given as well: what does supervision give?
    """
    from dubsar.pipelines.embeddings import load_embedder
    from dubsar.pipelines.features import hog, knn, linear_probe
    from dubsar.pipelines.stages.classify import read_crops

    given = load_embedder(path, device)
    inventory = read_inventory(data_root())
    bank, asked = (read_crops(data_root(), s, given.crops, inventory, limit) for s in ("train", split))
    sources: dict[str, Callable[[Any], Any]] = {"given": given.embed_crops}
    if given.stage == "pretrain":
        torch.manual_seed(0)
        sources["random"] = load_embedder(path, device, fresh=True).embed_crops
    if find_spec("skimage"):
        sources["HOG"] = hog
    frequent = np.bincount(bank.classes_N, minlength=len(inventory)) >= FREQUENT
    scores: Scores = {}
    for name, features in sources.items():
        bank_ND, asked_MD = features(bank.pixels_NSS3), features(asked.pixels_NSS3)
        for classes, kept in (("all classes", frequent | True), (f"{frequent.sum()} classes", frequent)):
            of_bank_N, of_asked_M = kept[bank.classes_N], kept[asked.classes_N]
            # of a few crops no class is frequent
            for measure in (knn, linear_probe) if of_bank_N.any() and of_asked_M.any() else ():
                best_M5 = measure(
                    bank_ND[of_bank_N], bank.classes_N[of_bank_N], asked_MD[of_asked_M], classes=len(inventory)
                )
                right_M5 = best_M5 == asked.classes_N[of_asked_M][:, None]
                scores[f"{name}, {measure.__name__.replace('_', ' ')}, {classes}"] = {
                    "top1": 100 * float(right_M5[:, 0].mean()),
                    "top5": 100 * float(right_M5.any(1).mean()),
                    "crops": len(right_M5),
                }
    return scores


SCORERS: dict[str, Callable[..., Scores]] = {
    "pretrain": _pretrain,
    "classify": evaluate_signs,
    "detect": _detect,
    "transliterate": _transliterate,
}


def evaluate_read(config: ReadConfig, split: str, *, limit: int = 0, out: Path | None = None) -> Scores:
    """Read every photograph of a split and score it from boxes to text; a photograph that fails counts in full.

    Raises:
        ValueError: the config's device is not there, or ``out`` lies in the data folder.
    """
    if out is not None:
        require_outside_data(out, "--out")
    root, engine = data_root(), load_engine(config)
    scores, found = ReadScores(), []
    photographs = read_tablet_signs(root, split=split)[: limit or None]
    for photograph in watched(photographs, "reading"):
        reading = None
        try:
            reading = read_photograph(photograph.path, engine, config)
            scores.seconds.append(reading.seconds)
        except (ImageError, OSError, MemoryError) as error:
            print(f"failed, counted as all deletions: {error}")
        tablet = reading.tablet if reading else None
        boxes = np.array([b.box_xyxy for b in photograph.boxes], dtype=np.float64).reshape(-1, 4)
        add_signs(scores, tablet, boxes, [b.glyph for b in photograph.boxes])
        atf = root / "tablet-signs" / "text" / f"{photograph.object_id}.atf"
        if atf.exists():
            add_text(scores, tablet, read_catf(atf))
        if photograph.source == "compvis":
            found.append(_all_found(photograph, reading, engine))
    summary = scores.summary() | {"peak_gib": _peak_bytes() / 2**30}
    for name, part in zip(("class-agnostic", "with class"), zip(*found, strict=True), strict=False):
        summary |= {f"{measure} {name}, compvis": value for measure, value in average_precision(part).items()}
    result = {"read": summary}
    _report(f"read on {split}, {len(photographs)} photographs", result, out, engine.device)
    return result


def _all_found(photograph: Photograph, reading: Reading | None, engine: Any) -> tuple[Found, Found]:
    """Put all detections beside the truth, whatever the reading threshold: class-agnostic, and with class.

    With class the score is that of the detection times the probability of the best class. Nothing is found on a
    photograph that could not be read.
    """
    true = np.array([b.box_xyxy for b in photograph.boxes], dtype=np.float64).reshape(-1, 4)
    ids = engine.inventory.id_of_glyph
    # a sign that the inventory lacks can be found, but never named right
    true_classes = np.array([ids.get(b.glyph, len(ids)) for b in photograph.boxes], dtype=np.int64)
    if reading is None:
        none = Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64), true, true_classes)
        return replace(none, true_classes_M=true_classes * 0), none
    image, found = reading.image, reading.detections
    probabilities, classes = engine.classify(image.rgb_HW3, found.boxes_N4, 1)
    agnostic = Found(image.to_file_pixels(found.boxes_N4), found.scores_N, classes[:, 0] * 0, true, true_classes * 0)
    return agnostic, replace(
        agnostic, scores_N=found.scores_N * probabilities[:, 0], classes_N=classes[:, 0], true_classes_M=true_classes
    )


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _report(title: str, scores: Scores, out: Path | None, device: torch.device) -> None:
    kinds: dict[tuple[str, ...], Scores] = {}
    for subset, part in scores.items():  # what is scored by other measures stands in a table of its own
        kinds.setdefault(tuple(part), {})[subset] = part
    heading = f"{title} (commit {commit()}, {hardware(device)})"
    for same in kinds.values():
        print_table(_table(heading, same))
        heading = ""
    if out is not None:
        write_json(out, {"title": title, "commit": commit(), "hardware": hardware(device), "scores": scores})


def _table(title: str, scores: Scores) -> Table:
    cells = {(name, subset): cell(name, value) for subset, part in scores.items() for name, value in part.items()}
    if len(scores) > len({name for name, _ in cells}):  # a page is higher than wide
        cells = {(subset, name): value for (name, subset), value in cells.items()}
    rows, columns = (list(dict.fromkeys(place[axis] for place in cells)) for axis in (0, 1))
    table = Table("", *columns, title=title or None)
    for row in rows:
        table.add_row(row, *(cells.get((row, column), "") for column in columns))
    return table
