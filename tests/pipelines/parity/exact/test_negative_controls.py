"""Faults that parity has to find: each must FAIL, at the right tier, and name the culprit."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils._pytree import tree_map

from dubsar.models import transliterator
from dubsar.models.transliterator import PAD
from dubsar.pipelines.callbacks import Average
from dubsar.pipelines.levers.apply import repeated_blocks
from dubsar.pipelines.optim import build_optimizer
from dubsar.pipelines.parity.exact.miniature import Miniature
from dubsar.pipelines.parity.exact.tiers import run_cheap_tiers
from dubsar.pipelines.parity.result import Finding
from dubsar.pipelines.parity.statistics import Verdict


def failure(stage: str, levers: dict[str, Any], change: Callable[[Miniature], None] | None = None) -> Finding:
    """Return the one finding that failed; it has to be the last of its lever."""
    findings = run_cheap_tiers(stage, levers, change=change)
    (failed,) = [f for f in findings if not f.passed]
    assert failed is findings[-1]
    assert not failed.refused
    return failed


def mask_as(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """Return `attention_masks` with its three masks (encoder, decoder, cross) changed."""
    honest = transliterator.attention_masks

    def masks(*arguments: Any) -> tuple[torch.Tensor, ...]:
        return tuple(change(list(honest(*arguments))))

    return masks


def test_a_boolean_mask_with_eager_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transliterator, "attention_masks", mask_as(lambda masks: [m == 0 for m in masks]))
    failed = failure("transliterate", {"packing": "pack"})
    assert (failed.tier, failed.verdict) == ("T2", Verdict.INFERIOR)
    assert failed.culprit.startswith("logits of line ")


def test_cross_attention_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transliterator, "attention_masks", mask_as(lambda masks: [*masks[:2], torch.zeros_like(masks[2])])
    )
    failed = failure("transliterate", {"packing": "pack"})
    assert (failed.tier, failed.verdict) == ("T2", Verdict.INFERIOR)
    assert failed.culprit.startswith("logits of line ")
    assert failed.numbers["relative difference"] > 1e-3


def test_shift_right_on_packed_labels() -> None:
    def shift(miniature: Miniature) -> None:
        batch = miniature.stream.batch

        def shifted(number: int) -> Any:
            rectangles = batch(number)
            for rectangle in rectangles:
                labels_BT = rectangle["target_BT"].clamp(min=PAD)
                rectangle["decoder_BT"] = torch.nn.functional.pad(labels_BT[:, :-1], (1, 0), value=PAD)
            return rectangles

        miniature.stream.batch = shifted  # type: ignore[method-assign]

    failed = failure("transliterate", {"packing": "pack"}, shift)
    assert (failed.tier, failed.verdict) == ("T2", Verdict.INFERIOR)
    assert failed.culprit.startswith("logits of line ")


def test_a_mean_of_means_over_rectangles() -> None:
    def average_means(miniature: Miniature) -> None:
        system = miniature.system

        def training_step(batch: Any, batch_idx: int) -> torch.Tensor:
            losses, ids = zip(*map(system.summed_loss, batch), strict=True)
            system.step_ids = system.step_ids + sum(ids)
            means = [loss / count for loss, count in zip(losses, ids, strict=True)]
            return sum(ids) * sum(means) / len(means)

        system.training_step = training_step

    failed = failure("transliterate", {"packing": "bucket"}, average_means)
    assert (failed.tier, failed.verdict, failed.culprit) == ("T2", Verdict.INFERIOR, "loss")
    assert failed.numbers["relative difference"] > 1e-4


def test_anchors_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_island(miniature: Miniature) -> None:
        from dubsar.models import detector

        def in_the_dtype_of_features(tensor: torch.Tensor) -> torch.Tensor:
            return tensor

        monkeypatch.setattr(detector, "at_least_float32", in_the_dtype_of_features)

    failed = failure("detect", {"precision": "bf16"}, no_island)
    assert (failed.tier, failed.verdict, failed.culprit) == ("T3", Verdict.INFERIOR, "anchor points")
    assert failed.numbers["error ratio"] > 10


def test_an_optimizer_that_is_not_fused_although_asked() -> None:
    def plain(miniature: Miniature) -> None:
        system = miniature.system
        system.configure_optimizers = lambda: build_optimizer(system.network, system.config.optim, 8)

    failed = failure("classify", {"fused_optimizer": True}, plain)
    assert (failed.tier, failed.verdict, failed.culprit) == ("T0", Verdict.NOT_ENGAGED, "fused_optimizer")
    assert "0 of 2 parameter groups are fused" in failed.what


def test_an_average_kept_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    class InBfloat16(Average):
        def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
            super().setup(trainer, pl_module, stage)
            self._average_model.to(torch.bfloat16)

    monkeypatch.setattr("dubsar.pipelines.training.Average", InBfloat16)
    failed = failure("classify", {"ema": {"decay": 0.9}})
    assert (failed.tier, failed.verdict, failed.culprit) == ("T0", Verdict.NOT_ENGAGED, "ema")
    assert "bfloat16" in failed.what


def test_an_average_in_bfloat16_freezes_at_a_decay_of_0_9999() -> None:
    """Why the control above matters: an update below half a unit in the last place leaves the average as it was."""
    average, weight = torch.tensor(1.0), torch.tensor(1.5)
    for dtype, moves in ((torch.float32, True), (torch.bfloat16, False)):
        ema = average.to(dtype)
        for _ in range(1000):
            ema = ema.lerp(weight.to(dtype), 1e-4)
        assert bool(ema != average) == moves


def keep_channels_apart(miniature: Miniature) -> None:
    system, batch = miniature.system, miniature.stream.batch
    miniature.stream.batch = lambda n: tree_map(torch.Tensor.contiguous, batch(n))  # type: ignore[method-assign]
    system.network.to(memory_format=torch.contiguous_format)
    system.levers = {row.lever: row.resolved for row in miniature.levers.rows} | {"channels_last": False}


def keep_activations(miniature: Miniature) -> None:
    for block in repeated_blocks(miniature.system.network):
        del block.forward  # what the lever has put in front of the class's own


def pad_lines(miniature: Miniature) -> None:
    setattr(miniature.stream, "layout", "off")  # noqa: B010  only the stream of lines has a layout


@pytest.mark.parametrize(
    ("stage", "levers", "undo"),
    [
        ("classify", {"channels_last": True}, keep_channels_apart),
        ("transliterate", {"checkpointing": "full"}, keep_activations),
        ("transliterate", {"packing": "bucket"}, pad_lines),
    ],
    ids=["channels_last", "checkpointing", "packing"],
)
def test_a_lever_that_does_nothing(stage: str, levers: dict[str, Any], undo: Callable[[Miniature], None]) -> None:
    """They were resolved as asked for: only looking can tell."""
    failed = failure(stage, levers, undo)
    assert (failed.tier, failed.verdict, failed.culprit) == ("T0", Verdict.NOT_ENGAGED, *levers)


def test_a_gradient_that_differs_in_its_last_bits() -> None:

    def scale_one_gradient(miniature: Miniature) -> None:
        weight = miniature.system.network.get_parameter("encoder.block.1.layer.0.SelfAttention.q.weight")
        weight.register_hook(lambda gradient: gradient * (1 + 2**-20))

    failed = failure("transliterate", {"checkpointing": "full"}, scale_one_gradient)
    assert (failed.tier, failed.verdict) == ("T1", Verdict.INFERIOR)
    assert failed.culprit == "gradient of encoder.block.1.layer.0.SelfAttention.q.weight in step 1"


def test_a_reference_that_does_not_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from dubsar.pipelines.parity.exact import tiers

    record, arms = tiers._record, iter(range(10))

    def unsteady(stage: str, levers: Any, **options: Any) -> Any:
        found = record(stage, levers, **options)
        if options.get("hashed"):
            found.hashes[2]["loss"] += str(next(arms))
        return found

    monkeypatch.setattr(tiers, "_record", unsteady)
    monkeypatch.setattr(tiers, "_hashed", tiers._hashed.__wrapped__)
    failed = failure("classify", {"checkpointing": "full"})
    assert (failed.tier, failed.verdict, failed.culprit) == ("T1", Verdict.ENV_NONDETERMINISTIC, "loss in step 3")
