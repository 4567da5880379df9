"""Learning from a teacher: the loss by hand, a teacher that never changes nor is saved, and what is refused."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from dubsar.configs.base import ConfigError, load
from dubsar.configs.blocks import Distill
from dubsar.configs.schema import STAGES
from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass
from dubsar.models.backbones import SignClassifier
from dubsar.models.checkpoint import load_model
from dubsar.models.ensemble import SignEnsemble
from dubsar.pipelines.callbacks import KeepLast, StopOnNaN, read_metrics
from dubsar.pipelines.distillation import Teacher, distillation_loss
from dubsar.pipelines.launch import describe
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.networks import load_classifier
from dubsar.pipelines.stages import classify
from dubsar.pipelines.training import seed_everything

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug" / "classify.yaml"
SMALL = ("model.backbone_args={channels: [8, 8, 16, 16]}", "data.limit=0", "trainer.val_every_steps=100")
DISTILL = "model.distill={weight: 0.7, temperature: 3.0}"
Makes = Callable[..., Path]


def config(*overrides: str) -> Any:
    return load(DEBUG, STAGES["classify"], (*SMALL, *overrides))


def build(*overrides: str) -> tuple[Any, Any]:
    settings = config(*overrides)
    seed_everything(settings.trainer)
    return classify.build(settings, resolve_config(settings))


# --- the loss


def test_the_loss_by_hand() -> None:
    # at temperature 2 the teacher says 3/4, 1/4 and the student 1/2, 1/2
    teacher, student = torch.tensor([[2 * math.log(3), 0.0]]), torch.tensor([[5.0, 5.0]])
    wanted = 4 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert float(distillation_loss(student, teacher, 2.0)) == pytest.approx(wanted, rel=1e-6)
    both = distillation_loss(student.expand(2, -1), torch.cat([teacher, student]), 2.0)
    assert float(both) == pytest.approx(wanted / 2, rel=1e-6)  # the mean over crops; who agrees adds nothing


def test_the_gradient_is_that_of_the_teachers_probabilities_whatever_the_temperature() -> None:
    student = torch.zeros(1, 2, requires_grad=True)
    for temperature in (1.0, 4.0):
        (gradient,) = torch.autograd.grad(distillation_loss(student, torch.tensor([[0.02, 0.0]]), temperature), student)
        torch.testing.assert_close(gradient, torch.tensor([[-0.005, 0.005]]), rtol=1e-2, atol=0)


class Says(nn.Module):
    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.said, self.seen = nn.Parameter(torch.tensor([logits])), (0, 0)

    def forward(self, pixels_BCHW: torch.Tensor) -> torch.Tensor:
        self.seen = tuple(pixels_BCHW.shape[-2:])
        return self.said.expand(len(pixels_BCHW), -1)


def test_the_teachers_share_is_mixed_in_and_it_sees_crops_at_its_own_side() -> None:
    network = Says(2 * math.log(3), 0.0)
    teacher = Teacher(network, 48, Distill(weight=0.25, temperature=2.0))  # type: ignore[arg-type]
    student, pixels = torch.full((3, 2), 5.0, requires_grad=True), torch.rand(3, 3, 32, 32)
    wanted = 0.75 * 7 + 0.25 * 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    loss = teacher.blend(torch.tensor(7.0), student, pixels)
    assert float(loss) == pytest.approx(wanted, rel=1e-6)
    assert network.seen == (48, 48)
    loss.backward()
    assert student.grad is not None
    assert network.said.grad is None


def test_members_of_an_ensemble_see_the_crops_as_they_are_and_not_enlarged_first() -> None:
    members = [Says(1.0, 0.0), Says(0.0, 1.0)]
    ensemble = SignEnsemble(members, [64, 32], [0.5, 0.5], [1.0, 1.0])  # type: ignore[arg-type]
    pixels, shown = torch.rand(2, 3, 32, 32), []
    members[1].register_forward_pre_hook(lambda _, given: shown.append(given[0]))
    Teacher(ensemble, 64, Distill()).logits(pixels)
    assert shown[0] is pixels
    assert members[0].seen == (64, 64)


def test_the_teacher_computes_under_the_precision_that_is_on_and_answers_in_float32() -> None:
    network = SignClassifier("resnet10t", 3)
    teacher, pixels = Teacher(network, 32, Distill()), torch.rand(2, 3, 32, 32)
    assert not network.training
    full = teacher.logits(pixels)
    with torch.autocast("cpu", torch.bfloat16):
        half = teacher.logits(pixels)
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    assert torch.equal(half, half.bfloat16().float())


# --- in the stage


def test_a_teacher_changes_nothing_of_what_is_drawn_saved_or_trained(noise_root: Path, a_member: Makes) -> None:
    teacher = a_member(noise_root / "teacher", "data.crop_px=48", seed=5)
    alone, stream = build("model.mixup=0.3")
    taught, _ = build("model.mixup=0.3", f"model.teacher={teacher}", DISTILL)
    assert list(taught.state_dict()) == list(alone.state_dict())
    assert all(torch.equal(t, taught.state_dict()[k]) for k, t in alone.state_dict().items())
    assert len(list(taught.parameters())) == len(list(alone.parameters()))
    assert deepcopy(taught).teacher is taught.teacher
    held = taught.teacher.network.state_dict()
    before = {name: tensor.clone() for name, tensor in held.items()}
    taught.train()
    losses = []
    for system in (alone, taught):
        torch.manual_seed(0)
        system.log = lambda *_: None
        loss = system.training_step(stream.batch(0), 0)
        loss.backward()
        losses.append(float(loss))
    assert losses[0] != losses[1]
    assert all(torch.equal(t, held[name]) for name, t in before.items())  # batch norms too: it is never in training
    assert all(p.grad is None for p in taught.teacher.network.parameters())


def test_the_loss_of_a_step_is_the_blend_with_plain_logits(noise_root: Path, a_member: Makes) -> None:
    teacher = a_member(noise_root / "teacher", seed=5)
    system, stream = build(
        f"model.teacher={teacher}", DISTILL, "model.logit_adjustment=1.0", "model.label_smoothing=0.1"
    )
    system.log = lambda *_: None
    system.eval()
    batch = stream.batch(0)
    found = float(system.training_step(batch, 0))
    student = system.network(batch["pixels_BCHW"])
    truth = nn.functional.cross_entropy(student + system.log_prior_C, batch["classes_B"], label_smoothing=0.1)
    other, _, _ = load_classifier(teacher)
    kl = distillation_loss(student, other(batch["pixels_BCHW"]), 3.0)
    assert found == pytest.approx(float(0.3 * truth + 0.7 * kl), rel=1e-5)


def train(folder: Path, *overrides: str, resume: bool = False) -> dict[str, float]:
    settings = config("trainer.max_steps=6", *overrides)
    seed_everything(settings.trainer)
    return classify.run(settings, folder, resume=resume)


def test_a_resumed_run_equals_the_unbroken_one(
    noise_root: Path, a_member: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = a_member(noise_root / "teacher", seed=5)
    options = (f"model.teacher={teacher}", DISTILL, "model.mixup=0.3", "efficiency.ema={decay: 0.7}")
    train(noise_root / "whole", *options)

    def stops(self: Any, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        real = KeepLast.on_train_batch_end

        def saves_at_3(self: KeepLast, trainer: L.Trainer, module: Any, *rest: Any) -> None:
            self.seconds = 0.0 if trainer.global_step == 3 else 1e9
            real(self, trainer, module, *rest)

        patch.setattr(KeepLast, "on_train_batch_end", saves_at_3)
        patch.setattr(StopOnNaN, "on_train_batch_end", stops)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(noise_root / "broken", *options)
    train(noise_root / "broken", *options, resume=True)
    checkpoints = [
        torch.load(noise_root / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "broken")
    ]
    assert not [name for name in checkpoints[0]["state_dict"] if "teacher" in name]
    for key in ("state_dict", "current_model_state"):
        for name, tensor in checkpoints[0][key].items():
            assert torch.equal(tensor, checkpoints[1][key][name]), name
    losses = [
        [r["train/loss"] for r in read_metrics(noise_root / name / "metrics.jsonl") if "train/loss" in r]
        for name in ("whole", "broken")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


def test_a_student_tells_of_its_teacher_and_loads_without_it(noise_root: Path, a_member: Makes) -> None:
    teacher = a_member(noise_root / "teacher", seed=5)
    sha256 = load_model(teacher, "classify").card["sha256"]
    train(noise_root / "run", f"model.teacher={teacher}", DISTILL)
    for path in teacher.iterdir():
        path.unlink()
    network, _, file = load_classifier(noise_root / "run")
    assert file.card["teacher"] == {"name": "debug", "commit": "unknown", "sha256": sha256}
    assert {name.split(".")[0] for name in file.state} == {"net"}
    assert isinstance(network, SignClassifier)


# --- what is refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.distill={}", "distill is set and teacher is empty; give a classifier's weights as teacher"),
        ("model.teacher=runs/x", "teacher is given and distill is not; set distill"),
        ("model.distill={weight: 0}", "'model.distill.weight' is 0: Input should be greater than 0"),
        ("model.distill={temperature: 0}", "'model.distill.temperature' is 0: Input should be greater than 0"),
    ],
)
def test_half_a_setting_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(override)


def test_a_teacher_of_other_signs_or_of_other_crops_is_refused(noise_root: Path, a_member: Makes) -> None:
    two = Inventory((SignClass("𒀀", "A"), SignClass("𒈾", "NA")))
    foreign = a_member(noise_root / "foreign", signs=two)
    with pytest.raises(InventoryMismatch, match=rf"^model.teacher: {foreign}: made for sign inventory {two.hash}, but"):
        build(f"model.teacher={foreign}", DISTILL)
    wider = a_member(noise_root / "wider", "data.context=0.3")
    with pytest.raises(ValueError, match=r"with data.context=0.3, here it is 0.15; .* set data.context=0.3"):
        build(f"model.teacher={wider}", DISTILL)
    with pytest.raises(FileNotFoundError, match="no such weights"):
        describe(config("model.teacher=nowhere", DISTILL))
