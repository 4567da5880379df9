"""What does `torch.compile` give each stage, and after how many steps has it paid for the time that it takes?"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dubsar.pipelines.bench.measure import Arm, Effort, Measured, compare, interleave, seconds_per_unit, timings
from dubsar.pipelines.bench.result import seconds
from dubsar.pipelines.bench.stage import PlainLoop, build_small, small_config
from dubsar.pipelines.levers.compiling import CompileMeter

EAGER, COMPILED = "eager", "compiled"
HOW = {"pretrain": "per_block", "classify": "full", "detect": "full", "transliterate": "per_block"}


def bench_compile(effort: Effort) -> list[Measured]:
    """Time training steps and forward passes of one batch, again and again: a new shape would be compiled anew."""
    return [measured for name in effort.stages for measured in compare_compiled(name, effort)]


def compare_compiled(name: str, effort: Effort) -> list[Measured]:
    """Compare a stage's network as it is with the compiled one, both with all other levers of its config."""
    loops = {}
    for arm, how in ((EAGER, "off"), (COMPILED, HOW[name])):
        small = build_small(small_config(name, effort, f"efficiency.compile={how}"))
        loops[arm], batch = PlainLoop(small), small.stream.batch(0)
    torch.compiler.reset()
    meter = CompileMeter()
    steps = {arm: partial(loop.step, batch) for arm, loop in loops.items()}
    training = _measure(f"{name}, training", "step", steps, effort)
    for loop in loops.values():
        loop.system.eval()
    passes = {arm: partial(_forward, loop, batch) for arm, loop in loops.items()}
    forward = _measure(f"{name}, forward", "pass", passes, effort)
    costs = meter.read()
    note = f"{costs.graphs} graphs, {costs.breaks} graph breaks, {costs.recompiles} compiled again, of both together"
    if not costs.graphs:
        raise RuntimeError(f"{name}: nothing was compiled, so there is nothing to compare")
    return [training, replace(forward, notes=(*forward.notes, note))]


def _forward(loop: PlainLoop, batch: Any, number: int) -> None:
    """Compute the loss in evaluation mode; no gradient is taken."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=loop.bf16):
        loop.system.training_step(batch, number)


def _measure(name: str, unit: str, calls: Mapping[str, Callable[[int], object]], effort: Effort) -> Measured:
    arms = [Arm(arm, call) for arm, call in calls.items()]
    first = {arm.name: seconds_per_unit(arm, 0, effort) for arm in arms}
    samples = interleave(arms, effort)
    found = {t.arm: t.median for t in timings(samples)}
    compiling, gain = first[COMPILED] - found[COMPILED], found[EAGER] - found[COMPILED]
    pays = f"paid for after {compiling / gain:.0f}" if gain > 0 else "never paid for: it is no faster"
    note = f"the first {unit} took {seconds(compiling)} longer, {pays}"
    return Measured(name, unit, timings(samples), [compare(samples, EAGER, COMPILED)], (note,))
