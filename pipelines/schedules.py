"""Schedules as pure functions of the step, so that resuming needs no state, and learning rates by depth."""

import math
import re
from collections.abc import Callable, Iterable

Schedule = Callable[[int], float]

_EMBEDDING = re.compile(r"(^|\.)(cls_token|reg_token|mask_token|pos_embed|patch_embed|stem)(\.|$)")
_REPEATED = re.compile(r"(^|\.)(stages|blocks)\.(\d+)\.")  # the outermost: ConvNeXt's blocks lie in stages


def cosine(
    start: float, end: float, steps: int, *, warmup: int = 0, warmup_start: float = 0.0, freeze: int = 0
) -> Schedule:
    """Return a schedule: ``freeze`` steps at zero, a linear warm-up, half a cosine, then ``end`` for ever.

    With ``start`` equal to ``end`` it is a warm-up to a constant.

    Args:
        start: value after the warm-up, which its last step has already.
        end: value from step ``steps`` on.
        steps: of the whole schedule, freeze and warm-up included.
        warmup: steps of the warm-up; the first of them has left ``warmup_start`` by one step.
        warmup_start: where the warm-up sets out.
        freeze: first steps, at which the value is 0.

    Raises:
        ValueError: freeze and warm-up take more than ``steps``.
    """
    begin = freeze + warmup
    if min(freeze, warmup) < 0 or begin > steps:
        raise ValueError(f"cosine: freeze {freeze} and warmup {warmup} do not fit into {steps} steps")

    def value(step: int) -> float:
        if step < freeze:
            return 0.0
        if step < begin:
            return warmup_start + (start - warmup_start) * (step - freeze + 1) / warmup
        if step >= steps:
            return end
        return end + (start - end) * 0.5 * (1 + math.cos(math.pi * (step - begin) / (steps - begin)))

    return value


def linear(start: float, end: float, steps: int) -> Schedule:
    """Return a schedule from ``start`` at step 0 in a straight line to ``end``, which it keeps from ``steps`` on."""

    def value(step: int) -> float:
        return end if step >= steps else start + (end - start) * step / steps

    return value


def layer_rates(names: Iterable[str], depth: int, decay: float) -> dict[str, float]:
    """Return what to multiply each parameter's learning rate with: the deeper below the output, the less.

    Layer 0 is the embedding (patches, stem, position, CLS, register and mask tokens), layer i + 1 a ViT's block or a
    ConvNeXt's stage i (with the downsampling before it); norms after them and heads keep the full rate.

    Args:
        names: of parameters in timm's layout; what stands before, such as ``encoder.net.``, does not matter.
        depth: blocks of the ViT, or stages of the ConvNeXt.
        decay: factor from a layer to the one below it; 1 is one rate for all.

    Returns:
        decay ** (depth + 1 - layer) by name.

    Raises:
        ValueError: a name lies in a block or stage beyond ``depth``.

    Source:
        BEiT (Bao et al. 2022), fine-tuning; DINOv2 (Oquab et al. 2023), appendix B.
    """
    return {name: decay ** (depth + 1 - _layer(name, depth)) for name in names}


def _layer(name: str, depth: int) -> int:
    if found := _REPEATED.search(name):
        index = int(found[3])
        if index >= depth:
            raise ValueError(f"layer_rates: {name} is in {found[2]} {index}, but depth is {depth}; give their number")
        return index + 1
    return 0 if _EMBEDDING.search(name) else depth + 1
