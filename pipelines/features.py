"""Measure frozen features: what they tell of signs (k-NN, linear probe), and how far training has moved them.

Features are rows of numbers that a network gives for crops. Nothing here trains the network or needs its outputs to
mean anything: all that is asked is whether like signs lie close together.
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from dubsar.datasets.boxes import Floats, Ints
from dubsar.pipelines.reading.engine import to_input

BEST = 5  # predictions that are kept, for top-1 and top-5
PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # on squared weights of the linear probe, from the strongest to the weakest
_HELD_OUT = 0.2
_CHUNK = 1024  # test rows at once: the matrix of similarities stays small beside 10^5 train rows

Vectors = npt.NDArray[np.float32]


@torch.no_grad()  # not inference_mode: what a network keeps on the way, as rotary positions, must be usable in training
def embed(
    encoder: Callable[[torch.Tensor], torch.Tensor],
    crops_NSS3: npt.NDArray[np.uint8],
    batch_size: int = 128,
    device: torch.device | str = "cpu",
) -> Vectors:
    """Compute the features of crops.

    Args:
        encoder: maps RGB (B, 3, S, S) in 0-1 to features (B, D); a module has to be in evaluation mode.
        crops_NSS3: uint8 crops without border.
        batch_size: crops at once.
        device: where the encoder is.

    Returns:
        float32 (N, D); (0, 0) without crops.
    """
    rows = [
        encoder(to_input(torch.from_numpy(crops_NSS3[i : i + batch_size]).to(device))).float().cpu()
        for i in range(0, len(crops_NSS3), batch_size)
    ]
    return torch.cat(rows).numpy() if rows else np.zeros((0, 0), np.float32)


def hog(crops_NSS3: npt.NDArray[np.uint8], side: int = 48) -> Vectors:
    """Compute histograms of oriented gradients (N, D), which need no training: the floor for all learned features.

    Args:
        crops_NSS3: uint8 crops, which are brought to ``side`` px, grey.
        side: a multiple of 8 px, at least 16: cells of 8 px in blocks of 16 px, 9 directions.

    Raises:
        ImportError: scikit-image is not installed; only developers do so.

    Source:
        Dalal and Triggs 2005.
    """
    from skimage.feature import hog as describe

    greys = (cv2.cvtColor(crop_SS3, cv2.COLOR_RGB2GRAY) for crop_SS3 in crops_NSS3)
    small = (cv2.resize(grey_SS, (side, side), interpolation=cv2.INTER_AREA) for grey_SS in greys)
    rows = [describe(grey_SS, cells_per_block=(2, 2), block_norm="L2-Hys") for grey_SS in small]
    return np.stack(rows).astype(np.float32) if rows else np.zeros((0, 0), np.float32)


def unit(features_ND: npt.ArrayLike, what: str = "features") -> Vectors:
    """Return rows (N, D) of length 1, float32; a row of zeros stays.

    Raises:
        ValueError: not a matrix, or not finite; the message begins with ``what``.
    """
    features = np.asarray(features_ND, dtype=np.float32)
    if features.ndim != 2:
        raise ValueError(f"{what}: shape {features.shape}, expected (rows, features)")
    if not np.isfinite(features).all():
        raise ValueError(f"{what}: not all numbers are finite; the network that made them has diverged")
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(lengths, 1e-12), dtype=np.float32)


def knn(
    train_ND: npt.ArrayLike,
    labels_N: npt.ArrayLike,
    test_MD: npt.ArrayLike,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
) -> Ints:
    """Classify by the vote of the nearest neighbours, each weighted by exp(cosine / temperature).

    Args:
        train_ND: features with known classes.
        labels_N: their class ids.
        test_MD: features to be classified.
        classes: number of classes.
        k: neighbours that vote.
        temperature: the smaller, the more the very nearest count.

    Returns:
        Class ids (M, up to 5), best first; -1 where fewer classes have a vote.

    Raises:
        ValueError: no train features, another width, labels out of range, or features that are not finite.

    Source:
        Caron et al. 2021 (DINO), section 4.1 and appendix F.1; the weighted vote is of Wu et al. 2018, section 3.4.
    """
    train, test = torch.from_numpy(unit(train_ND, "train")), torch.from_numpy(unit(test_MD, "test"))
    labels = torch.from_numpy(_checked_labels(train, labels_N, test, classes))
    found = [torch.zeros(0, min(BEST, classes), dtype=torch.int64)]
    for chunk in torch.split(test, _CHUNK):
        near = (chunk @ train.T).topk(min(k, len(train)), dim=1)
        # less the largest, and in float64: no vote overflows or vanishes at a low temperature
        weights = ((near.values - near.values[:, :1]).double() / temperature).exp()
        votes = torch.zeros(len(chunk), classes, dtype=torch.float64).scatter_add_(1, labels[near.indices], weights)
        best = votes.topk(min(BEST, classes), dim=1)
        found.append(torch.where(best.values > 0, best.indices, -1))
    return torch.cat(found).numpy()


def linear_probe(
    train_ND: npt.ArrayLike,
    labels_N: npt.ArrayLike,
    test_MD: npt.ArrayLike,
    *,
    classes: int,
    tablets: Sequence[str] | None = None,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
) -> Ints:
    """Classify by a linear layer that is fitted to frozen features (multinomial logistic regression).

    Features are brought to mean 0 and deviation 1. The penalty on squared weights is the one that is best on a fifth of
    the train tablets, held out; then the layer is fitted to all of them. The test features choose nothing.

    Args:
        train_ND: features with known classes.
        labels_N: their class ids.
        test_MD: features to be classified.
        classes: number of classes.
        tablets: the tablet of each train row, so that none is on both sides; without it rows are held out one by one.
        penalties: to choose from.
        seed: of what is held out.

    Returns:
        Class ids (M, up to 5), best first.

    Raises:
        ValueError: no train features, another width, labels out of range, or features that are not finite.
    """
    train = torch.from_numpy(_finite(train_ND, "train"))
    test = torch.from_numpy(_finite(test_MD, "test"))
    labels = torch.from_numpy(_checked_labels(train, labels_N, test, classes))
    mean, deviation = train.mean(0), train.std(0, correction=0).clamp_min(1e-6)
    train, test = (train - mean) / deviation, (test - mean) / deviation
    ordered = sorted(penalties, reverse=True)
    penalty = ordered[0]
    held = torch.from_numpy(_held_out(len(train), tablets, seed))
    if len(ordered) > 1 and held.any() and not held.all():
        right, weights = [], None
        for candidate in ordered:  # from the strongest on: each fit starts where the last one ended
            weights = _fit(train[~held], labels[~held], classes, candidate, weights)
            right.append(int((_logits(train[held], weights).argmax(1) == labels[held]).sum()))
        penalty = ordered[int(np.argmax(right))]  # the stronger one of equals
    best = _logits(test, _fit(train, labels, classes, penalty)).topk(min(BEST, classes), dim=1)
    return best.indices.numpy()


def drift(before_ND: npt.ArrayLike, after_ND: npt.ArrayLike) -> dict[str, float]:
    """Compare two networks' features of the same crops.

    Args:
        before_ND: features by the one network.
        after_ND: by the other, rows in the same order.

    Returns:
        ``cosine``, the mean cosine of a crop's features before and after, and ``cka``, linear centred kernel alignment:
        do the same crops lie close together, whatever the axes are? Both are 1 where nothing has changed; ``cka`` is 0
        where one network gives all crops the same features.

    Raises:
        ValueError: shapes differ, there are no rows, or numbers are not finite.

    Source:
        Kornblith et al. 2019, section 3 (linear CKA).
    """
    before, after = _finite(before_ND, "before").astype(np.float64), _finite(after_ND, "after").astype(np.float64)
    if before.shape != after.shape or not len(before):
        raise ValueError(
            f"features before and after have shapes {before.shape} and {after.shape}; "
            "expected the same crops in both, at least one"
        )
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosine = float(((before * after).sum(1) / np.maximum(lengths, 1e-12)).mean())
    x, y = before - before.mean(0), after - after.mean(0)
    scale = _squared(x, x) * _squared(y, y)
    return {"cosine": cosine, "cka": float(_squared(x, y) / np.sqrt(scale)) if scale > 0 else 0.0}


def _squared(x_ND: Floats, y_ND: Floats) -> float:
    """Return the squared Frobenius norm of the covariance of two sets of features."""
    return float(np.square(x_ND.T @ y_ND).sum())


def _finite(features_ND: npt.ArrayLike, what: str) -> Vectors:
    features = np.asarray(features_ND, dtype=np.float32)
    unit(features, what)  # for its checks
    return features


def _checked_labels(train: torch.Tensor, labels_N: npt.ArrayLike, test: torch.Tensor, classes: int) -> Ints:
    labels = np.asarray(labels_N, dtype=np.int64).reshape(-1)
    if not len(train) or len(labels) != len(train):
        raise ValueError(f"{len(train)} train features with {len(labels)} labels; expected one each, and at least one")
    if len(test) and test.shape[1] != train.shape[1]:
        raise ValueError(f"train has {train.shape[1]} features, test has {test.shape[1]}; expected one network's")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels go from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return labels


def _held_out(count: int, tablets: Sequence[str] | None, seed: int) -> npt.NDArray[np.bool_]:
    """Mark about a fifth of the rows (N,): whole tablets where they are known."""
    names, owner = np.unique(tablets if tablets is not None else np.arange(count), return_inverse=True)
    if len(owner) != count:
        raise ValueError(f"{len(owner)} tablets for {count} train features; expected one each")
    order = np.random.default_rng(seed).permutation(len(names))
    return np.isin(owner, order[: max(1, round(_HELD_OUT * len(names)))])


def _logits(features_ND: torch.Tensor, weights_EC: torch.Tensor) -> torch.Tensor:
    return features_ND @ weights_EC[:-1] + weights_EC[-1]


def _fit(
    train_ND: torch.Tensor, labels_N: torch.Tensor, classes: int, penalty: float, start: torch.Tensor | None = None
) -> torch.Tensor:
    """Return weights (D + 1, classes), the last row the bias, at the minimum of cross entropy plus half the penalty."""
    first = torch.zeros(train_ND.shape[1] + 1, classes) if start is None else start
    weights = first.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=100, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(_logits(train_ND, weights), labels_N) + penalty / 2 * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()
