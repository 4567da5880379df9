"""The stages at their small sizes, ready to be timed: what ``configs/<stage>.yaml`` builds, and a plain training loop.

Only the number of photographs and lines is cut down, which no step's time depends on; crops have their full side from
the first step on, and no weights are read.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from dubsar.configs.base import load
from dubsar.configs.schema import STAGES, StageConfig, shipped_config
from dubsar.pipelines.bench.measure import Effort
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import Resolved, resolve_config

_FEW = {
    "pretrain": ("data.limit=4", "data.labelled=false", "data.synthetic_tablets=0"),
    "classify": (
        "data.limit=256",
        "data.synthetic_fraction=0",
        "data.cache=false",
        "data.first_px=0",
        "model.weights=",
    ),
    "detect": ("data.limit=4", "data.synthetic_fraction=0", "data.synthetic_tablets=0"),
    "transliterate": ("data.limit=4000", "data.val_lines=1"),
}


@dataclass(frozen=True)
class Small:
    """A stage, built: its config, resolved levers, system (network and loss), and training batches."""

    config: Any
    levers: Resolved
    system: Any
    stream: Any

    def copied(self) -> "Small":
        """Return the stage with its own copy of the weights; a compiled network's copy is not compiled."""
        return replace(self, system=copy.deepcopy(self.system))


def small_config(stage: str, effort: Effort, *overrides: str, family: str = "") -> Any:
    """Return the config of the small size, in a ``family`` of networks; of the debug size where ``effort`` is tiny."""
    source = shipped_config(f"{'debug' if effort.tiny else family}/{stage}".lstrip("/"))
    few = () if effort.tiny else _FEW[stage]
    return load(source, STAGES[stage], (*few, *overrides))


def build_small(config: StageConfig) -> Small:
    """Build a stage as a training does, with the same random weights every time."""
    levers = resolve_config(config)
    torch.manual_seed(config.trainer.seed)
    system, stream = stage_module(config.stage).build(config, levers)
    return Small(config, levers, system.train(), stream)


class PlainLoop:
    """A stage's training without Lightning: the same loss, precision, clipping, optimizer, schedule and average.

    Args:
        small: the stage; its system is trained.
    """

    def __init__(self, small: Small) -> None:
        self.system = small.system
        self.system.log = self.system.log_dict = _no_log
        chosen = self.system.configure_optimizers()
        self.optimizer, self.schedule = chosen["optimizer"], chosen["lr_scheduler"]["scheduler"]
        self.bf16 = small.levers["precision"] == "bf16"
        ema = small.levers["ema"]
        average_by = get_ema_avg_fn(ema["decay"]) if ema else None  # type: ignore[no-untyped-call]
        self.average = AveragedModel(self.system, avg_fn=average_by, use_buffers=True) if ema else None

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What the optimizer trains."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def backward(self, batch: Any, number: int = 0) -> None:
        """Compute gradients."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.system.training_step(batch, number)
        loss.backward()

    def step(self, batch: Any, number: int = 0) -> None:
        """Take one optimizer step."""
        self.backward(batch, number)
        self._divide_by_ids()
        self.system.configure_gradient_clipping(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.system)

    def _divide_by_ids(self) -> None:
        """Turn a summed loss into a mean, where a system sums: its hook for that asks Lightning for the other ranks."""
        ids = getattr(self.system, "step_ids", None)
        if ids is not None:
            gradients = [p.grad for p in self.system.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, 1 / ids)
            self.system.step_ids = 0


def _no_log(*_: Any, **__: Any) -> None:
    """Take the place of a logger."""
