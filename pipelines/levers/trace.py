"""What PyTorch really computed during one training step: its operations in order, read from a profile.

A profile sees eager and compiled code alike and touches neither: no hooks, which compiled code would be compiled anew
for, and no wrapped modules.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_BACKWARD = "autograd::engine::evaluate_function"
_REGION = "Torch-Compiled Region"  # a frame that Dynamo runs from its cache
_CONVOLUTIONS = frozenset({"aten::convolution", "mkldnn::_convolution_pointwise"})
_MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::_addmm_activation", "aten::bmm", "aten::baddbmm"})
_HEAVY = _CONVOLUTIONS | _MATMULS | {"mkldnn::_linear_pointwise"}
_FORWARD_ONLY = frozenset({"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention"}) | _CONVOLUTIONS
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash (CPU)",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "fused",
    "aten::_scaled_dot_product_attention_math": "math",
}


@dataclass(frozen=True)
class Operation:
    """One call: its name, its tensors' dtypes, shapes and strides, and whether the backward pass made it."""

    name: str
    tensors: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]], ...]
    backward: bool


@dataclass(frozen=True)
class Trace:
    """All operations of one step."""

    operations: tuple[Operation, ...] = ()

    def count(self, name: str) -> int:
        """Count operations whose name contains ``name``."""
        return sum(name in o.name for o in self.operations)

    def compiled_regions(self) -> int:
        """Count runs of compiled code in the forward pass."""
        return sum(o.name.startswith(_REGION) and not o.backward for o in self.operations)

    def compute_dtypes(self) -> list[torch.dtype]:
        """Return the dtype in which each matrix product and convolution of the forward pass ran."""
        return [o.tensors[0][0] for o in self.operations if o.name in _HEAVY and o.tensors and not o.backward]

    def attention_kernels(self) -> dict[str, int]:
        """Count the attention kernels of the forward pass, such as ``math``, ``efficient``, ``flash``, ``flex``."""
        found: dict[str, int] = {}
        for operation in self.operations:
            kernel = _ATTENTION.get(operation.name, "flex" if "flex_attention" in operation.name else "")
            if kernel and not operation.backward and "backward" not in operation.name:
                found[kernel] = found.get(kernel, 0) + 1
        return found

    def recomputed(self) -> int:
        """Count forward computations that the backward pass repeated.

        In eager code those are calls that no gradient formula makes. Compiled backward graphs hold plain matrix
        products: a forward product has two in its gradient, and what goes beyond is recomputed.
        """
        again = sum(o.backward and (o.name in _FORWARD_ONLY or o.name.startswith(_REGION)) for o in self.operations)
        products = [o.backward for o in self.operations if o.name in _MATMULS]
        return again or max(0, sum(products) - 2 * (len(products) - sum(products)))

    def channels_last_share(self) -> tuple[int, int]:
        """Return how many of the forward convolutions' inputs have their channels innermost, and of how many.

        Inputs with one channel or one pixel have no order and are left out.
        """
        inputs = [o.tensors[0] for o in self.operations if o.name in _CONVOLUTIONS and o.tensors and not o.backward]
        told = [stride[1] == 1 for _, size, stride in inputs if len(size) == 4 and size[1] > 1 < size[2] * size[3]]
        return sum(told), len(told)


class Recorder:
    """Records a `Trace` between `start` and `stop`."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)  # kernels inside replayed CUDA graphs have no other name
        self._profile = profile(activities=activities, record_shapes=True)

    def start(self) -> None:
        """Begin to record."""
        self._profile.start()

    def stop(self) -> Trace:
        """Stop and return what was computed."""
        self._profile.stop()
        results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        return Trace(tuple(_flatten(results.experimental_event_tree())))


@contextmanager
def recording() -> Iterator[list[Trace]]:
    """Record a block; the list holds its trace once the block has ended."""
    found: list[Trace] = []
    recorder = Recorder()
    recorder.start()
    try:
        yield found
    finally:
        found.append(recorder.stop())


def _flatten(nodes: Iterable[Any]) -> Iterator[Operation]:
    """Yield calls in order; without recursion, since they nest deeply."""
    stack = [(node, False) for node in reversed(list(nodes))]
    while stack:
        node, inside = stack.pop()
        backward = inside or node.name.startswith(_BACKWARD)
        inputs = getattr(node.extra_fields, "inputs", ())
        tensors = tuple((i.dtype, tuple(i.sizes), tuple(i.strides)) for i in inputs if hasattr(i, "strides"))
        yield Operation(node.name, tensors, backward)
        stack += [(child, backward) for child in reversed(node.children)]
