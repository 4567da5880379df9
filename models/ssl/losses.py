"""The losses of self-supervised pretraining: CLS, patches, KoLeo, Gram, and the Sinkhorn-Knopp centring before them.

All compute in float32 whatever the network's precision (float64 stays), also under autocast, and return a scalar. The
teacher's part of each is probabilities or features without a gradient; the student's are raw logits of its heads.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from dubsar.models.precision import at_least_float32

_NORM_FLOOR = 1e-6  # a zero vector stays zero, and its gradient finite
_NEAREST = 1e-8  # the distance below which two features count as the same


@torch.no_grad()
def sinkhorn_knopp(logits_NK: Tensor, temperature: float, *, iterations: int = 3) -> Tensor:
    """Return the teacher's targets: probabilities of each row that use all prototypes equally over the whole batch.

    In turns, each prototype's mass over all samples of all ranks and each sample's over all prototypes is scaled to
    one; a sample's turn is the last. It is done on logarithms: exp(logit / 0.04) overflows float32 at a logit of 3.6.
    Ranks may have any number of rows, even none, but all must call.

    Args:
        logits_NK: teacher logits, one row a sample (an image, or a masked patch).
        temperature: of the teacher; smaller is sharper.
        iterations: turns, at least one; without any this would be a softmax.

    Returns:
        Probabilities (N, K), float32 (float64 stays), each row adding up to one.

    Source:
        SwAV (Caron et al. 2020), section 3.1; for DINO's heads DINOv2 (Oquab et al. 2023), section 4.
    """
    log_NK = at_least_float32(logits_NK) / temperature
    for _ in range(iterations):
        log_NK = (log_NK - _log_mass(log_NK)).log_softmax(1)
    return log_NK.exp()


def _log_mass(log_NK: Tensor) -> Tensor:
    mass_K = log_NK.logsumexp(0)
    if not (dist.is_available() and dist.is_initialized()):
        return mass_K
    masses = [torch.empty_like(mass_K) for _ in range(dist.get_world_size())]
    dist.all_gather(masses, mass_K)
    return torch.stack(masses).logsumexp(0)


def cls_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Return the cross-entropy between the student's views and the teacher's views of the same images.

    Args:
        student: logits (B, K) of each view; the first ``len(teacher)`` are the views that the teacher saw as well.
        teacher: probabilities (B, K) of each global view, from `sinkhorn_knopp`.
        temperature: of the student.

    Returns:
        Mean over the images and over all pairs of a student's with a teacher's view; a view is not paired with itself.

    Raises:
        ValueError: there is no pair, or the teacher has views that the student has not.

    Source:
        DINO (Caron et al. 2021), equation 3.
    """
    pairs = len(teacher) * (len(student) - 1)
    if pairs <= 0 or len(teacher) > len(student):
        raise ValueError(
            f"cls_loss: {len(student)} student and {len(teacher)} teacher views make no pairs; "
            "give the student all global views and at least one other view"
        )
    loss = torch.zeros((), device=student[0].device)
    for view, logits_BK in enumerate(student):
        if others := [probs_BK for other, probs_BK in enumerate(teacher) if other != view]:
            loss = loss + _cross_entropy(logits_BK, torch.stack(others).sum(0), temperature).mean()
    return loss / pairs


def patch_loss(
    student_MK: Tensor, teacher_MK: Tensor, weight_M: Tensor, images: int, temperature: float = 0.1
) -> Tensor:
    """Return the cross-entropy at masked patches: the student saw the mask token, the teacher the patch.

    Args:
        student_MK: logits of the masked patches of all images.
        teacher_MK: probabilities of the same patches, from `sinkhorn_knopp`.
        weight_M: of each patch, from `patch_weights`, so that each image counts once.
        images: how many were in the batch, those without a mask as well.
        temperature: of the student.

    Returns:
        Weighted sum over patches / images; 0 where nothing is masked.

    Source:
        iBOT (Zhou et al. 2022), equation 2.
    """
    return (weight_M * _cross_entropy(student_MK, teacher_MK, temperature)).sum() / max(1, images)


def patch_weights(mask_BN: Tensor) -> Tensor:
    """Return 1 / masked patches of its image for each masked patch (M,), float32, in the order of ``x[mask_BN]``."""
    counts_BN = mask_BN.sum(1, keepdim=True).expand_as(mask_BN)
    return 1.0 / counts_BN[mask_BN]


def _cross_entropy(logits_NK: Tensor, probs_NK: Tensor, temperature: float) -> Tensor:
    log_NK = (at_least_float32(logits_NK) / temperature).log_softmax(1)
    return -(at_least_float32(probs_NK).detach() * log_NK).sum(1)


def koleo(features_BD: Tensor) -> Tensor:
    """Return how crowded features are: minus the mean logarithm of the distance to the nearest other one.

    Features are L2-normalised. Give one view of each image at a time, or an image's nearest neighbour is itself. Only
    rows of this rank are compared. Equal rows have no direction to part in and get no gradient.

    Args:
        features_BD: CLS features of the backbone, before any head.

    Returns:
        Scalar; 0 with fewer than two rows.

    Source:
        Sablayrolles et al. 2019, section 3 (the Kozachenko-Leonenko estimator of the entropy).
    """
    unit_BD = _unit(features_BD)
    if len(unit_BD) < 2:
        return unit_BD.sum() * 0.0
    with torch.no_grad(), torch.autocast(unit_BD.device.type, enabled=False):
        nearest_B = (unit_BD @ unit_BD.T).fill_diagonal_(-torch.inf).argmax(1)
    squared_B = (unit_BD - unit_BD[nearest_B]).square().sum(1)
    return -0.5 * squared_B.clamp(min=_NEAREST**2).log().mean()


def gram(student_BND: Tensor, teacher_BND: Tensor) -> Tensor:
    """Return how far the similarities between the patches of an image are from what they were in an earlier teacher.

    Features may move as long as their cosines among each other stay.

    Args:
        student_BND: patch features of the backbone; width may differ from the teacher's.
        teacher_BND: of the frozen teacher, on the same grid (`resize_patches`).

    Returns:
        Mean squared difference of the two (N, N) matrices of cosines, over all images.

    Raises:
        ValueError: images or patches differ in number.

    Source:
        DINOv3 (Siméoni et al. 2025), section 4.2; there the sum over the N x N differences, here the mean.
    """
    if student_BND.shape[:2] != teacher_BND.shape[:2]:
        raise ValueError(
            f"gram: the student has (images, patches) {tuple(student_BND.shape[:2])}, the teacher "
            f"{tuple(teacher_BND.shape[:2])}; bring the teacher's to the student's grid with resize_patches"
        )
    return functional.mse_loss(_cosines(student_BND), _cosines(teacher_BND.detach()))


def resize_patches(patches_BND: Tensor, grid: tuple[int, int], to_grid: tuple[int, int]) -> Tensor:
    """Return patch features of one grid (rows, columns) on another one, interpolated bicubically.

    Args:
        patches_BND: features, row by row.
        grid: rows and columns of ``patches_BND``.
        to_grid: rows and columns that are wanted.

    Returns:
        Features (B, rows * columns of ``to_grid``, D), float32 (float64 stays).

    Raises:
        ValueError: ``grid`` has another number of patches.

    Source:
        DINOv3 (Siméoni et al. 2025), section 4.3: a teacher at twice the resolution, its features halved.
    """
    if patches_BND.shape[1] != grid[0] * grid[1]:
        raise ValueError(f"resize_patches: {patches_BND.shape[1]} patches do not fill a grid of {grid[0]} x {grid[1]}")
    patches_BND = at_least_float32(patches_BND)
    if grid == to_grid:
        return patches_BND
    map_BDHW = patches_BND.mT.reshape(len(patches_BND), -1, *grid)
    return functional.interpolate(map_BDHW, to_grid, mode="bicubic", align_corners=False).flatten(2).mT


def _unit(vectors: Tensor) -> Tensor:
    return functional.normalize(at_least_float32(vectors), dim=-1, eps=_NORM_FLOOR)


def _cosines(patches_BND: Tensor) -> Tensor:
    unit_BND = _unit(patches_BND)
    with torch.autocast(unit_BND.device.type, enabled=False):
        return unit_BND @ unit_BND.mT
