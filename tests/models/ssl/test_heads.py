"""The projection head: the published layers by hand, and what 16 bits, compilation and odd features do to it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dubsar.models.ssl.heads import ProjectionHead


def head(layers: int = 3) -> ProjectionHead:
    torch.manual_seed(0)
    made = ProjectionHead(8, 12, hidden=16, bottleneck=4, layers=layers)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_head_is_an_mlp_then_a_direction_then_prototypes(layers: int) -> None:
    made, features_BD = head(layers).double(), torch.randn(5, 8, dtype=torch.float64)
    linear = [module for module in made.mlp if isinstance(module, nn.Linear)]
    x_BD = features_BD
    for number, layer in enumerate(linear):
        x_BD = x_BD @ layer.weight.T + layer.bias
        x_BD = functional.gelu(x_BD) if number < layers - 1 else x_BD
    directions = x_BD.detach().numpy() / np.linalg.norm(x_BD.detach().numpy(), axis=1, keepdims=True)
    assert len(linear) == layers
    assert [layer.out_features for layer in linear] == [16] * (layers - 1) + [4]
    np.testing.assert_allclose(
        made(features_BD).detach().numpy(), directions @ made.prototypes.weight.detach().numpy().T, rtol=1e-12
    )


def test_prototypes_are_a_layer_apart_and_without_bias() -> None:
    made = head()
    assert dict(made.prototypes.named_parameters()).keys() == {"weight"}
    assert made.prototypes.weight.shape == (12, 4)
    assert {name.split(".")[0] for name, _ in made.named_parameters()} == {"mlp", "prototypes"}


def test_a_new_head_starts_small_and_its_prototypes_with_length_1() -> None:
    made = ProjectionHead(64, 128, hidden=96, bottleneck=32)
    torch.testing.assert_close(made.prototypes.weight.norm(dim=1), torch.ones(128))
    for name, parameter in made.mlp.named_parameters():
        assert float(parameter.std()) == (0 if name.endswith("bias") else pytest.approx(0.02, rel=0.1))


def test_the_length_of_the_projection_does_not_matter_and_patches_come_as_they_are() -> None:
    made, features_BND = head(1), torch.randn(2, 3, 8)
    nn.init.zeros_(made.mlp[0].bias)  # type: ignore[arg-type]
    torch.testing.assert_close(made(50 * features_BND), made(features_BND))
    torch.testing.assert_close(made(features_BND)[1, 2], made(features_BND[1, 2]))


@pytest.mark.parametrize("rows", [torch.zeros(3, 8), torch.zeros(0, 8), torch.full((2, 8), 1e4)])
def test_gradients_stay_finite_for_odd_features(rows: torch.Tensor) -> None:
    made, features_BD = head(), rows.requires_grad_()
    for layer in made.mlp:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    made(features_BD).square().sum().backward()
    gradients = [features_BD.grad, *[p.grad for p in made.parameters()]]
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)


def test_all_of_it_learns() -> None:
    made = head()
    made(torch.randn(6, 8)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.parameters())


def test_16_bits_by_autocast_or_by_weights_stay_close_to_float32() -> None:
    made, features_BD = head(), torch.randn(64, 8)
    wanted = made(features_BD).detach()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = made(features_BD)
    low = made.bfloat16()(features_BD.bfloat16())
    for got in (mixed, low):
        assert got.dtype == torch.bfloat16
        assert float((got.float() - wanted).norm() / wanted.norm()) < 0.02


def test_a_huge_projection_does_not_overflow_float16() -> None:
    made = head(1)
    nn.init.constant_(made.mlp[0].weight, 1 / 8)  # type: ignore[arg-type]
    nn.init.zeros_(made.mlp[0].bias)  # type: ignore[arg-type]
    wanted = made(torch.full((2, 8), 40000.0))  # four times 40000: a norm of 80000, and float16 ends at 65504
    got = made.half()(torch.full((2, 8), 40000.0, dtype=torch.float16))
    torch.testing.assert_close(got.float(), wanted, rtol=5e-3, atol=1e-3)


def test_a_head_is_one_graph_and_computes_the_same() -> None:
    made, features_BD = head(), torch.randn(5, 8)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features_BD), made(features_BD))


def test_a_head_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="layers is 0; an MLP has at least 1"):
        ProjectionHead(8, 12, layers=0)
