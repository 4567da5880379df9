"""Decide what each lever becomes on this machine for this stage: it acts, or it is refused with the reason.

Nothing that was asked for is dropped in silence. With ``strict: true`` every refusal is a `LeverError`; otherwise the
lever falls back to the next best, and the table that the run prints and ``levers.json`` say so.
"""

import shutil
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import StageConfig
from dubsar.pipelines.levers.table import LEVERS, Lever

_COMPILERS = [name for name in ("g++", "clang++", "c++", "cl") if shutil.which(name)]


class LeverError(ValueError):
    """A lever was asked for that cannot act here, and the config says ``strict: true``."""


@dataclass(frozen=True)
class Resolution:
    """What was asked of one lever, what it became, and why where the two differ."""

    lever: str
    exactness: str
    asked: Any
    resolved: Any
    why: str = ""


@dataclass(frozen=True)
class Resolved:
    """All levers of a run."""

    rows: tuple[Resolution, ...]

    def __getitem__(self, lever: str) -> Any:
        return next(row.resolved for row in self.rows if row.lever == lever)

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain rows for ``levers.json``."""
        return [asdict(row) for row in self.rows]


def resolve(efficiency: Efficiency, stage: str, *, cuda: bool | None = None) -> Resolved:
    """Resolve a stage's efficiency block.

    Args:
        efficiency: the block as configured.
        stage: stage name.
        cuda: whether a CUDA device is used; found out where None.

    Raises:
        LeverError: a lever cannot act and ``strict`` is set, or fp16 is asked of ByT5 (which diverges: always refused).
    """
    cuda = torch.cuda.is_available() if cuda is None else cuda
    rows = []
    for lever in LEVERS:
        asked = getattr(efficiency, lever.name)
        asked = asked.model_dump() if hasattr(asked, "model_dump") else asked
        resolved, why = (asked, "") if asked == lever.off else _decide(lever, asked, stage, cuda)
        resolved, why = (
            (resolved, why) if why or asked == lever.off else _beside_others(lever, asked, efficiency, stage)
        )
        if why and efficiency.strict:
            raise LeverError(f"efficiency.{lever.name}: {asked!r} cannot act here: {why} (strict: true)")
        rows.append(Resolution(lever.name, lever.exactness, asked, resolved, why))
    return Resolved(tuple(rows))


def resolve_config(config: StageConfig) -> Resolved:
    """Resolve the levers of a stage's config for the device that its trainer will use.

    Raises:
        LeverError: see `resolve`.
        ValueError: the trainer wants a GPU, or several, and they are not there, or a strategy that needs them.
    """
    trainer = config.trainer
    cuda = trainer.accelerator != "cpu" and torch.cuda.is_available()
    count = torch.cuda.device_count() if cuda else int(torch.backends.mps.is_available())
    if trainer.accelerator == "gpu" and not count:
        raise ValueError("trainer.accelerator is 'gpu', but PyTorch finds none here; set it to cpu or auto")
    if trainer.strategy == "fsdp" and not cuda:
        raise ValueError("trainer.strategy is 'fsdp', which Lightning has for GPUs only; set it to auto or ddp")
    if cuda and trainer.devices > count:
        raise ValueError(
            f"trainer.devices is {trainer.devices}, but PyTorch finds {count} GPUs here; set it to {count}"
        )
    return resolve(config.efficiency, config.stage, cuda=cuda)


def _decide(lever: Lever, asked: Any, stage: str, cuda: bool) -> tuple[Any, str]:
    """Return what a lever that was asked for becomes, and the reason where that is something else."""
    if lever.unavailable:
        return lever.off, lever.unavailable
    if stage not in lever.stages:
        return lever.off, lever.elsewhere or f"has nothing to act on in stage {stage}"
    match lever.name, asked:
        case "precision", "fp16" if stage == "transliterate":
            raise LeverError(
                "efficiency.precision: 'fp16' is refused for ByT5: the T5 family diverges in float16; use bf16"
            )
        case "precision", "fp16" if not cuda:
            return "fp32", "float16 autocast needs CUDA: on a CPU it would silently become bf16"
        case "precision", "bf16" if cuda and not torch.cuda.is_bf16_supported():
            return "fp32", "this GPU has no bf16 kernels"
        case "attention", "flash" if stage == "transliterate":
            return "sdpa", "FlashAttention-2 takes no additive mask, which T5's relative position bias needs"
        case "attention", "flash" if not cuda:
            return "sdpa", "FlashAttention kernels need CUDA; scaled_dot_product_attention picks the best that is here"
        case "attention", "flex" if stage == "pretrain":
            return "sdpa", "a Vision Transformer's attention has no mask whose blocks FlexAttention could skip"
        case "attention", "flex" if not cuda:
            return "sdpa", "FlexAttention has no backward pass on a CPU"
        case "compile", _ if not _COMPILERS:
            return "off", "no C++ compiler is installed (g++, clang++ or c++)"
        case "compile_mode", "max-autotune" if not cuda:
            return "default", "without a GPU there are no kernels that max-autotune would tune for training"
        case "compile_mode", "reduce-overhead" if not cuda:
            return "default", "reduce-overhead is CUDA graphs, which need CUDA"
        case "cuda_graphs", _ if not cuda:
            return False, "CUDA graphs need CUDA"
    return asked, ""


def _beside_others(lever: Lever, asked: Any, efficiency: Efficiency, stage: str) -> tuple[Any, str]:
    """Return what becomes of a lever that could act, in view of the others; configs that are loaded were checked."""
    on = {other.name for other in LEVERS if getattr(efficiency, other.name) != other.off}
    for needed in lever.requires:
        if needed not in on:
            return lever.off, f"{needed} is off, and nothing is left to do without it"
    for rival in lever.conflicts:
        if rival in on and _stands_before(rival, lever.name):
            return lever.off, f"{rival} is on, and only one of the two can act"
    if lever.name == "cuda_graphs" and stage == "transliterate" and efficiency.packing != "pack":
        return lever.off, f"a graph is of one shape, and batches change theirs with packing {efficiency.packing}"
    return asked, ""


def _stands_before(first: str, second: str) -> bool:
    names = [lever.name for lever in LEVERS]
    return names.index(first) < names.index(second)
