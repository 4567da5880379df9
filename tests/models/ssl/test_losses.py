"""The losses of pretraining: published formulas in float64 NumPy, lightly's numbers, and what training runs into."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dubsar.models.ssl.losses import cls_loss, gram, koleo, patch_loss, patch_weights, resize_patches, sinkhorn_knopp

Array = npt.NDArray[np.float64]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def probabilities(*shape: int, seed: int = 9) -> Tensor:
    return (3 * draw(*shape, seed=seed)).softmax(-1)


def log_softmax(x: Array) -> Array:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def lightly_loss(module: str) -> Any:
    return pytest.importorskip(f"lightly.loss.{module}", reason="lightly is the independent implementation")


def sinkhorn_by_hand(logits_NK: Array, temperature: float, iterations: int) -> Array:
    """SwAV's algorithm as it is printed: Q (K, N), rows to 1 / K, columns to 1 / N, in turns."""
    q = np.exp(logits_NK / temperature).T
    prototypes, samples = q.shape
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(1, keepdims=True) / prototypes
        q = q / q.sum(0, keepdims=True) / samples
    return (q * samples).T


@pytest.mark.parametrize("shape", [(7, 5), (3, 40), (1, 4), (6, 1)])
@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_is_the_printed_algorithm(shape: tuple[int, int], iterations: int) -> None:
    logits_NK = draw(*shape)
    ours = sinkhorn_knopp(logits_NK, 0.2, iterations=iterations).numpy()
    np.testing.assert_allclose(ours, sinkhorn_by_hand(logits_NK.numpy(), 0.2, iterations), rtol=1e-12)


def test_sinkhorn_is_lightly_s() -> None:
    logits_NK = draw(24, 10, dtype=torch.float32)
    theirs = lightly_loss("swav_loss").sinkhorn(logits_NK, iterations=3, epsilon=0.25)
    torch.testing.assert_close(sinkhorn_knopp(logits_NK, 0.25), theirs, rtol=1e-5, atol=1e-7)


def test_sinkhorn_uses_prototypes_equally_where_a_softmax_collapses() -> None:
    logits_NK = draw(64, 8) + 5 * torch.tensor([1.0] + [0.0] * 7)
    softmax_K = (logits_NK / 0.5).softmax(1).sum(0)
    balanced_NK = sinkhorn_knopp(logits_NK, 0.5, iterations=100)
    assert softmax_K.argmax() == 0
    assert softmax_K[0] > 60
    torch.testing.assert_close(balanced_NK.sum(0), torch.full((8,), 8.0, dtype=torch.float64), rtol=1e-3, atol=0)
    torch.testing.assert_close(balanced_NK.sum(1), torch.ones(64, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1.0, 30.0, 3000.0])
def test_sinkhorn_stays_finite_where_the_exponential_of_a_logit_does_not(scale: float) -> None:
    probs_NK = sinkhorn_knopp(scale * draw(16, 12, dtype=torch.float32), 0.04)
    assert bool(probs_NK.isfinite().all())
    torch.testing.assert_close(probs_NK.sum(1), torch.ones(16))
    if scale > 3:  # the reason for the logarithms
        assert not bool((scale * draw(16, 12, dtype=torch.float32) / 0.04).exp().isfinite().all())


def test_sinkhorn_gives_targets_without_gradient_in_float32_and_none_for_no_rows() -> None:
    logits_NK = draw(4, 6, dtype=torch.bfloat16).requires_grad_()
    probs_NK = sinkhorn_knopp(logits_NK, 0.05)
    assert (probs_NK.dtype, probs_NK.requires_grad) == (torch.float32, False)
    torch.testing.assert_close(probs_NK, sinkhorn_knopp(logits_NK.detach().float(), 0.05), rtol=0, atol=0)
    assert sinkhorn_knopp(torch.zeros(0, 6), 0.05).shape == (0, 6)


RANK = """
import sys
import torch
import torch.distributed as dist
from dubsar.models.ssl.losses import sinkhorn_knopp

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
logits_NK = torch.load(f"{folder}/logits.pt")
for case, cut in enumerate((4, 3, 8)):
    own_NK = logits_NK[:cut] if rank == 0 else logits_NK[cut:]
    torch.save(sinkhorn_knopp(own_NK, 0.1), f"{folder}/{case}-{rank}.pt")
dist.destroy_process_group()
"""


def test_two_processes_balance_over_all_their_rows_as_one_does(tmp_path: Path) -> None:
    """Half and half, three and five, and eight and none: the masked patches of two ranks differ in number."""
    logits_NK = draw(8, 6)
    torch.save(logits_NK, tmp_path / "logits.pt")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-c", RANK, str(rank), str(tmp_path)] for rank in range(2)]
    ranks = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for command in commands]
    try:
        errors = [rank.communicate(timeout=60)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    whole_NK = sinkhorn_knopp(logits_NK, 0.1)
    for case in range(3):
        parts_NK = torch.cat([torch.load(tmp_path / f"{case}-{rank}.pt") for rank in range(2)])
        torch.testing.assert_close(parts_NK, whole_NK, rtol=1e-12, atol=0)
    apart_NK = torch.cat([sinkhorn_knopp(half_NK, 0.1) for half_NK in logits_NK.chunk(2)])
    assert float((apart_NK - whole_NK).abs().max()) > 0.01  # what each rank for itself would have got


def cls_by_hand(student: list[Array], teacher: list[Array], temperature: float) -> float:
    terms = [
        float(-(target * log_softmax(logits / temperature)).sum(1).mean())
        for view, logits in enumerate(student)
        for other, target in enumerate(teacher)
        if view != other
    ]
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("views", "globals_"), [(2, 2), (10, 2), (3, 1), (4, 3)])
def test_cls_loss_is_the_mean_over_pairs_of_different_views(views: int, globals_: int) -> None:
    student = [draw(5, 7, seed=view) for view in range(views)]
    teacher = [probabilities(5, 7, seed=100 + view) for view in range(globals_)]
    wanted = cls_by_hand([s.numpy() for s in student], [t.numpy() for t in teacher], 0.1)
    assert cls_loss(student, teacher, 0.1).item() == pytest.approx(wanted, rel=1e-12)


def test_cls_loss_is_lightly_s() -> None:
    student = [draw(6, 11, seed=view, dtype=torch.float32) for view in range(5)]
    teacher = [draw(6, 11, seed=50 + view, dtype=torch.float32) for view in range(2)]
    loss = lightly_loss("dino_loss").DINOLoss(output_dim=11, student_temp=0.1)
    theirs = loss(teacher, student, teacher_temp=0.07)  # its centre is 0 at the first call: a softmax
    ours = cls_loss(student, [(logits / 0.07).softmax(1) for logits in teacher], 0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_the_teacher_s_targets_are_held_fixed() -> None:
    student, teacher = draw(3, 5).requires_grad_(), probabilities(3, 5).requires_grad_()
    (cls_loss([student, student], [teacher]) + patch_loss(student, teacher, torch.ones(3), 3)).backward()
    assert teacher.grad is None
    assert bool(student.grad.any())  # type: ignore[union-attr]


@pytest.mark.parametrize(("views", "globals_"), [(1, 1), (2, 3), (4, 0), (0, 0)])
def test_cls_loss_refuses_views_that_make_no_pairs(views: int, globals_: int) -> None:
    with pytest.raises(ValueError, match=f"{views} student and {globals_} teacher views make no pairs; give the stud"):
        cls_loss([draw(2, 3)] * views, [probabilities(2, 3)] * globals_)


MASK_BN = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


def test_each_masked_image_weighs_the_same_and_the_unmasked_count_as_images() -> None:
    student_BNK, teacher_BNK = draw(4, 4, 6), probabilities(4, 4, 6)
    per_patch_BN = -(teacher_BNK.numpy() * log_softmax(student_BNK.numpy() / 0.2)).sum(-1)
    per_image = [row[mask].mean() for row, mask in zip(per_patch_BN, MASK_BN.numpy(), strict=True) if mask.any()]
    loss = patch_loss(student_BNK[MASK_BN], teacher_BNK[MASK_BN], patch_weights(MASK_BN), 4, 0.2)
    assert len(per_image) == 3
    assert loss.item() == pytest.approx(sum(per_image) / 4, rel=1e-6)


def test_patch_loss_is_lightly_s() -> None:
    student_MK, teacher_MK = draw(8, 6, dtype=torch.float32), draw(8, 6, seed=3, dtype=torch.float32)
    loss = lightly_loss("ibot_loss").IBOTPatchLoss(output_dim=6, teacher_temp=0.05, student_temp=0.1)
    theirs = loss(teacher_MK, student_MK, MASK_BN.view(4, 2, 2))
    ours = patch_loss(student_MK, (teacher_MK / 0.05).softmax(1), patch_weights(MASK_BN), 4)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


@pytest.mark.parametrize("images", [0, 3])
def test_where_nothing_is_masked_the_patch_loss_is_nought_and_trains_nothing(images: int) -> None:
    student_MK = torch.zeros(0, 6, requires_grad=True)
    weight_M = patch_weights(torch.zeros(images, 4, dtype=torch.bool))
    loss = patch_loss(student_MK, torch.zeros(0, 6), weight_M, images)
    loss.backward()
    assert loss.item() == 0
    assert student_MK.grad is not None


def test_koleo_is_the_printed_formula() -> None:
    features_BD = draw(9, 5)
    unit = features_BD.numpy() / np.linalg.norm(features_BD.numpy(), axis=1, keepdims=True)
    distances = np.linalg.norm(unit[:, None] - unit[None], axis=-1) + np.diag([np.inf] * 9)
    assert koleo(features_BD).item() == pytest.approx(-np.log(distances.min(1)).mean(), rel=1e-12)


def test_koleo_is_lightly_s_and_so_is_its_gradient() -> None:
    ours, theirs = (draw(32, 16, dtype=torch.float32).requires_grad_() for _ in range(2))
    loss, expected = koleo(ours), lightly_loss("koleo_loss").KoLeoLoss()(theirs)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_koleo_drives_crowded_features_apart() -> None:
    features_BD = (torch.ones(8, 4) + 0.01 * draw(8, 4, dtype=torch.float32)).requires_grad_()
    before = koleo(features_BD).item()
    for _ in range(20):
        (gradient_BD,) = torch.autograd.grad(koleo(features_BD), features_BD)
        features_BD = (features_BD - 0.05 * gradient_BD).detach().requires_grad_()
    assert koleo(features_BD).item() < before - 1


def test_koleo_finds_the_nearest_of_crowded_features_under_autocast_too() -> None:
    features_BD = torch.ones(32, 8) + 0.01 * draw(32, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        value = koleo(features_BD)
    assert value.item() == pytest.approx(koleo(features_BD.double()).item(), rel=1e-3)
    assert len((features_BD.bfloat16() @ features_BD.bfloat16().T).unique()) < 10  # 16 bits hold no order of cosines


DEGENERATE = {
    "one row": torch.ones(1, 4),
    "no row": torch.ones(0, 4),
    "equal rows": torch.ones(6, 4),
    "two pairs": torch.eye(4)[[0, 0, 1, 1]],
    "nought": torch.zeros(3, 4),
    "nearly equal": torch.ones(3, 4) + 1e-7 * torch.arange(12.0).view(3, 4),
}


@pytest.mark.parametrize("rows", DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_koleo_and_its_gradient_stay_finite(rows: Tensor, dtype: torch.dtype) -> None:
    features_BD = rows.to(dtype).clone().requires_grad_()
    loss = koleo(features_BD)
    loss.backward()
    assert loss.isfinite()
    assert features_BD.grad is not None
    assert bool(features_BD.grad.isfinite().all())
    assert len(rows) > 1 or loss.item() == 0


def test_gram_is_the_printed_formula_of_cosines() -> None:
    student_BND, teacher_BND = draw(2, 6, 5), draw(2, 6, 8, seed=1)
    squares = []
    for student, teacher in zip(student_BND.numpy(), teacher_BND.numpy(), strict=True):
        s, t = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (student, teacher))
        squares.append((s @ s.T - t @ t.T) ** 2)
    assert gram(student_BND, teacher_BND).item() == pytest.approx(np.mean(squares), rel=1e-12)


def test_gram_lets_features_turn_and_grow_but_not_their_similarities_change() -> None:
    teacher_BND = draw(2, 9, 4).requires_grad_()
    turn_DD = torch.linalg.qr(draw(4, 4, seed=1))[0]
    length_BN1 = draw(2, 9, 1, seed=2).abs() + 0.1
    assert gram(length_BN1 * teacher_BND @ turn_DD, teacher_BND).item() < 1e-25
    student_BND = draw(2, 9, 4, seed=3).requires_grad_()
    gram(student_BND, teacher_BND).backward()
    assert teacher_BND.grad is None
    assert bool(student_BND.grad.any())  # type: ignore[union-attr]


def test_gram_refuses_another_grid_and_says_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"student has \(images, patches\) \(2, 4\), the teacher \(2, 16\); .*resize_p"
    ):
        gram(draw(2, 4, 5), draw(2, 16, 5))


def test_resized_patches_lie_where_they_lay() -> None:
    """A map that rises along rows and falls along columns, on 8 x 12 patches, is itself on 4 x 6 in the middle."""
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    patches_BND = torch.stack((rows, -columns), -1).view(1, 96, 2)
    half_HWD = resize_patches(patches_BND, (8, 12), (4, 6)).view(4, 6, 2)
    torch.testing.assert_close(half_HWD[1:3, 2, 0], torch.tensor([2.5, 4.5]))
    torch.testing.assert_close(half_HWD[2, 1:5, 1], -torch.tensor([2.5, 4.5, 6.5, 8.5]))


def test_resizing_to_the_same_grid_changes_nothing_and_another_count_is_refused() -> None:
    patches_BND = draw(2, 12, 3)
    assert torch.equal(resize_patches(patches_BND, (3, 4), (3, 4)), patches_BND)
    assert resize_patches(patches_BND.bfloat16(), (3, 4), (6, 8)).dtype == torch.float32
    with pytest.raises(ValueError, match="12 patches do not fill a grid of 4 x 4"):
        resize_patches(patches_BND, (4, 4), (2, 2))


def targets(x: Tensor, seed: int) -> Tensor:
    return probabilities(*x.shape, seed=seed).float().to(torch.promote_types(x.dtype, torch.float32))


LOSSES: dict[str, Any] = {
    "cls": lambda x: cls_loss([x, x.flip(0)], [targets(x, 3), targets(x, 4)]),
    "patch": lambda x: patch_loss(x, targets(x, 3), torch.full((len(x),), 0.5), 4),
    "koleo": koleo,
    "gram": lambda x: gram(x[None], targets(x, 3)[None]),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_of_16_bits_are_float32_also_under_autocast(loss: Any) -> None:
    """Rounding the input is all that 16 bits do: the same numbers in float64 give the same loss."""
    student = draw(8, 16, dtype=torch.bfloat16).requires_grad_()
    exact = loss(student.detach().double())
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(student)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=2e-5)
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())
    assert bool(student.grad.any())


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_are_those_of_finite_differences(loss: Any) -> None:
    assert torch.autograd.gradcheck(loss, draw(4, 3).requires_grad_())
