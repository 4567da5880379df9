"""The ensemble votes as its docstring says: a weighted mean of tempered probabilities, each crop at each side."""

import math

import pytest
import torch
from torch import nn

from dubsar.models.backbones import SignClassifier
from dubsar.models.ensemble import SignEnsemble, resized


def member(seed: int, **options: str) -> SignClassifier:
    torch.manual_seed(seed)
    return SignClassifier("resnet10t", 5, backbone_args={"channels": [8, 8, 16, 16]}, **options).eval()


class Fixed(nn.Module):
    """Says the same of every crop, and remembers how large it was."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits, self.seen = torch.tensor([logits]), (0, 0)

    def forward(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        self.seen = tuple(pixels_BCHW.shape[-2:])
        return self.logits.expand(len(pixels_BCHW), -1)


def test_the_mean_of_tempered_probabilities_by_hand() -> None:
    # probabilities 1/4, 3/4 at temperature 1, and of the other at temperature 2: sqrt(9) : 1 = 3/4, 1/4
    first, second = Fixed(0.0, math.log(3)), Fixed(math.log(9), 0.0)
    ensemble = SignEnsemble([first, second], [8, 4], [0.25, 0.75], [1.0, 2.0])  # type: ignore[list-item]
    logits = ensemble(torch.rand(3, 3, 8, 8))
    assert (first.seen, second.seen) == ((8, 8), (4, 4))
    wanted = torch.tensor([0.25 / 4 + 0.75 * 3 / 4, 0.25 * 3 / 4 + 0.75 / 4]).expand(3, -1)
    torch.testing.assert_close(logits.softmax(1), wanted)
    torch.testing.assert_close(logits.exp(), wanted)
    assert logits.dtype == torch.float32


def test_a_member_alone_is_itself_and_one_without_weight_is_silent() -> None:
    pixels, one, other = torch.rand(4, 3, 32, 32), member(0), member(1, normalise="per_crop")
    with torch.no_grad():
        torch.testing.assert_close(SignEnsemble([one], [32], [1.0], [1.0])(pixels).softmax(1), one(pixels).softmax(1))
        both = SignEnsemble([one, other], [32, 32], [0.0, 1.0], [1.0, 1.0])(pixels)
        torch.testing.assert_close(both.softmax(1), other(pixels).softmax(1))
    assert both.isfinite().all()


def test_votes_are_float32_in_16_bits_too() -> None:
    ensemble = SignEnsemble([member(0), member(1)], [32, 24], [0.5, 0.5], [1.0, 1.0])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert ensemble(torch.rand(2, 3, 32, 32)).dtype == torch.float32


def test_weights_and_temperatures_are_no_tensors() -> None:
    ensemble = SignEnsemble([member(0), member(1)], [32, 24], [0.5, 0.5], [1.0, 2.0])
    assert {name.split(".net.")[0] for name in ensemble.state_dict()} == {"members.0", "members.1"}
    assert (ensemble.weights, ensemble.temperatures) == ((0.5, 0.5), (1.0, 2.0))


def test_shrinking_averages_and_the_same_side_is_left_alone() -> None:
    stripes = torch.zeros(1, 3, 64, 64)
    stripes[..., ::2] = 1
    assert float(resized(stripes, 16)[..., 2:-2].std()) < 0.02  # every other column alone would be all 0 or all 1
    assert resized(stripes, 64) is stripes
    assert resized(stripes, 96).shape == (1, 3, 96, 96)


@pytest.mark.parametrize(
    ("sides", "weights", "temperatures", "message"),
    [
        ([32], [0.5, 0.5], [1, 1], r"^1 sides for 2 members, expected one for each of them"),
        ([32, 32], [1.0], [1, 1], r"^1 weights for 2 members"),
        ([32, 32], [0.5, 0.6], [1, 1], r"^weights are \[0.5, 0.6\] .* expected weights of 0 to 1 whose sum is 1"),
        ([32, 32], [1.5, -0.5], [1, 1], r"^weights are \[1.5, -0.5\]"),
        ([32, 32], [math.nan, 1], [1, 1], r"^weights are \[nan, 1\]"),
        ([32, 32], [0.5, 0.5], [1, 0], r"^temperatures are \[1, 0\], expected numbers above 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    sides: list[int], weights: list[float], temperatures: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SignEnsemble([member(0), member(1)], sides, weights, temperatures)


def test_an_ensemble_without_members_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^0 sides for 0 members"):
        SignEnsemble([], [], [], [])
