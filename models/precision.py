"""Islands of float32 in a network that computes in 16 bits."""

import torch


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Raise a 16-bit floating tensor to float32; float64 stays, so that exactness can be shown."""
    return tensor.float() if tensor.dtype in {torch.bfloat16, torch.float16} else tensor
