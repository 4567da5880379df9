"""Parity of two finished files of weights: nothing is trained, both read the same crops, and the tablets alone vary.

It answers what a distilled student costs against its ensemble, or float16 against float32. One training per arm shows
no spread of seeds, so the verdict holds for these two files: another training by either recipe might fare otherwise
(that is `dubsar parity STAGE --seeds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dubsar.datasets.crops import CropSize
from dubsar.datasets.sources import require_outside_data
from dubsar.models.checkpoint import ModelFile
from dubsar.models.ensemble import Classifier
from dubsar.pipelines.bench.measure import Arm as TimedArm
from dubsar.pipelines.bench.measure import Effort, interleave, speed_up, timings
from dubsar.pipelines.networks import inventory_of, load_classifier
from dubsar.pipelines.parity.arms import Arm
from dubsar.pipelines.parity.outcomes import judge_metrics
from dubsar.pipelines.parity.plan import require_margins
from dubsar.pipelines.parity.report.write import write_reports
from dubsar.pipelines.parity.result import Curve, ParityResult, Ratio
from dubsar.pipelines.parity.run import PACKAGES, compare_arms, compare_strata
from dubsar.pipelines.parity.statistics import worst
from dubsar.pipelines.parity.tallies import HIGHER_IS_BETTER, tally_signs
from dubsar.pipelines.reading.engine import classify_crops, margins, mean_probabilities
from dubsar.pipelines.scoring.scores import training_counts
from dubsar.pipelines.signs import open_common_signs
from dubsar.pipelines.stages.classify import Crops, read_crops
from dubsar.pipelines.training import commit, hardware

STAGE = "classify"
ARMS = ("reference", "candidate")
ROUNDS, AT_ONCE = 12, 32  # crops in a call that is timed
NOTE = (
    "These two files are compared, not these two recipes: each was trained once, so that only the choice of tablets is "
    "in the bounds. Another training by either recipe may fare better or worse than these bounds say."
)


@dataclass(frozen=True)
class Finished:
    """A file of weights at work: its network, the crops of the margin that it was trained on, and its scores."""

    network: Classifier
    file: ModelFile
    crops: Crops
    arm: Arm


def judge_files(reference: Path, candidate: Path, declared: Mapping[str, float], split: str, out: Path) -> ParityResult:
    """Judge whether a candidate's weights are as good as a reference's, and write the reports.

    Args:
        reference, candidate: weights of classify, or run folders; each reads as `dubsar read` does, by three margins.
        declared: the loss that is bearable, percentage points by metric.
        split: whose signs are read: ``dev`` or ``test``.
        out: folder of the reports.

    Raises:
        ValueError: a margin was not declared, there are fewer than two tablets, or ``out`` lies in the data folder.
        InventoryMismatch: the two were made for different sign classes.
        FileNotFoundError, CheckpointError: weights are absent or damaged.
    """
    require_outside_data(out, "--out")
    require_margins(STAGE, declared)
    loaded = [load_classifier(path) for path in (reference, candidate)]
    inventory = inventory_of(loaded[0][2], reference)
    inventory.require(inventory_of(loaded[1][2], candidate).hash, str(candidate))
    signs = open_common_signs([(reference, loaded[0][1].data), (candidate, loaded[1][1].data)])
    unknown = any(config.data.ignore_unknown for _, config, _ in loaded)
    counts_C = training_counts(signs.photographs("train", inventory, ignore_unknown=unknown), inventory)
    cut = partial(read_crops, signs, split, inventory=inventory)
    files = []
    for name, (network, config, file) in zip(ARMS, loaded, strict=True):
        seen = [cut(size=margin) for margin in margins(CropSize(config.data.crop_px, config.data.context))]
        if (tablets := len(np.unique(seen[0].tablets_N))) < 2:
            raise ValueError(
                f"{split} has signs of {tablets} tablet, expected two or more: how they differ is the error"
            )
        files.append(_read(name, network, file, seen, counts_C))
    before, after = ([one.arm] for one in files)
    intervals = compare_arms(STAGE, before, after, finished=True)
    outcomes = judge_metrics(intervals, declared, HIGHER_IS_BETTER)
    ratio, rates = _speeds(files)
    result = ParityResult(
        stage=STAGE,
        levers={},
        preset=f"finished weights on {split}, {len(np.unique(files[0].crops.tablets_N))} tablets",
        commit=commit(),
        hardware=hardware(torch.device("cpu")),
        versions={name: version(name) for name in PACKAGES},
        configs={},
        margins=dict(declared),
        findings=[],
        curves=[one.arm.curve for one in files],
        outcomes=outcomes,
        strata=compare_strata(STAGE, before, after),
        throughput=ratio,
        files={name: _about(one.file, rate) for name, one, rate in zip(ARMS, files, rates, strict=True)},
        notes=[NOTE],
        verdict=worst([o.verdict for o in outcomes]),
    )
    write_reports(result, out)
    return result


def _read(
    name: str, network: Classifier, file: ModelFile, seen: Sequence[Crops], counts_C: npt.NDArray[np.int64]
) -> Finished:
    """Read signs in true boxes, of which there are crops of all margins, as `dubsar read` would."""
    views = [classify_crops(network, crops.pixels_NSS3) for crops in seen]
    said_NC = mean_probabilities(views, float(file.card.get("temperature", 1.0))).numpy()
    tally = tally_signs(said_NC, seen[0], counts_C)
    about = [str(file.card.get(key, "unknown")) for key in ("commit", "hardware")]
    curve = Curve(name, 0, [], [], float("nan"), tally.percent, *about)  # there is no training to draw
    return Finished(network, file, seen[0], Arm(curve, tally, []))


def _speeds(files: list[Finished]) -> tuple[Ratio, list[float]]:
    """Time both, interleaved, on some of their own crops; return the ratio and crops per second."""
    count = min(AT_ONCE, len(files[0].crops.classes_N))
    arms = [
        TimedArm(name, partial(_classify_some, one), lambda _: float(count))
        for name, one in zip(ARMS, files, strict=True)
    ]
    samples = interleave(arms, Effort(ROUNDS))
    return speed_up(*(samples[name] for name in ARMS)), [1 / timing.median for timing in timings(samples)]


def _classify_some(one: Finished, _: int) -> object:
    return classify_crops(one.network, one.crops.pixels_NSS3[:AT_ONCE])


def _about(file: ModelFile, crops_per_second: float) -> dict[str, Any]:
    card = file.card
    return {
        "name": str(card["config"]["name"]),
        "sha256": str(card["sha256"]),
        "commit": str(card.get("commit", "unknown")),
        "parameters": int(card["parameters"]),
        "megabytes": file.size / 1e6,
        "crops_per_second": crops_per_second,
    }
