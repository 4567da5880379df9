"""AdamW whose tensors lie in other orders than that of their parameter."""

from pathlib import Path

import pytest
import torch

from dubsar.configs.blocks import Optim
from dubsar.pipelines.optim import build_optimizer

CHANNELS_LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format
FORMATS = (CHANNELS_LAST, CONTIGUOUS)


def weights_after(
    steps: int, weights: torch.memory_format, gradient: torch.memory_format, *, fused: bool, saved: Path | None = None
) -> torch.Tensor:
    """Train one kernel on one gradient; with ``saved``, it goes on halfway from a file, contiguous."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(5, 7, 3, bias=False).to(memory_format=weights)
    gradient_OIHW = torch.randn(7, 5, 3, 3)
    optim = Optim(lr=0.1, weight_decay=0.1, warmup_steps=0, schedule="constant")
    optimizer = build_optimizer(conv, optim, steps, fused=fused)["optimizer"]
    for step in range(steps):
        if saved and step == steps // 2:
            torch.save(optimizer.state_dict(), saved)
            conv = conv.to(memory_format=CONTIGUOUS)
            conv.weight.data = conv.weight.data.contiguous()
            optimizer = build_optimizer(conv, optim, steps, fused=fused)["optimizer"]
            optimizer.load_state_dict(torch.load(saved, weights_only=True))
        conv.weight.grad = gradient_OIHW.contiguous(memory_format=gradient)
        optimizer.step()
    return conv.weight.detach().contiguous()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("gradient", FORMATS)
def test_a_fused_step_pairs_each_weight_with_its_own_gradient(
    weights: torch.memory_format, gradient: torch.memory_format
) -> None:
    reference = weights_after(4, CONTIGUOUS, CONTIGUOUS, fused=False)
    torch.testing.assert_close(weights_after(4, weights, gradient, fused=True), reference, rtol=1e-5, atol=1e-6)


def test_moments_of_a_channels_last_run_are_laid_out_anew_in_a_contiguous_one(tmp_path: Path) -> None:
    reference = weights_after(6, CONTIGUOUS, CONTIGUOUS, fused=False)
    resumed = weights_after(6, CHANNELS_LAST, CONTIGUOUS, fused=True, saved=tmp_path / "state.pt")
    torch.testing.assert_close(resumed, reference, rtol=1e-5, atol=1e-6)


def test_pytorch_s_own_fused_step_still_needs_this() -> None:
    """Once this fails, the class around AdamW has become needless for correctness."""
    results = []
    for gradient in FORMATS:
        weight = torch.zeros(7, 5, 3, 3, requires_grad=True)
        weight.grad = torch.arange(315.0).view(7, 5, 3, 3).sub(157).contiguous(memory_format=gradient)
        torch.optim.AdamW([weight], lr=1.0, fused=True).step()
        results.append(weight.detach().sign())
    assert not torch.equal(*results)
