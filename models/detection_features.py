"""What a pretrained backbone sees in a tile, added to a map of the detector's own."""

import torch
from torch import nn

from dubsar.models.ssl.encoder import SslEncoder


class AddedFeatures(nn.Module):
    """Add a backbone's patches to a map, through a 1x1 convolution that starts at zero: at first nothing changes.

    Args:
        encoder: the backbone, which is taken over, not copied.
        channels: of the map.
        frozen: the backbone is not trained and never drops anything; its weights are still part of the state.

    Attributes:
        encoder: the backbone.
        projection: the convolution.
        frozen: as given.

    Source: Zhang et al. 2023, Adding conditional control to text-to-image diffusion models, section 3.1 (convolutions
    that start at zero).
    """

    def __init__(self, encoder: SslEncoder, channels: int, *, frozen: bool = True) -> None:
        super().__init__()
        self.encoder, self.frozen = encoder.requires_grad_(not frozen), frozen
        encoder.mask_token.requires_grad_(False)  # nothing is masked: several devices would wait for its gradient
        self.projection = nn.Conv2d(encoder.width, channels, 1, bias=False)
        nn.init.zeros_(self.projection.weight)
        self.train()

    def train(self, mode: bool = True) -> "AddedFeatures":
        """Set the mode; a frozen backbone stays in that of evaluation."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, tiles_BCHW: torch.Tensor, map_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the map (B, channels, h, w) with what the backbone sees added to it.

        Args:
            tiles_BCHW: RGB in 0-1, sides multiples of the backbone's stride.
            map_BCHW: (B, channels, h, w) of the same tiles, at any stride.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            seen = self.encoder(tiles_BCHW)
        patches_BDHW = seen.patches_BND.transpose(1, 2).unflatten(2, seen.grid)
        # projected, then stretched: the same sums as the other way round, on fewer cells
        added = nn.functional.interpolate(self.projection(patches_BDHW), map_BCHW.shape[-2:], mode="bilinear")
        return map_BCHW + added.to(map_BCHW.dtype)
