"""AdamW with a warm-up and a schedule to zero, the same for every stage."""

import math
from collections.abc import Callable
from typing import Any

import torch

from dubsar.configs.blocks import Optim
from dubsar.pipelines.schedules import layer_rates

_IMPLEMENTATION = ("fused", "foreach")  # of a parameter group: how it steps, not what it computes
_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, whose fused kernel is given every tensor in the order in which the parameter lies in memory.

    On a CPU that kernel reads weight, gradient and moments as if they lay alike: where they do not, as when the moments
    of a channels-last run are loaded into a contiguous one, every element is paired with another's gradient, without a
    message. And it copies what is not contiguous, so that channels-last kernels took twice the time.
    """

    def _init_group(self, group: dict[str, Any], params: list[Any], grads: list[Any], *rest: Any) -> Any:
        result = super()._init_group(group, params, grads, *rest)  # type: ignore[no-untyped-call]
        if group["fused"]:
            for index, param in enumerate(params):
                if not (param.is_contiguous() and grads[index].is_contiguous()):
                    order = sorted(range(param.ndim), key=lambda dim: -param.stride(dim))
                    params[index], grads[index] = param.permute(order), grads[index].permute(order).contiguous()
                    for moments in rest[: len(_MOMENTS)]:
                        moments[index] = moments[index].permute(order)
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; its moments are laid out as the parameters are."""
        super().load_state_dict(state_dict)
        for param, state in self.state.items():
            for name in _MOMENTS:
                state[name] = torch.empty_like(param).copy_(state[name])


def build_optimizer(
    module: torch.nn.Module,
    optim: Optim,
    max_steps: int,
    *,
    fused: bool = False,
    swa: dict[str, Any] | None = None,
    groups: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return what Lightning's ``configure_optimizers`` wants: AdamW and a per-step schedule.

    Matrices and kernels decay; biases, norms and other one-dimensional parameters do not. A checkpoint's state keeps
    the implementation that is asked for here: PyTorch would take ``fused`` from the checkpoint.

    Args:
        module: what is trained.
        optim: rates and schedule.
        max_steps: optimizer steps of the whole run.
        fused: one kernel for all tensors.
        swa: ``from_fraction`` and ``lr``: from then on the rate is constant.
        groups: of parameters, where they are not all to learn at one rate.
    """
    trained = [(p, decays(name, p)) for name, p in module.named_parameters() if p.requires_grad]
    groups = groups or [
        {"params": [p for p, shrinks in trained if shrinks], "weight_decay": optim.weight_decay},
        {"params": [p for p, shrinks in trained if not shrinks], "weight_decay": 0.0},
    ]
    # None, not False, which would also forbid PyTorch's own default for a GPU (foreach) and flatter the fused kernel
    optimizer = AdamW(groups, lr=optim.lr, betas=optim.betas, fused=fused or None)
    optimizer.register_load_state_dict_pre_hook(_keep_implementation)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(optim, max_steps, swa))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def decays(name: str, parameter: torch.nn.Parameter) -> bool:
    """Say whether a parameter decays: not those of one dimension, nor the magnitudes of DoRA, whatever their shape."""
    return parameter.ndim > 1 and "lora_magnitude" not in name


def groups_by_depth(module: torch.nn.Module, net: Any, optim: Optim, layer_decay: float) -> list[dict[str, Any]]:
    """Group what is trained by learning rate and decay, for `build_optimizer`.

    Args:
        module: what is trained.
        net: the timm model in it.
        optim: rate of the last layer, and decay.
        layer_decay: see `dubsar.pipelines.schedules.layer_rates`.

    Returns:
        One dict a group; besides what AdamW reads, ``decays`` says whether the group's parameters do.

    Raises:
        ValueError: timm does not tell the layers of this model.
    """
    rates = layer_rates(module, net, layer_decay)
    by_kind: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            by_kind.setdefault((rates[name], decays(name, parameter)), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": rate * optim.lr,
            "weight_decay": optim.weight_decay if shrinks else 0.0,
            "decays": shrinks,
        }
        for (rate, shrinks), parameters in by_kind.items()
    ]


def _keep_implementation(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    own = {name: optimizer.param_groups[0][name] for name in _IMPLEMENTATION}
    return {**state, "param_groups": [{**group, **own} for group in state["param_groups"]]}


def rate_factor(optim: Optim, max_steps: int, swa: dict[str, Any] | None = None) -> Callable[[int], float]:
    """Return the learning rate's factor as a pure function of the step, so that resuming needs no state."""

    def factor(step: int) -> float:
        if swa and step >= first_averaged_step(swa, max_steps):
            return float(swa["lr"]) / optim.lr
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


def first_averaged_step(swa: dict[str, Any], max_steps: int) -> int:
    """Return the step, counted from 0, from which on stochastic weight averaging averages."""
    return min(max_steps - 1, round(float(swa["from_fraction"]) * max_steps))


def clip_gradients(module: torch.nn.Module, norm: float) -> None:
    """Clip the norm of all gradients together; 0 clips nothing.

    The systems call this from their hook, since Lightning's own clipping refuses fused AdamW under bf16.
    """
    if norm:
        torch.nn.utils.clip_grad_norm_(module.parameters(), norm)
