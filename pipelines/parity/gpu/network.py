"""Checks on a GPU of the levers that act on the network itself: layout, compilation, CUDA graphs, recomputation."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from dubsar.configs.blocks import Efficiency
from dubsar.pipelines.levers.apply import Network, apply_levers
from dubsar.pipelines.levers.compiling import CompileMeter
from dubsar.pipelines.levers.observe import Replays
from dubsar.pipelines.levers.resolve import resolve
from dubsar.pipelines.parity.exact.tiers import deterministic
from dubsar.pipelines.parity.gpu.figures import (
    BF16,
    BITS,
    IN_16_BITS,
    RATIO,
    CannotJudge,
    Found,
    computed,
    error_ratio,
    in_float64,
    loss_of,
    resnet,
    timed,
    traced,
    training,
    unequal,
    vit,
    yolo,
)

GIB = 2**30


def with_levers(network: Network, **levers: Any) -> Network:
    """Return a copy with levers applied, as if there were a GPU: on a CPU they are seen not to act."""
    changed = copy.deepcopy(network)
    apply_levers(changed, resolve(Efficiency(**levers), "classify", cuda=True))
    return changed


def channels_last(device: torch.device, *, tiny: bool = False, of: Literal["resnet", "yolo"] = "resnet") -> Found:
    """Compare a network whose channels lie innermost with the same one in bf16, both against float64."""
    network, batch = resnet(device, tiny=tiny) if of == "resnet" else yolo(device, tiny=tiny, side=64 if tiny else 640)
    changed = with_levers(network, channels_last=True)
    innermost = {"pixels": batch["pixels"].contiguous(memory_format=torch.channels_last)}  # as training hands them over
    values = [computed(n, partial(loss_of, n, b, BF16)) for n, b in ((changed, innermost), (network, batch))]
    ratio, worst = error_ratio(values[0], values[1], in_float64(network, batch))
    before, after = training(network, batch), training(changed, innermost)
    last, told = traced(partial(after, 0)).channels_last_share()
    seen = f"channels innermost in the inputs of {last} of {told} convolutions; worst in {worst}"
    speed = timed(("contiguous", before), ("channels_last", after), "forward and backward", tiny=tiny)
    return Found(ratio, IN_16_BITS, RATIO, 0 < told < 1.1 * last, seen, speed)


def cuda_graphs(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare a detector that is replayed from a CUDA graph with the same one launched kernel by kernel, to the bit."""
    network, batch = yolo(device, tiny=tiny, count=1, side=64 if tiny else 640)
    tiles = batch["pixels"]
    network.eval()
    wanted = {"boxes": network.detect(tiles)}
    if unequal({"boxes": network.detect(tiles)}, wanted):
        raise CannotJudge("the detector does not give the same bits twice without a graph")
    graphed: Any = with_levers(network, cuda_graphs=True)
    replays = Replays()
    replays.install()
    try:
        for other in (tiles.flip(-1), tiles.flip(-2), tiles.flip(-1)):  # recorded, and replayed on other tiles
            graphed.detect(other)
        found = {"boxes": graphed.detect(tiles)}
    finally:
        count = replays.remove()
    wrong = unequal(found, wanted)
    apart = float((found["boxes"] - wanted["boxes"]).abs().max())
    seen = f"{count} graphs replayed in 4 calls" + (f"; up to {apart:.1e} apart" if wrong else "")
    arms = ("kernel by kernel", lambda _: network.detect(tiles)), ("graph", lambda _: graphed.detect(tiles))
    return Found(len(wrong), 0, BITS, count > 0, seen, timed(*arms, "tile", tiny=tiny))


def max_autotune(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare a block compiled with max-autotune with the same in mode default, in bf16, both against float64."""
    network, batch = vit(device, tiny=tiny, depth=1)
    default, tuned = (
        with_levers(network, compile="per_block", compile_mode=mode) for mode in ("default", "max-autotune")
    )
    reference = computed(default, partial(loss_of, default, batch, BF16))
    meter = CompileMeter()
    found = computed(tuned, partial(loss_of, tuned, batch, BF16))
    costs = meter.read()
    ratio, worst = error_ratio(found, reference, in_float64(network, batch))
    templates = traced(partial(training(tuned, batch), 0)).count("triton_tem")
    seen = (
        f"{costs.tuned} kernels tuned in {costs.seconds:.0f} s, {templates} from templates in a step, "
        f"{costs.breaks} graph breaks; worst in {worst}"
    )
    arms = ("default", training(default, batch)), ("max-autotune", training(tuned, batch))
    return Found(
        ratio, IN_16_BITS, RATIO, costs.tuned + templates > 0, seen, timed(*arms, "forward and backward", tiny=tiny)
    )


def checkpointing(
    device: torch.device, *, tiny: bool = False, how: Literal["selective", "full"] = "selective"
) -> Found:
    """Compare gradients with recomputed activations to those with kept ones, to the bit, and the memory of both."""
    network, batch = vit(device, tiny=tiny)
    changed = with_levers(network, checkpointing=how)
    with deterministic():
        wanted, again = (computed(network, partial(loss_of, network, batch, BF16)) for _ in range(2))
        if differing := unequal(again, wanted):
            raise CannotJudge(
                f"without the lever {len(differing)} tensors differ from run to run, such as {differing[0]}"
            )
        wrong = unequal(computed(changed, partial(loss_of, changed, batch, BF16)), wanted)
    del wanted, again
    before, after = training(network, batch), training(changed, batch)
    repeated = traced(partial(after, 0)).recomputed()
    seen, saved = f"{repeated} calls repeated", True
    if device.type == "cuda":
        kept, recomputed = (_peak_gib(device, passes) for passes in (before, after))
        seen, saved = f"{seen}; {kept:.2f} GiB of activations and gradients become {recomputed:.2f}", recomputed < kept
    if wrong:
        seen += f"; first unequal {wrong[0]}"
    speed = timed(("kept", before), ("recomputed", after), "forward and backward", tiny=tiny)
    return Found(len(wrong), 0, BITS, repeated > 0 and saved, seen, speed)


def _peak_gib(device: torch.device, passes: Callable[[int], None]) -> float:
    """Return the most memory that a forward and backward pass takes, beyond what is there before."""
    passes(0)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    passes(0)
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / GIB
