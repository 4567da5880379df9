"""AdamW with a warm-up and a schedule to zero, the same for every stage."""

import math
from collections.abc import Callable
from typing import Any

import torch

from dubsar.configs.blocks import Optim


def build_optimizer(module: torch.nn.Module, optim: Optim, max_steps: int, *, fused: bool = False) -> dict[str, Any]:
    """Return what Lightning's ``configure_optimizers`` wants: AdamW and a per-step schedule.

    Matrices and kernels decay; biases, norms and other one-dimensional parameters do not.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, fused=fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(optim, max_steps))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def rate_factor(optim: Optim, max_steps: int) -> Callable[[int], float]:
    """Return the learning rate's factor as a pure function of the step, so that resuming needs no state."""

    def factor(step: int) -> float:
        if step < optim.warmup_steps:
            return (step + 1) / optim.warmup_steps
        done = min(1.0, (step - optim.warmup_steps) / max(1, max_steps - optim.warmup_steps))
        match optim.schedule:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "linear":
                return 1 - done
            case _:
                return 1.0

    return factor
