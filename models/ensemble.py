"""Several sign classifiers as one: the weighted mean of their probabilities, behind the signature of a single one."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from dubsar.models.backbones import SignClassifier

_SUM = 1e-3  # how far from 1 the sum of weights may be, which a card holds with a few digits


class SignEnsemble(nn.Module):
    """Name the sign in a crop by the votes of several classifiers.

    Each member sees the crop at its own side, normalises it in its own way, and votes with its probabilities, flattened
    or sharpened by its own temperature. Weights and temperatures are plain numbers, not tensors: they are kept in the
    model card, so that rounding the tensors of a file that ships leaves them as they are.

    Args:
        members: of one inventory.
        sides_px: the side of the crops that each was trained on.
        weights: of each; not negative, their sum is 1.
        temperatures: of each; above 0.

    Raises:
        ValueError: no member, not one number of each kind per member, or numbers out of range.
    """

    def __init__(
        self,
        members: Sequence[SignClassifier],
        sides_px: Sequence[int],
        weights: Sequence[float],
        temperatures: Sequence[float],
    ) -> None:
        super().__init__()
        for what, values in (("sides", sides_px), ("weights", weights), ("temperatures", temperatures)):
            if not 0 < len(members) == len(values):
                raise ValueError(f"{len(values)} {what} for {len(members)} members, expected one for each of them")
        if min(sides_px) < 1 or min(weights) < 0 or not abs(sum(weights) - 1) < _SUM:
            raise ValueError(
                f"weights are {list(weights)} and sides {list(sides_px)}, expected weights of 0 to 1 whose sum is 1, "
                "and sides of 1 px or more"
            )
        if not all(0 < t < math.inf for t in temperatures):
            raise ValueError(f"temperatures are {list(temperatures)}, expected numbers above 0")
        self.members: Sequence[SignClassifier] = nn.ModuleList(members)  # type: ignore[assignment]
        self.sides_px, self.temperatures = tuple(sides_px), tuple(map(float, temperatures))
        self.weights = tuple(float(weight) / sum(weights) for weight in weights)

    def forward(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the log of the mean probabilities (B, classes), float32, for RGB crops in 0-1.

        As logits they are those of any classifier: their softmax is the mean.
        """
        return self.combine([member(pixels) for member, pixels in self.shown(pixels_BCHW)])

    def shown(self, pixels_BCHW: torch.Tensor) -> list[tuple[SignClassifier, torch.Tensor]]:
        """Return each member beside what it is shown: the crops at its own side."""
        return [(member, resized(pixels_BCHW, side)) for member, side in zip(self.members, self.sides_px, strict=True)]

    def combine(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the log of the weighted mean of the members' probabilities, float32.

        Args:
            logits: of each member (B, classes).
        """
        votes = [
            (found.float() / temperature).log_softmax(1) + (math.log(weight) if weight else -math.inf)
            for found, temperature, weight in zip(logits, self.temperatures, self.weights, strict=True)
        ]
        return torch.stack(votes).logsumexp(0)


Classifier = SignClassifier | SignEnsemble


def resized(pixels_BCHW: torch.Tensor, side_px: int) -> torch.Tensor:
    """Return crops (B, C, side, side); shrinking averages over what a new pixel covers, so that no wedge aliases."""
    if pixels_BCHW.shape[-2:] == (side_px, side_px):
        return pixels_BCHW
    return F.interpolate(pixels_BCHW, size=(side_px, side_px), mode="bilinear", antialias=True)
