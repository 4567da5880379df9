"""How many images a second does pretraining train on, against DINOv2 of lightly's building blocks?

Both have one number of tokens, width, depth and heads, the same views, batch, prototypes, optimizer and precision. An
image is one with all of its views. Steps take batches made beforehand; making batches is timed beside them.
"""

import gc
import importlib.util
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dubsar.configs.base import load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import PretrainConfig, shipped_config
from dubsar.datasets.sources import data_root
from dubsar.datasets.unlabelled import TileCache
from dubsar.pipelines.bench.measure import (
    Arm,
    Comparison,
    Effort,
    Measured,
    Samples,
    compare,
    interleave,
    rates,
    timings,
)
from dubsar.pipelines.bench.stage import PlainLoop, Small
from dubsar.pipelines.levers.apply import apply_levers
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import build_ssl
from dubsar.pipelines.stages.pretrain import PretrainSystem, ViewStream
from dubsar.pipelines.tile_cache import open_tiles

OURS, LIGHTLY, ATTENTION, OFF = "ours", "lightly", ", our attention", ", levers off"
STEP, INPUT, BOTH = "step", "input", "input and step"
REQUIRED = 1.2
# what is rare in a run or not in lightly's example is off: labelled signs, frozen prototypes, Gram anchoring
_FEW = (
    "data.labelled=false",
    "data.synthetic_tablets=0",
    "model.freeze_prototypes_steps=0",
    "model.gram=null",
    "trainer.max_steps=2000",
)
_BATCHES = 2
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_DIFFERS = (
    "lightly's attention is timm's own choice, PyTorch's fused kernel; 'our attention' is the config's lever",
    "lightly's ViT has learned positions where ours has rotary ones, and as many registers",
    "lightly centres the teacher by a running mean, ours by Sinkhorn-Knopp; ours computes losses in float32",
    "lightly draws masks in the step and normalises in the input, ours the other way round",
)
Step = Callable[[int], object]


def bench_pretrain(effort: Effort) -> list[Measured]:
    """Time steps and the making of batches, all interleaved; then measure each arm's memory in a process of its own.

    Raises:
        ValueError: lightly is not installed.
    """
    if importlib.util.find_spec("lightly") is None:
        raise ValueError("bench pretrain compares with the package lightly, which is not here: pip install lightly")
    with _few_tiles(effort) as (config, tiles):
        stream = _small(config, tiles).stream
        batches = [stream.batch(number) for number in range(_BATCHES)]
        names = (OURS, LIGHTLY, LIGHTLY + ATTENTION, OURS + OFF, LIGHTLY + OFF)
        calls = {STEP: {name: training_step(name, config, tiles, batches) for name in names}}
        calls[INPUT] = _inputs(config, tiles, stream)
        images = config.data.batch_size
        arms = [Arm(f"{what} {n}", c, lambda _: images) for what, of in calls.items() for n, c in of.items()]
        samples = interleave(arms, effort)
        memory = memory_note(names, config, tiles, batches)
    groups = {what: {name: samples[f"{what} {name}"] for name in of} for what, of in calls.items()}
    return [
        _measured(STEP, groups[STEP], _compare_steps(groups[STEP]), (memory, *_DIFFERS)),
        _measured(INPUT, groups[INPUT], [compare(groups[INPUT], LIGHTLY, OURS)]),
        _together(groups),
    ]


@contextmanager
def _few_tiles(effort: Effort) -> Iterator[tuple[PretrainConfig, TileCache]]:
    """Cut some photographs; not in the user's cache, whose index would forget all others."""
    with tempfile.TemporaryDirectory() as folder:
        few = (*_FEW, f"data.limit={1 if effort.tiny else 4}", f"data.cache={folder}")
        config = load(shipped_config("debug/pretrain" if effort.tiny else "vit/pretrain"), PretrainConfig, few)
        yield config, open_tiles(config, data_root())


def training_step(arm: str, config: PretrainConfig, tiles: TileCache, batches: list[Any]) -> Step:
    """Return what takes a round's step, with its own network; ``arm`` is a name of the first group's arms."""
    if arm.endswith(OFF):
        config = config.model_copy(update={"efficiency": Efficiency()})
    if arm.startswith(OURS):
        return partial(_step, PlainLoop(_small(config, tiles)), batches)
    from dubsar.pipelines.bench.lightly_step import LightlyLoop, views_of

    loop = LightlyLoop(config, same_attention=arm.endswith(ATTENTION))
    return partial(_step, loop, [views_of(batch) for batch in batches])


def _step(loop: Any, batches: list[Any], number: int) -> None:
    loop.step(batches[number % len(batches)], number)


def _small(config: PretrainConfig, tiles: TileCache) -> Small:
    levers = resolve_config(config)
    torch.manual_seed(config.trainer.seed)
    network = build_ssl(config, attention=levers["attention"])
    apply_levers(network, levers)
    stream = ViewStream(tiles, config, network.student.encoder.stride)
    return Small(config, levers, PretrainSystem(network, None, config, levers).train(), stream)


def _inputs(config: PretrainConfig, tiles: TileCache, stream: Any) -> dict[str, Step]:
    """Return what makes a round's batch: ours from tiles on disk, lightly's from tiles in memory."""
    from dubsar.pipelines.bench.lightly_step import LightlyInput

    chosen = np.linspace(0, len(tiles) - 1, config.data.batch_size).astype(int)
    theirs = LightlyInput(config, [tiles.tile(int(index)) for index in chosen])
    return {OURS: stream.batch, LIGHTLY: lambda _: theirs.batch()}


def _compare_steps(samples: Samples) -> list[Comparison]:
    return [
        compare(samples, LIGHTLY, OURS, required=REQUIRED),
        compare(samples, LIGHTLY + ATTENTION, OURS),
        compare(samples, LIGHTLY + OFF, OURS + OFF),
        compare(samples, OURS + OFF, OURS),
    ]


def _together(groups: dict[str, Samples]) -> Measured:
    """Add up each round's input and step, as one process without workers would do one after the other."""
    names = list(groups[INPUT])
    samples = {n: [a + b for a, b in zip(groups[STEP][n], groups[INPUT][n], strict=True)] for n in names}
    median = {what: {t.arm: t.median for t in timings(of)} for what, of in (groups | {BOTH: samples}).items()}
    stalls = ", ".join(f"{n} {100 * median[INPUT][n] / (median[INPUT][n] + median[STEP][n]):.0f} %" for n in names)
    note = f"share of the time that the step waits for its input: {stalls}; with workers less"
    return _measured(BOTH, samples, [compare(samples, LIGHTLY, OURS)], (note,))


def _measured(name: str, samples: Samples, comparisons: list[Comparison], notes: tuple[str, ...] = ()) -> Measured:
    return Measured(name, "image", timings(samples), comparisons, (rates("image", samples), *notes))


# --- memory


def memory_note(names: tuple[str, ...], config: PretrainConfig, tiles: TileCache, batches: list[Any]) -> str:
    """Tell the memory of each arm's network, optimizer and step, each measured in a process of its own."""
    if not _RESET.exists():
        return "memory is left out: only Linux tells a process's peak since a moment"
    arrays = [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]
    found = []
    for name in names:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            peak = pool.submit(_peak, name, config, tiles, arrays).result()
        found.append(f"{name} {peak / 2**20:,.0f} MiB")
    return "peak of resident memory over what imports take: " + "; ".join(found)


def _peak(arm: str, config: PretrainConfig, tiles: TileCache, arrays: list[dict[str, Any]]) -> int:
    """Return the bytes by which this process grows from before an arm's network is built to the peak of three steps."""
    import dubsar.pipelines.bench.lightly_step  # noqa: F401  imports are not to be counted

    torch.set_num_threads(1)
    batches = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in arrays]
    _import_the_rest()
    gc.collect()
    _RESET.write_text("5")  # the peak becomes what is resident now
    before = _resident("VmRSS")
    step = training_step(arm, config, tiles, batches)
    for number in range(3):
        step(number)
    return _resident("VmHWM") - before


def _import_the_rest() -> None:
    """Take a step of next to nothing: the first one imports much of PyTorch."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(2, 2)).sum().backward()
    optimizer.step()


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])
