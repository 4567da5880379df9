"""Schedules as pure functions of the step, so that resuming needs no state, and learning rates by depth."""

import math
from collections.abc import Callable
from typing import Any

from timm.models._manipulate import MATCH_PREV_GROUP, group_parameters
from torch import nn

Schedule = Callable[[int], float]

SIDE_STEP = 8  # px
_MASK = "mask_token"  # stands beside the timm model, in the place of its patches


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


def growing_side(first: int, last: int, steps: int) -> Callable[[int], int]:
    """Return the side of training crops by step: it grows in steps of `SIDE_STEP` px over three quarters of the run.

    Small crops teach the coarse shape for a fraction of the time; the last quarter sees what is scored. Dev is scored
    at the full side throughout, so scores of the first three quarters say little.

    Args:
        first: px at step 0.
        last: px from three quarters of the run on.
        steps: of the whole run.

    Source:
        Tan and Le 2021 (EfficientNetV2), progressive learning; here without growing augmentation.
    """
    exact = linear(first, last, max(1, 3 * steps // 4))

    def side(step: int) -> int:
        return min(last, first + int(exact(step) - first) // SIDE_STEP * SIDE_STEP) if exact(step) < last else last

    return side


def layer_rates(module: nn.Module, net: Any, decay: float) -> dict[str, float]:
    """Return what to multiply each parameter's learning rate with: the deeper below the output, the less.

    Layer 0 is the embedding (patches, stem, position, CLS, register and mask tokens), layer i + 1 a ViT's block i or
    another network's stage i (with the downsampling before it); norms and convolutions after them and heads keep the
    full rate.

    Args:
        module: whose parameters are asked for; those outside of ``net`` keep the full rate.
        net: the timm model in it, or the module itself.
        decay: factor from a layer to the one below it; 1 is one rate for all.

    Returns:
        decay ** (layers above) by name.

    Raises:
        ValueError: timm does not tell the layers of this model.

    Source:
        BEiT (Bao et al. 2022), fine-tuning; DINOv2 (Oquab et al. 2023), appendix B.
    """
    if decay == 1:
        return dict.fromkeys((name for name, _ in module.named_parameters()), 1.0)
    if not hasattr(net, "group_matcher"):
        raise ValueError(f"model.layer_decay: timm does not tell the layers of a {type(net).__name__}; set it to 1")
    layers = group_parameters(net, _matcher(net), reverse=True)
    top = max(layers.values())  # of what no pattern fits: norms behind the last layer, and the head
    above = {id(parameter): top - layers[name] for name, parameter in net.named_parameters()}
    return {
        name: decay ** (top if name.rpartition(".")[2] == _MASK else above.get(id(parameter), 0))
        for name, parameter in module.named_parameters()
    }


def _matcher(net: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return timm's patterns of layers, but for those that count what stands behind the last layer to it."""
    matcher = {}
    for group, given in net.group_matcher(coarse=True).items():
        patterns = [(given, None)] if isinstance(given, str) else given
        matcher[group] = [pattern for pattern in patterns if pattern[1] != MATCH_PREV_GROUP]
    return matcher
