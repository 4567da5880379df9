"""Training batches whose crops are mixed in pairs, and their labels with them; no crop is mirrored.

Sources: Zhang et al. 2018 (mixup), Yun et al. 2019 (CutMix).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixed:
    """A mixed batch.

    Attributes:
        pixels_BCHW: the crops.
        other_B: the row that was mixed into each.
        share: of each crop's own label in its loss; the rest is that of the other.
    """

    pixels_BCHW: Tensor
    other_B: Tensor
    share: float


def mix(pixels_BCHW: Tensor, *, mixup: float, cutmix: float) -> Mixed:
    """Mix the crops of a batch with its crops in another order.

    Args:
        pixels_BCHW: crops of any range.
        mixup: alpha of the beta distribution of shares by which two crops are blended; 0: never.
        cutmix: likewise of the area that stays of a crop where a rectangle of the other is pasted in; 0: never. Where
            both are set, each batch is mixed by one of them, drawn with even chances.

    Returns:
        Another tensor; the batch itself where neither is set.
    """
    if not (mixup or cutmix):
        return Mixed(pixels_BCHW, torch.arange(len(pixels_BCHW), device=pixels_BCHW.device), 1.0)
    paste = not mixup or (bool(cutmix) and bool(torch.rand(()) < 0.5))
    alpha = cutmix if paste else mixup
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    other_B = torch.randperm(len(pixels_BCHW), device=pixels_BCHW.device)
    if not paste:
        return Mixed(share * pixels_BCHW + (1 - share) * pixels_BCHW[other_B], other_B, share)
    height, width = pixels_BCHW.shape[2:]
    rows, columns = (_span(side, math.sqrt(1 - share)) for side in (height, width))
    pasted = pixels_BCHW.clone()
    pasted[:, :, rows, columns] = pixels_BCHW[other_B][:, :, rows, columns]
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return Mixed(pasted, other_B, 1 - area / (height * width))


def _span(side: int, part: float) -> slice:
    """Draw where the rectangle lies along one side; it ends at the crop's edge, beyond which its centre may let it."""
    centre, half = int(torch.randint(side, ())), round(side * part / 2)
    return slice(max(0, centre - half), min(side, centre + half))
