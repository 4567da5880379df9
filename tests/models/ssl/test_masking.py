"""Block masks: exact counts, blocks rather than salt, the same from the same seed, and tiny grids."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dubsar.models.ssl.masking import batch_masks, block_mask

Mask = npt.NDArray[np.bool_]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def neighbours(mask_HW: Mask) -> float:
    """Return how many of the neighbours of a masked patch are masked, as a fraction."""
    pairs = [(mask_HW[1:], mask_HW[:-1]), (mask_HW[:, 1:], mask_HW[:, :-1])]
    return float(sum((a & b).sum() for a, b in pairs) / max(1, sum((a | b).sum() for a, b in pairs)))


@pytest.mark.parametrize("grid", [(14, 14), (4, 4), (3, 9), (1, 6), (2, 1), (1, 1)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.97, 1.0])
def test_a_mask_covers_exactly_what_was_asked_for(grid: tuple[int, int], share: float) -> None:
    for seed in range(20):
        mask_HW = block_mask(grid, rng(seed), share=share)
        assert (mask_HW.shape, mask_HW.dtype) == (grid, np.bool_)
        assert mask_HW.sum() == round(share * grid[0] * grid[1])


def test_masks_are_blocks_not_salt() -> None:
    blocks = [block_mask((16, 16), rng(seed), share=0.3) for seed in range(50)]
    salt = [rng(seed).permutation(mask.ravel()).reshape(16, 16) for seed, mask in enumerate(blocks)]
    assert np.mean([neighbours(m) for m in salt]) < 0.25
    assert np.mean([neighbours(m) for m in blocks]) > 0.5


def test_every_patch_is_masked_equally_often_but_for_the_rim() -> None:
    """A patch in the middle lies in more rectangles than one in a corner; none is left out, none is always masked."""
    often_HW = np.mean([block_mask((8, 8), rng(seed), share=0.4) for seed in range(2000)], axis=0)
    assert often_HW.mean() == pytest.approx(round(0.4 * 64) / 64)
    assert 0.1 < often_HW.min() < often_HW.max() < 0.7
    np.testing.assert_allclose(often_HW, often_HW[::-1, ::-1], atol=0.06)
    np.testing.assert_allclose(often_HW, often_HW.T, atol=0.06)


@pytest.mark.parametrize(("aspect", "flat"), [(1.0, False), (0.1, True)])
def test_aspect_bounds_the_shape_of_a_block(aspect: float, flat: bool) -> None:
    """A share as small as the least block leaves room for one rectangle: 3 x 3, or anything up to 1 x 9."""
    boxes = []
    for seed in range(100):
        rows, columns = np.nonzero(block_mask((30, 30), rng(seed), share=0.01, least=9, aspect=aspect))
        boxes.append((int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1))
    assert ({(1, 9), (9, 1)} <= set(boxes)) == flat
    assert flat or set(boxes) == {(3, 3)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "share is 1.5; give a fraction"),
        ({"share": -0.1}, "share is -0.1"),
        ({"share": 0.5, "aspect": 0.0}, "aspect is 0.0; give that of the flattest"),
        ({"share": 0.5, "aspect": 3.0}, "aspect is 3.0"),
    ],
)
def test_what_makes_no_mask_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_mask((4, 4), rng(), **options)


def test_half_of_a_batch_is_masked_with_shares_from_each_stratum() -> None:
    masks_BN = batch_masks(32, (14, 14), rng())
    assert (masks_BN.shape, masks_BN.dtype) == ((32, 196), np.bool_)
    counts = sorted(int(count) for count in masks_BN.sum(1) if count)
    edges = 196 * np.linspace(0.1, 0.5, 17)
    assert len(counts) == 16
    assert all(low - 1 <= count <= high + 1 for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True))


def test_any_image_may_be_masked_and_batches_hold_about_as_many_patches() -> None:
    batches = [batch_masks(8, (8, 8), rng(seed)) for seed in range(200)]
    image_often = np.mean([masks_BN.any(1) for masks_BN in batches], axis=0)
    shares_by_image = np.mean([masks_BN.mean(1) for masks_BN in batches], axis=0)
    np.testing.assert_allclose(image_often, 0.5, atol=0.12)
    np.testing.assert_allclose(shares_by_image, 0.15, atol=0.05)  # strata are not tied to places in the batch
    totals = [int(masks_BN.sum()) for masks_BN in batches]
    assert np.std(totals) < 0.06 * np.mean(totals)


@pytest.mark.parametrize(("count", "probability", "masked"), [(1, 0.5, 0.5), (3, 0.5, 1.5), (4, 0.0, 0), (4, 1.0, 4)])
def test_a_fraction_of_an_image_is_left_to_chance(count: int, probability: float, masked: float) -> None:
    found = [batch_masks(count, (4, 4), rng(seed), probability=probability).any(1).sum() for seed in range(400)]
    assert set(found) == {int(np.floor(masked)), int(np.ceil(masked))}
    assert np.mean(found) == pytest.approx(masked, abs=0.1)


def test_the_same_generator_gives_the_same_masks_and_goes_on_to_others() -> None:
    first, second = rng(7), rng(7)
    before = batch_masks(6, (8, 8), first)
    np.testing.assert_array_equal(before, batch_masks(6, (8, 8), second))
    assert not np.array_equal(before, batch_masks(6, (8, 8), first))


def test_an_empty_batch_has_no_masks() -> None:
    assert batch_masks(0, (4, 4), rng()).shape == (0, 16)


@pytest.mark.parametrize(
    "options", [{"probability": 1.1}, {"probability": -0.1}, {"shares": (0.5, 0.1)}, {"shares": (-0.1, 0.5)}]
)
def test_odd_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_masks: probability is .* give fractions of 0 to 1"):
        batch_masks(4, (4, 4), rng(), **options)
