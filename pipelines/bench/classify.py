"""How many crops a second does the classifier train on and read, by family and precision, and beside a timm script?

Steps take a batch made beforehand. A training on one core makes batches and steps by turns, so both are timed.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dubsar.datasets.crops import CropSize
from dubsar.datasets.inventory import read_inventory
from dubsar.datasets.sources import data_root
from dubsar.models.backbones import SignClassifier
from dubsar.pipelines.bench.measure import Arm, Effort, Measured, compare, interleave, rates, timings
from dubsar.pipelines.bench.stage import PlainLoop, Small, build_small, small_config
from dubsar.pipelines.bench.step import Step, beside_lightning
from dubsar.pipelines.bench.timm_step import TimmLoop
from dubsar.pipelines.reading.engine import classify_crops
from dubsar.pipelines.stages.classify import read_crops

FAMILIES = ("", "mobilenet", "convnext", "vit")  # folders of configs/
FP32, BF16 = "fp32", "bf16"
TRAIN, READ, BATCH = "train", "read", "make a batch"
TIMM = "timm script"
CUT, KEPT = "cut from photographs", "from the cache"
_CROPS = 128  # read at once


def bench_classify(effort: Effort) -> list[Measured]:
    """Time Lightning's step beside a timm script's, each family in both precisions, and the cache of crops."""
    families = FAMILIES[: 1 if effort.tiny else None]
    return [
        beside_lightning("classify", effort, TIMM, _timm_step),
        *(_family(name, effort) for name in families),
        _cache(effort),
    ]


def _timm_step(small: Small) -> Step:
    return TimmLoop(small.config, len(small.stream.classes)).step


def _family(name: str, effort: Effort) -> Measured:
    """Time training steps and reading in both precisions, and the making of a batch."""
    calls: dict[str, Callable[[int], object]] = {}
    for precision in (FP32, BF16):
        small = build_small(small_config("classify", effort, f"efficiency.precision={precision}", family=name))
        crops, batch = small.system.dev.pixels_NSS3[:_CROPS], small.stream.batch(0)
        calls[BATCH] = small.stream.batch
        calls[f"{READ} {precision}"] = partial(_read, small.copied().system.network, crops, precision)
        calls[f"{TRAIN} {precision}"] = partial(PlainLoop(small).step, batch)
    count = len(batch["classes_B"])
    units = {name: float(len(crops) if name.startswith(READ) else count) for name in calls}
    samples = interleave([Arm(name, call, partial(_units, units[name])) for name, call in calls.items()], effort)
    seconds = {t.arm: t.median for t in timings(samples)}
    together = (f"{p} {1 / (seconds[BATCH] + seconds[f'{TRAIN} {p}']):,.0f}" for p in (FP32, BF16))
    notes = (rates("crop", samples), f"crops a second, making batches and steps by turns: {'; '.join(together)}")
    gains = [compare(samples, f"{what} {FP32}", f"{what} {BF16}") for what in (TRAIN, READ)]
    return Measured(small.config.model.backbone, "crop", timings(samples), gains, notes)


def _read(network: SignClassifier, crops_NSS3: npt.NDArray[np.uint8], precision: str, _: int) -> torch.Tensor:
    return classify_crops(network, crops_NSS3, precision=precision)


def _cache(effort: Effort) -> Measured:
    """Time getting crops before the first step, to the last byte."""
    data, root = small_config("classify", effort).data, data_root()
    size, inventory = CropSize(data.crop_px, data.context), read_inventory(root)

    def get(cache: Path | None, _: int) -> npt.NDArray[np.uint8]:
        return np.array(read_crops(root, "train", size, inventory, data.limit, cache=cache).pixels_NSS3)

    with tempfile.TemporaryDirectory() as folder:
        places = {CUT: None, KEPT: Path(folder)}
        arms = [Arm(name, partial(get, place), partial(_units, data.limit)) for name, place in places.items()]
        samples = interleave(arms, effort)
    return Measured("crop cache", "crop", timings(samples), [compare(samples, CUT, KEPT)], (rates("crop", samples),))


def _units(count: float, _: int) -> float:
    return count
