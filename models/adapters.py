"""Low-rank adapters beside frozen weights: LoRA, and DoRA, which also learns each output channel's magnitude.

The adapters are peft's. They are merged into the weights before these are written, in float32, since a merge in
bfloat16 is off by half a percent; what is written has the names that the network has without adapters, and loads
without peft.

timm's attention layers with a bias for queries and values alone (`*_dinov3_qkvb`, BEiT, Swin v2) multiply with the
weight of ``qkv`` and never call the layer: an adapter on it would get no gradient, and its merge would change the
output. They have a switch to call it and add the bias after, which is the same sum.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from dubsar.models.precision import at_least_float32

_GATE = ".se."  # timm's name of squeeze-and-excite: gates of a few channels, narrower than an adapter's usual rank


def add_adapters(
    network: nn.Module,
    blocks: Iterable[nn.Module],
    settings: dict[str, Any],
    *,
    heads: Iterable[nn.Module] = (),
) -> None:
    """Freeze a network and put an adapter on layers of its blocks; what it computes stays the same at first.

    Args:
        network: changed in place.
        blocks: the repeated blocks whose matrices and kernels may get adapters.
        settings: ``variant`` (``dora`` or ``lora``), ``rank``, ``alpha``, ``dropout``, and ``targets``, names of layers
            as they end, such as ``qkv``; where empty all layers of the blocks, but for squeeze-and-excite gates.
        heads: modules that are trained in full: they are new for each task.

    Raises:
        ValueError: a target is no layer of the blocks, or they have none that could be adapted.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    for module in network.modules():
        if getattr(module, "q_bias", None) is not None and hasattr(module, "qkv_bias_separate"):
            setattr(module, "qkv_bias_separate", True)  # noqa: B010  mypy takes attributes of a module for tensors
    config = LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        use_dora=settings["variant"] == "dora",
        target_modules=_targets(network, blocks, settings["targets"]),
    )
    inject_adapter_in_model(config, network)
    for head in heads:
        head.requires_grad_(True)


def _targets(network: nn.Module, blocks: Iterable[nn.Module], wanted: Iterable[str]) -> list[str]:
    """Return the full names of the layers that get an adapter."""
    inside = {id(module) for block in blocks for module in block.modules()}
    names = [name for name, module in network.named_modules() if id(module) in inside and _can_adapt(module)]
    known = sorted({name.rpartition(".")[2] for name in names})
    if unknown := sorted(set(wanted) - set(known)):
        raise ValueError(
            f"efficiency.dora.targets: this network has no {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        )
    if not names:
        raise ValueError("efficiency.dora: this network has no repeated blocks with layers to adapt; leave it out")
    if wanted:
        return [name for name in names if name.rpartition(".")[2] in set(wanted)]
    return [name for name in names if _GATE not in name]


def _can_adapt(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


def adapter_parameters(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and parameter of all that the adapters learn."""
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            yield name, parameter


@torch.no_grad()
def merge_adapters(network: nn.Module) -> None:
    """Merge all adapters into the weights, in float32 at least, and take them out; without any, nothing changes."""
    for name, module in list(network.named_modules()):
        if hasattr(module, "get_base_layer"):
            own = module.get_base_layer().weight.dtype
            module.to(at_least_float32(torch.empty(0, dtype=own)).dtype)
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, module.get_base_layer())
