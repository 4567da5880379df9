"""Naming by likeness to the mean of a class's crops."""

import pytest
import torch

from dubsar.models.backbones import SignClassifier
from dubsar.models.prototypes import Prototypes


def filled(weight: float = 1.0, below: int = 0) -> Prototypes:
    """Two crops of class 0 along x, one of class 2 along y, none of class 1."""
    prototypes = Prototypes(3, 2, weight, 0.1)
    prototypes.fill(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 2]), below=below)
    return prototypes


def test_likeness_is_added_to_the_heads_probabilities_with_its_weight() -> None:
    alike = (torch.tensor([3.0, 4.0]) / 5 / 0.1).softmax(0)  # cosines with x and y
    own = torch.tensor([0.2, 0.5, 0.3])
    expected = (own + 0.5 * torch.tensor([alike[0], 0.0, alike[1]])) / 1.5
    found = filled(0.5)(own.log()[None], torch.tensor([[3.0, 4.0]])).softmax(1)[0]
    torch.testing.assert_close(found, expected)


def test_a_class_with_enough_crops_is_left_to_the_head() -> None:
    own = torch.tensor([[0.2, 0.5, 0.3]])
    found = filled(below=2)(own.log(), torch.tensor([[1.0, 1.0]])).softmax(1)[0]
    torch.testing.assert_close(found, torch.tensor([0.2, 0.5, 0.8]) / 1.5)


def test_an_unseen_class_keeps_what_the_head_says() -> None:
    logits = filled()(torch.tensor([[0.0, 30.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    assert logits.isfinite().all()
    assert logits.softmax(1)[0, 1] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet10t", {}),
        ("vit_small_patch16_dinov3", {"img_size": 32, "embed_dim": 64, "depth": 1, "num_heads": 2}),
        ("convnext_atto", {"depths": [1, 1, 1, 1], "dims": [8, 16, 32, 64]}),
        ("mobilenetv4_conv_small", {}),
    ],
)
def test_of_every_family_the_head_is_asked_and_the_prototypes_are_saved(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    pixels = torch.rand(3, 3, 32, 32)
    network = SignClassifier(name, 4, backbone_args=options).eval()
    head = network(pixels).softmax(1)
    network.add_prototypes(1.0, 0.1)
    assert network.prototypes is not None
    network.prototypes.fill(network.embed(pixels), torch.tensor([0, 1, 2]))
    both = network(pixels).softmax(1)
    alike = (2 * both - head)[:, :3]  # of equal weight
    torch.testing.assert_close(alike.sum(1), torch.ones(3))
    assert (alike.argmax(1) == torch.arange(3)).all()
    assert "prototypes.mean_CD" in network.state_dict()
