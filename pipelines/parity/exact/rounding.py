"""An honest 16-bit computation to compare with: float64, in which only what has to be 16-bit is rounded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

# what autocast computes in 16 bits: convolutions and products
ROUNDED: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.nn.functional.linear,
        torch.conv1d,
        torch.conv2d,
        torch.nn.functional.conv2d,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.Tensor.__rmatmul__,
        torch.bmm,
        torch.Tensor.bmm,
        torch.baddbmm,
        torch.addmm,
        torch.einsum,
        torch.nn.functional.scaled_dot_product_attention,
    }
)


class Rounded(TorchFunctionMode):  # type: ignore[no-untyped-call]
    """Round operands and results of convolutions and products to 16 bits, in forward and backward, under autocast.

    Autocast leaves float64 alone, so a float64 network under autocast is exact but for this rounding; regions with
    autocast off (the float32 islands) stay exact.

    Args:
        dtype: ``torch.bfloat16`` or ``torch.float16``.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, rounded where autocast would compute it in 16 bits."""
        kwargs = kwargs or {}
        if func not in ROUNDED or not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return func(*args, **kwargs)
        args, kwargs = tree_map(self._round, (args, kwargs))
        return tree_map(self._round, func(*args, **kwargs))

    def _round(self, value: Any) -> Any:
        """Round a tensor; its gradient is rounded as well, since ``to`` hands it back in its own dtype."""
        if isinstance(value, Tensor) and value.dtype == torch.float64:
            return value.to(self.dtype).to(torch.float64)
        return value
