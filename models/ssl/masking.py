"""Masks of patches for masked image modelling: blocks, since a single missing patch is guessed from its neighbours."""

import math

import numpy as np
from numpy.typing import NDArray

_TRIES = 10  # of placing a block before what is left is masked patch by patch


def block_mask(
    grid: tuple[int, int], rng: np.random.Generator, *, share: float, least: int = 4, aspect: float = 0.3
) -> NDArray[np.bool_]:
    """Return a mask (rows, columns) of rectangles that covers exactly round(share * patches) patches.

    Rectangles of random area and shape are laid, over one another too, as long as they fit into what is still to be
    masked. What no rectangle fills after some tries is masked at random: a count that is known makes batches alike.

    Args:
        grid: rows and columns of patches.
        rng: where chance comes from.
        share: of the patches, 0 to 1.
        least: patches of the smallest rectangle (where as many are left).
        aspect: of the flattest rectangle, height / width; the steepest is 1 / aspect. More than 0, at most 1.

    Raises:
        ValueError: ``share`` or ``aspect`` is out of its range.

    Source:
        iBOT (Zhou et al. 2022), section 3.2, after BEiT (Bao et al. 2022), algorithm 1; the exact count is ours.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"block_mask: share is {share}; give a fraction of the patches, 0 to 1")
    if not 0 < aspect <= 1:
        raise ValueError(f"block_mask: aspect is {aspect}; give that of the flattest block, above 0 and at most 1")
    mask_HW = np.zeros(grid, dtype=np.bool_)
    left = wanted = round(share * mask_HW.size)
    tries = 0
    while left and tries < _TRIES:
        block = _draw_block(grid, rng, (min(least, left), left), aspect)
        new = 0 if block is None else int(np.count_nonzero(~mask_HW[block]))
        if block is None or not 0 < new <= left:
            tries += 1
            continue
        mask_HW[block] = True
        left, tries = left - new, 0
    if left:
        mask_HW.flat[rng.choice(np.flatnonzero(~mask_HW), left, replace=False)] = True
    assert np.count_nonzero(mask_HW) == wanted
    return mask_HW


def _draw_block(
    grid: tuple[int, int], rng: np.random.Generator, areas: tuple[int, int], aspect: float
) -> tuple[slice, slice] | None:
    area, ratio = rng.uniform(*areas), aspect ** rng.uniform(-1, 1)
    rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if not (0 < rows <= grid[0] and 0 < columns <= grid[1]):
        return None
    top, left = rng.integers(grid[0] - rows + 1), rng.integers(grid[1] - columns + 1)
    return slice(top, top + rows), slice(left, left + columns)


def batch_masks(
    count: int,
    grid: tuple[int, int],
    rng: np.random.Generator,
    *,
    probability: float = 0.5,
    shares: tuple[float, float] = (0.1, 0.5),
) -> NDArray[np.bool_]:
    """Return the masks (B, N) of a batch: some images are masked, each to another share, the others not at all.

    The images' shares are spread evenly over ``shares``, one from each of as many strata, so that the number of masked
    patches hardly differs between batches.

    Args:
        count: images B.
        grid: rows and columns of patches, N in all.
        rng: where chance comes from.
        probability: fraction of the images that is masked; where that is no whole number, chance rounds it.
        shares: the smallest and the greatest share of masked patches.

    Raises:
        ValueError: ``probability`` or ``shares`` is out of its range.

    Source:
        iBOT (Zhou et al. 2022), section 4: half of the images, shares of 0.1 to 0.5; the strata are DINOv2's.
    """
    low, high = shares
    if not (0 <= probability <= 1 and 0 <= low <= high <= 1):
        raise ValueError(
            f"batch_masks: probability is {probability} and shares are {shares}; give fractions of 0 to 1, "
            "the smaller share first"
        )
    masks_BHW = np.zeros((count, *grid), dtype=np.bool_)
    masked = math.floor(count * probability + rng.random())
    edges = np.linspace(low, high, masked + 1)
    for image, start, end in zip(rng.permutation(count)[:masked], edges[:-1], edges[1:], strict=True):
        masks_BHW[image] = block_mask(grid, rng, share=rng.uniform(start, end))
    return masks_BHW.reshape(count, grid[0] * grid[1])
