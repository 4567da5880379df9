"""Checks of attention on a GPU: the flash kernel, FlexAttention with document masks, and packed optimizer steps."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dubsar.models.precision import at_least_float32
from dubsar.models.transliterator import IGNORED, SignAlignedT5, Size
from dubsar.pipelines.levers.compiling import CompileMeter
from dubsar.pipelines.parity.gpu.figures import (
    BETWEEN_KERNELS,
    BF16,
    DIFFERENCE,
    IN_16_BITS,
    RATIO,
    Batch,
    Found,
    Values,
    adamw,
    computed,
    error_ratio,
    in_float64,
    kernels_of,
    lines,
    logits_of,
    loss_of,
    real_ids,
    relative_errors,
    step_of,
    timed,
    traced,
    training,
    transliterators,
    vit,
)

FLEX_KERNELS = "flex_attention", "triton_tem"  # in the names of what Inductor generates; nothing else is compiled here
TINY_T5 = Size(d_model=32, d_kv=16, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
MIDDLE_T5 = Size(d_model=512, d_kv=64, d_ff=1024, heads=8, encoder_layers=4, decoder_layers=4, dropout=0.0)
BYT5_SMALL = Size(d_model=1472, d_kv=64, d_ff=3584, heads=6, encoder_layers=12, decoder_layers=4, dropout=0.0)


def flash_attention(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare the flash kernel in bf16 with the math kernel in bf16, both against float64."""
    network, batch = vit(device, tiny=tiny)

    def passes(backend: SDPBackend, _: int = 0) -> None:
        with sdpa_kernel(backend):
            training(network, batch)(0)

    def values(backend: SDPBackend) -> Values:
        with sdpa_kernel(backend):
            return computed(network, partial(loss_of, network, batch, BF16))

    flash, math = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    ratio, worst = error_ratio(values(flash), values(math), in_float64(network, batch))
    ran = traced(partial(passes, flash)).attention_kernels()
    on_device = kernels_of(partial(passes, flash), "flash_fwd")[:1]
    seen = " + ".join(f"{count} x {kernel}" for kernel, count in ran.items())
    return Found(
        ratio,
        IN_16_BITS,
        RATIO,
        bool(ran) and all(kernel.startswith("flash") for kernel in ran),
        ", ".join((seen, *(name[:60] for name in on_device), f"worst in {worst}")),
        timed(("math", partial(passes, math)), ("flash", partial(passes, flash)), "forward and backward", tiny=tiny),
    )


def flex_attention(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare FlexAttention with dense masks on packed rows: in float32 by value, in bf16 by speed."""
    dense, flex = transliterators(device, TINY_T5 if tiny else MIDDLE_T5)
    width, backward = 128 if tiny else 1024, device.type == "cuda"  # on a CPU there is no backward pass
    stream = lines(2 * width * (2 if tiny else 8), device, width=width)
    batches = [step_of(stream, number, "pack", device)[0] for number in range(2 if tiny else 4)]
    wanted, found = (computed(n, partial(loss_of, n, batches[0]), backward=backward) for n in (dense, flex))
    difference, worst = max((error, name) for name, error in relative_errors(found, wanted).items())

    def passes(network: SignAlignedT5, number: int = 0) -> None:
        computed(network, partial(loss_of, network, batches[number % len(batches)], BF16), backward=backward)

    passes(flex)
    meter = CompileMeter()
    for number in range(1, len(batches)):
        passes(flex, number)
    anew = meter.read().graphs
    kernels = kernels_of(partial(passes, flex), *FLEX_KERNELS)
    arms = ("dense", partial(passes, dense)), ("flex", partial(passes, flex))
    return Found(
        difference,
        BETWEEN_KERNELS,
        DIFFERENCE,
        bool(kernels),
        f"{', '.join(kernels)[:90] or 'no flex kernel'}; {anew} recompilations in {len(batches) - 1} further batches; "
        f"worst in {worst}",
        timed(*arms, "forward and backward", tiny=tiny) if backward else None,
        fault=f"{anew} graphs compiled anew though no shape changed" if anew else "",
    )


def packed_step(device: torch.device, *, tiny: bool = False) -> Found:
    """Compare an optimizer step on packed rows with the same lines in buckets: losses, gradients, real ids a second."""
    dense, flex = transliterators(device, TINY_T5 if tiny else BYT5_SMALL)
    packed = flex if device.type == "cuda" else dense
    stream = lines(1200 if tiny else 32768, device)
    count = 2 if tiny else 4
    buckets, packs = ([step_of(stream, n, layout, device) for n in range(count)] for layout in ("bucket", "pack"))
    wanted = computed(dense, partial(_mean_loss, dense, buckets[0]))
    found = computed(packed, partial(_mean_loss, packed, packs[0]))
    difference, worst = max((error, name) for name, error in relative_errors(found, wanted).items())
    del wanted, found
    ids = [real_ids(step) for step in packs]
    fill = sum(ids) / sum(r["source_BL"].numel() + r["target_BT"].numel() for step in packs for r in step)
    speed = timed(
        ("buckets", _optimizer_steps(dense, buckets)),
        ("packed", _optimizer_steps(packed, packs)),
        "real id",
        tiny=tiny,
        units=lambda number: ids[number % count],
    )
    kernels = kernels_of(partial(_optimizer_steps(packed, packs), 0), *FLEX_KERNELS)
    rates = f"{1 / speed.baseline_s:,.0f} real ids/s in buckets, {1 / speed.lever_s:,.0f} packed"
    seen = f"{rates}; fill {fill:.0%}; {'flex' if kernels else 'dense masks'}; worst in {worst}"
    return Found(difference, BETWEEN_KERNELS, DIFFERENCE, bool(kernels), seen, speed)


def _mean_loss(network: SignAlignedT5, rectangles: Sequence[Batch], dtype: torch.dtype | None = None) -> Tensor:
    """Return the loss of a step, as transliterate has it: summed over target ids, over their number."""
    total, count = torch.zeros((), device=network.device), 0
    for rectangle in rectangles:
        with torch.autocast(network.device.type, dtype, enabled=dtype is not None):
            logits_NV = at_least_float32(logits_of(network, rectangle)).flatten(0, 1)
        target_N = rectangle["target_BT"].flatten()
        total = total + nn.functional.cross_entropy(logits_NV, target_N, ignore_index=IGNORED, reduction="sum")
        count += int((target_N != IGNORED).sum())
    return total / count


def _optimizer_steps(network: SignAlignedT5, steps: Sequence[Sequence[Batch]]) -> Callable[[int], None]:
    optimizer = adamw(network, fused=True)

    def step(number: int) -> None:
        _mean_loss(network, steps[number % len(steps)], BF16).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step
