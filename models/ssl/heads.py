"""The head that turns a feature into logits over prototypes; one for CLS features and another for patches."""

import itertools

from torch import Tensor, nn
from torch.nn import functional

from dubsar.models.precision import at_least_float32

_NORM_FLOOR = 1e-6
_INITIAL_STD = 0.02


class ProjectionHead(nn.Module):
    """Compare features with learned prototypes: an MLP, L2 normalisation, and a matrix of prototypes.

    The prototypes are a plain matrix without bias, not weight-normalised, as in DINOv3. A trainer that freezes the last
    layer at first drops the gradients of ``prototypes``.

    Args:
        width: of the features.
        prototypes: how many logits come out.
        hidden: width of the MLP.
        bottleneck: width of what is normalised and compared with the prototypes.
        layers: linear layers of the MLP, the one to the bottleneck included.

    Raises:
        ValueError: ``layers`` is below 1.

    Source:
        DINO (Caron et al. 2021), section 3.1; for a head each DINOv2 (Oquab et al. 2023), section 4.
    """

    def __init__(
        self, width: int, prototypes: int, *, hidden: int = 2048, bottleneck: int = 256, layers: int = 3
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"ProjectionHead: layers is {layers}; an MLP has at least 1")
        widths = [width, *[hidden] * (layers - 1), bottleneck]
        self.mlp = nn.Sequential(nn.Linear(widths[0], widths[1]))
        for before, after in itertools.pairwise(widths[1:]):
            self.mlp.extend([nn.GELU(), nn.Linear(before, after)])
        self.prototypes = nn.Linear(bottleneck, prototypes, bias=False)
        self.apply(_initialise)
        # of length 1: shorter ones give logits so alike at first that a small teacher has nothing to tell for long
        self.prototypes.weight.data = functional.normalize(self.prototypes.weight.data, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (..., prototypes) for features (..., width), without a temperature."""
        projected = self.mlp(features)
        # a norm rounded to 16 bits would scale all logits of a row
        unit = functional.normalize(at_least_float32(projected), dim=-1, eps=_NORM_FLOOR).to(projected.dtype)
        logits: Tensor = self.prototypes(unit)
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=_INITIAL_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
