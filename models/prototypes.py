"""Naming by likeness: a sign that a classifier has seen twice lies near those two, whatever its last layer makes of it.

A linear head learns little from a few crops and is pulled towards frequent classes; the mean of a class's features
is as good as its crops. So likeness to the means is counted as evidence beside the head's own probabilities.

Source: Snell, Swersky, Zemel 2017, Prototypical Networks, section 2.2, with cosine instead of Euclidean distance.
"""

import torch
from torch import nn


class Prototypes(nn.Module):
    """The mean direction of each class's features, and how much likeness to it counts.

    Args:
        classes: size of the inventory, C.
        width: features of a crop, D.
        weight: of likeness, over that of the head; 0 leaves the head as it is.
        temperature: of the softmax over cosines; the lower, the more the nearest prototype takes.
    """

    mean_CD: torch.Tensor
    counts_C: torch.Tensor
    seen_C: torch.Tensor

    def __init__(self, classes: int, width: int, weight: float, temperature: float) -> None:
        super().__init__()
        self.weight, self.temperature = weight, temperature
        self.register_buffer("mean_CD", torch.zeros(classes, width))
        self.register_buffer("seen_C", torch.zeros(classes))
        self.register_buffer("counts_C", torch.zeros(classes))

    @torch.no_grad()
    def fill(self, features_ND: torch.Tensor, classes_N: torch.Tensor, *, below: int = 0) -> None:
        """Take the means of labelled features.

        Args:
            features_ND: float (N, D), of training crops.
            classes_N: int64 (N,).
            below: likeness counts for classes with fewer crops than this; 0: for all that have any.
        """
        directions_ND = nn.functional.normalize(features_ND.float(), dim=1)
        sums_CD = torch.zeros_like(self.mean_CD).index_add_(0, classes_N, directions_ND)
        crops_C = torch.bincount(classes_N, minlength=len(sums_CD))
        self.mean_CD.copy_(nn.functional.normalize(sums_CD, dim=1))
        self.seen_C.copy_(crops_C > 0)
        self.counts_C.copy_((crops_C > 0) & ((crops_C < below) if below else (crops_C > 0)))

    def forward(self, logits_BC: torch.Tensor, features_BD: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C) whose softmax is the head's probabilities with the evidence of likeness added."""
        cosines_BC = nn.functional.normalize(features_BD.float(), dim=1) @ self.mean_CD.T
        unseen_C = self.seen_C == 0
        alike_BC = (cosines_BC / self.temperature).masked_fill(unseen_C, -torch.inf).softmax(1)
        return (logits_BC.float().softmax(1) + self.weight * self.counts_C * alike_BC).clamp(min=1e-12).log()
