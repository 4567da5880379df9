"""How much faster the candidate trains: both arms, step by step in one process, where that is how they are trained.

Trainings one after the other say little of it on a machine with other work. On GPUs, and over several processes, the
trainings' own rates have to do.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dubsar.pipelines.bench.measure import Arm as TimedArm
from dubsar.pipelines.bench.measure import Effort, interleave, speed_up, timings
from dubsar.pipelines.bench.stage import PlainLoop, Small
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.parity.arms import Arm
from dubsar.pipelines.parity.outcomes import throughput
from dubsar.pipelines.parity.plan import Plan
from dubsar.pipelines.parity.result import Ratio
from dubsar.pipelines.training import seed_everything

ROUNDS = 12
INTERLEAVED = "modelled from steps of both arms, interleaved on this machine"
BY_TRAININGS = "modelled from the speed of the trainings here"


def speeds(
    plan: Plan, acting: Mapping[str, Any], prepared: Any, references: Sequence[Arm], candidates: Sequence[Arm]
) -> tuple[Ratio, dict[str, dict[str, Any]]]:
    """Return the candidate's speed over the reference's, and device-hours of the config's whole schedule.

    Args:
        plan: what is compared.
        acting: the candidate's levers.
        prepared: the data, from the stage's `prepare`.
        references, candidates: the trainings.
    """
    trainer = plan.config.trainer
    if trainer.accelerator == "cpu" and trainer.devices * trainer.num_nodes == 1:
        seconds = {name: _steps(plan, levers, prepared) for name, levers in (("reference", {}), ("candidate", acting))}
        samples = interleave([TimedArm(name, step) for name, step in seconds.items()], Effort(ROUNDS))
        ratio = speed_up(samples["reference"], samples["candidate"])
        per_step, origin = {timing.arm: timing.median for timing in timings(samples)}, INTERLEAVED
    else:
        rates = [[arm.curve.steps_per_second for arm in arms] for arms in (references, candidates)]
        ratio = throughput(*rates)
        per_step = {name: 1 / float(np.mean(r)) for name, r in zip(("reference", "candidate"), rates, strict=True)}
        origin = BY_TRAININGS
    device_steps = trainer.max_steps * trainer.accumulate * trainer.devices * trainer.num_nodes
    return ratio, {
        name: {"hours": device_steps * seconds / 3600, "provenance": origin} for name, seconds in per_step.items()
    }


def _steps(plan: Plan, levers: Mapping[str, Any], prepared: Any) -> Any:
    """Return what takes step ``number`` of a training that reads its data beforehand."""
    config = plan.arm(levers)
    seed_everything(config.trainer)
    resolved = resolve_config(config)
    system, stream = stage_module(config.stage).build(config, resolved, prepared)
    loop = PlainLoop(Small(config, resolved, system.train(), stream))
    batches = [stream.batch(number) for number in range(ROUNDS)]
    return partial(_take, loop, batches)


def _take(loop: PlainLoop, batches: Sequence[Any], number: int) -> None:
    loop.step(batches[number], number)
