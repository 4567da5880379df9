"""How much faster does a fused AdamW step, on the parameters of each stage's network?

Its bound is memory: whatever the kernel, a step reads weight, gradient and two moments and writes all but the gradient.
"""

from functools import partial
from typing import Any

import torch

from dubsar.pipelines.bench.measure import Arm, Effort, Measured, amdahl, compare, interleave, seconds_per_unit, timings
from dubsar.pipelines.bench.stage import PlainLoop, Small, build_small, small_config

DEFAULT, FOREACH, FUSED, MEMORY = "PyTorch's default", "foreach", "fused", "moving the same bytes"
# of AdamW's parameter groups; PyTorch's default is a loop on a CPU and foreach on a GPU
IMPLEMENTATIONS: dict[str, dict[str, bool | None]] = {
    DEFAULT: {"fused": None, "foreach": None},
    FOREACH: {"fused": False, "foreach": True},
    FUSED: {"fused": True, "foreach": False},
}
REQUIRED = 3.0


def bench_optimizer(effort: Effort) -> list[Measured]:
    """Time AdamW's implementations on the gradients of a real batch, stage by stage."""
    return [_stage(name, effort) for name in effort.stages]


def _stage(name: str, effort: Effort) -> Measured:
    small = build_small(small_config(name, effort))
    batch = small.stream.batch(0)
    loops = {arm: _loop(small, batch, flags) for arm, flags in IMPLEMENTATIONS.items()}
    arms = [Arm(arm, partial(_step, loop)) for arm, loop in loops.items()]
    parameters = loops[FUSED].parameters
    arms.append(Arm(MEMORY, partial(_move, torch.zeros(4, sum(p.numel() for p in parameters)))))
    samples = interleave(arms, effort)
    comparisons = [
        compare(samples, DEFAULT, FUSED, bound=compare(samples, DEFAULT, MEMORY).speed_up.value, required=REQUIRED),
        compare(samples, DEFAULT, FOREACH),
    ]
    found = {t.arm: t.median for t in timings(samples)}
    forward = Arm("forward and backward", partial(loops[FUSED].backward, batch))
    rest = min(seconds_per_unit(forward, number, effort) for number in range(3))
    share = found[DEFAULT] / (rest + found[DEFAULT])
    note = (
        f"{len(parameters)} tensors; the optimizer is {100 * share:.1f} % of a step with the default, so the whole "
        f"step gains at most {amdahl(share, comparisons[0].speed_up.value):.3f} x"
    )
    return Measured(name, "optimizer step", timings(samples), comparisons, (note,))


def _step(loop: PlainLoop, _: int) -> None:
    loop.optimizer.step()


def _move(tensors_4N: torch.Tensor, _: int) -> None:
    """Read four tensors and write three of them, as a step of AdamW does, with next to nothing computed."""
    weight_N, gradient_N, mean_N, square_N = tensors_4N
    mean_N.add_(gradient_N)
    square_N.neg_()
    weight_N.neg_()


def _loop(small: Small, batch: Any, flags: dict[str, bool | None]) -> PlainLoop:
    """Return a loop with its own copy of the weights, gradients in place, that steps as the flags say."""
    loop = PlainLoop(small.copied())
    for group in loop.optimizer.param_groups:
        group.update(flags)
    loop.backward(batch)
    return loop
