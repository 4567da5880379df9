"""The levers that act on the network itself, for all stages, in a fixed order.

First the adapters, since they replace layers; then the layout of memory, which covers the adapters' kernels; then
recomputation of the blocks; and compilation last, because the compiler has to see all of it. None of them changes the
names of the parameters, but that adapters add some until they are merged.
"""

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from dubsar.models.adapters import add_adapters
from dubsar.models.backbones import SignClassifier
from dubsar.models.detector import Detector
from dubsar.models.ssl.network import SslNetwork
from dubsar.models.transliterator import SignAlignedT5
from dubsar.pipelines.levers.resolve import Resolved

Network = SignClassifier | Detector | SignAlignedT5 | SslNetwork
_ATEN = torch.ops.aten
# what is dear to compute; all else of a block is cheap to compute again
_KEPT = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN.baddbmm.default,
        _ATEN.convolution.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
        torch.ops.higher_order.flex_attention,
    }
)


def apply_levers(network: Network, levers: Resolved, *, static: bool = True, backend: str = "inductor") -> None:
    """Set the levers that act on the network itself.

    Args:
        network: changed in place.
        levers: as resolved for its stage.
        static: all batches have one shape, so that compiled code need not be general.
        backend: what generates compiled code; ``aot_eager`` compiles fast and gains nothing.

    Raises:
        ValueError: the network has no repeated blocks, and a lever acts on such; or see `add_adapters`.
    """
    if levers["dora"]:
        add_adapters(network, repeated_blocks(network), levers["dora"], heads=heads(network))
    if levers["channels_last"]:
        network.to(memory_format=torch.channels_last)
    if levers["checkpointing"] != "off":
        checkpoint_blocks(network, selective=levers["checkpointing"] == "selective")
    compile_network(network, levers, static=static, backend=backend)


def repeated_blocks(network: Network) -> list[nn.Module]:
    """Return the blocks that a network is a stack of: T5's and timm's blocks, and YOLO's layers but for the head."""
    if isinstance(network, SignAlignedT5):
        return [*network.encoder.block, *network.decoder.block]
    if isinstance(network, Detector):
        blocks = [layer for layer in network.net.model[:-1] if next(layer.parameters(), None) is not None]
        if network.features is not None and not network.features.frozen:
            _collect(network.features.encoder.net, blocks)
        return blocks
    blocks = []
    for whole in wholes(network):
        _collect(whole, blocks)
    return blocks


def wholes(network: Network) -> list[nn.Module]:
    """Return what is called as a whole: a T5, a network of timm or Ultralytics, or student, teacher and anchor."""
    if isinstance(network, SslNetwork):
        return list(network.encoders)
    return [network if isinstance(network, SignAlignedT5) else network.net]


def _collect(module: nn.Module, blocks: list[nn.Module]) -> bool:
    """Append the innermost composite modules that stand in a row with others; say whether there were any."""
    found = False
    for child in module.children():
        if _collect(child, blocks):
            found = True
        elif isinstance(module, nn.Sequential | nn.ModuleList) and _is_composite(child):
            blocks.append(child)
            found = True
    return found


def _is_composite(module: nn.Module) -> bool:
    return (
        not isinstance(module, nn.Sequential)
        and sum(1 for m in module.children() if any(True for _ in m.parameters())) > 1
    )


def heads(network: Network) -> list[nn.Module]:
    """Return the modules that are new for the task; a T5 has none, its last layer is the embedding."""
    if isinstance(network, SignClassifier):
        return [network.net.get_classifier()]
    if isinstance(network, Detector):
        return [network.net.model[-1], *([network.features.projection] if network.features is not None else [])]
    return []


def checkpoint_blocks(network: Network, *, selective: bool) -> None:
    """Let the blocks compute their activations again in the backward pass instead of keeping them.

    Args:
        network: changed in place.
        selective: keep the outputs of matrix products, convolutions and attention.

    Raises:
        ValueError: the network has no repeated blocks.
    """
    if isinstance(network, SignAlignedT5):
        network.decoder.config.use_cache = False  # a block that runs twice would fill it twice; decoding asks for it
    for block in _blocks(network, "checkpointing"):
        for module in block.modules():
            if selective and getattr(module, "inplace", False):
                setattr(module, "inplace", False)  # noqa: B010  it would overwrite what is kept
        norms: list[Any] = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        # a partial, not a closure: a copied network then calls its own block
        block.forward = functools.partial(_forward, block.forward, norms, selective)


def _blocks(network: Network, lever: str) -> list[nn.Module]:
    blocks = repeated_blocks(network)
    if not blocks:
        raise ValueError(f"efficiency.{lever}: this network has no repeated blocks to act on; set it to off")
    return blocks


def _forward(forward: Any, norms: list[Any], selective: bool, *args: Any, **kwargs: Any) -> Any:
    """Call a block's own forward, checkpointed where a backward pass can follow."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {"context_fn": _selective_contexts} if selective else {}
    if not torch.compiler.is_compiling():  # compiled code updates the statistics of batch norms once in any case
        options["context_fn"] = functools.partial(_contexts, norms, selective)
    return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)


def _contexts(norms: list[Any], selective: bool) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    first, again = _selective_contexts() if selective else (nullcontext(), nullcontext())
    return first, _without_statistics(again, norms)


@contextmanager
def _without_statistics(context: AbstractContextManager[Any], norms: list[Any]) -> Iterator[None]:
    """Keep batch norms from counting a batch twice: their running statistics stay as they are."""
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with context:
            yield
    finally:
        for norm, momentum, batches in kept:
            norm.momentum, norm.num_batches_tracked = momentum, batches


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def compile_network(network: Network, levers: Resolved, *, static: bool, backend: str) -> None:
    """Compile the network or each of its blocks, in place: the names of parameters stay.

    CUDA graphs without compilation replay PyTorch's own kernels; with it, they are a mode of the compiler.

    Raises:
        ValueError: the network has no repeated blocks to compile one by one.
    """
    mode = levers["compile_mode"]
    if levers["cuda_graphs"]:
        if levers["compile"] == "off":
            backend = "cudagraphs"
        elif mode == "default":
            mode = "reduce-overhead"
    options = {"mode": mode, "dynamic": False if static else None, "backend": backend}
    if levers["compile"] == "per_block":
        blocks = _blocks(network, "compile")
        # blocks share their code, and each shape, mode and dtype of it counts; what is beyond runs uncompiled
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
        for block in blocks:
            block.compile(**options)
    elif levers["compile"] == "full" or levers["cuda_graphs"]:
        for whole in wholes(network):
            whole.compile(**options)
