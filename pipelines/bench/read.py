"""How much faster does a photograph get read in bfloat16, by the weights that ship?"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import ReadConfig, shipped_config
from dubsar.datasets.crops import cut_crops
from dubsar.datasets.images import load_image
from dubsar.datasets.tablet import Tablet
from dubsar.datasets.tiles import cut, tile_grid
from dubsar.pipelines.bench.measure import Arm, Effort, Measured, amdahl, compare, interleave, timings
from dubsar.pipelines.reading.engine import Engine, classify_crops, detect_tiles
from dubsar.pipelines.reading.read import read_photograph

FP32, BF16 = "fp32", "bf16"
REQUIRED = 1.4
SAMPLE = Path(__file__).resolve().parents[2] / "datasets" / "sample" / "tablet.jpg"
_STEPS = ("find", "classify")  # of reading, those that compute in bf16


def bench_read(effort: Effort) -> list[Measured]:
    """Time detector, classifier, and reading as a whole; the transliterator computes in fp32 either way."""
    configs = {p: load(shipped_config("read"), ReadConfig, ("device=cpu", f"precision={p}")) for p in (FP32, BF16)}
    engines = {precision: Engine.load(config) for precision, config in configs.items()}
    claims: dict[str, Any] = {"required": REQUIRED, "not_applicable": why_not_bf16()}
    engine, rgb = engines[FP32], load_image(SAMPLE).rgb_HW3
    signs = Tablet.from_dict(json.loads(SAMPLE.with_suffix(".json").read_bytes())).signs()
    boxes = [sign.box for sign in signs if sign.box]
    crops = cut_crops(rgb, boxes[: 4 if effort.tiny else 128], engine.crops)
    tiles = tile_grid(rgb.shape[1], rgb.shape[0], engine.tiles.tile, 0)[: 1 if effort.tiny else engine.tiles.batch_size]
    pixels = np.stack([cut(rgb, tile, pad_value=0) for tile in tiles])

    def measured(name: str, unit: str, work: Callable[[str], object], **more: Any) -> Measured:
        samples = interleave([Arm(p, partial(_at, work, p)) for p in (FP32, BF16)], effort)
        return Measured(name, unit, timings(samples), [compare(samples, FP32, BF16, **claims, **more)])

    detector = measured("detector", f"{len(pixels)} tiles", lambda p: detect_tiles(engine.detector, pixels, p))
    classifier = measured(
        "classifier", f"{len(crops)} crops", lambda p: classify_crops(engine.classifier, crops, precision=p)
    )
    if effort.tiny:
        return [detector, classifier]
    found = read_photograph(SAMPLE, engine, configs[FP32])
    share = sum(found.seconds[step] for step in _STEPS) / sum(found.seconds.values())
    bound = amdahl(share, detector.comparisons[0].speed_up.value)
    whole = measured("read", "photograph", lambda p: read_photograph(SAMPLE, engines[p], configs[p]), bound=bound)
    return [detector, classifier, whole]


def _at(work: Callable[[str], object], precision: str, _: int) -> None:
    work(precision)


def why_not_bf16() -> str:
    """Say why this machine cannot be held to a gain from bfloat16; empty where it can."""
    try:
        supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # torch builds without oneDNN
        supported = False
    return "" if supported and _has_bf16_arithmetic() else "this CPU has neither avx512_bf16 nor AMX"


def _has_bf16_arithmetic() -> bool:
    """Look for the instructions; oneDNN says yes to processors, too, that convert and compute in float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
