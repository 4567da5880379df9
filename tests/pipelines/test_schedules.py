"""Schedules by the step, and learning rates by depth on timm's own names."""

import itertools

import numpy as np
import pytest
import timm

from dubsar.pipelines.schedules import cosine, layer_rates, linear


def test_a_cosine_falls_from_start_to_end_and_stays() -> None:
    schedule = cosine(1.0, 0.2, 100)
    values = [schedule(step) for step in range(130)]
    wanted = 0.2 + 0.8 * (1 + np.cos(np.pi * np.minimum(np.arange(130), 100) / 100)) / 2
    np.testing.assert_allclose(values, wanted, rtol=1e-12)
    assert (values[0], values[50], values[100], values[129]) == (1.0, pytest.approx(0.6), 0.2, 0.2)


def test_a_cosine_may_rise_as_the_teacher_s_momentum_does() -> None:
    schedule = cosine(0.99, 1.0, 10)
    values = [schedule(step) for step in range(11)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (0.99, 1.0)


def test_freeze_then_warm_up_then_cosine() -> None:
    schedule = cosine(1.0, 0.0, 12, warmup=4, warmup_start=0.2, freeze=2)
    assert [schedule(step) for step in range(2)] == [0.0, 0.0]
    assert [schedule(step) for step in range(2, 6)] == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert [schedule(step) for step in (6, 9, 12)] == pytest.approx([1.0, 0.5, 0.0])


def test_a_warm_up_from_nought_wastes_no_step() -> None:
    schedule = cosine(1.0, 0.0, 10, warmup=5)
    assert [schedule(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_start_equal_to_end_is_a_warm_up_to_a_constant() -> None:
    schedule = cosine(0.5, 0.5, 10, warmup=2)
    assert [schedule(step) for step in range(12)] == pytest.approx([0.25, *[0.5] * 11])


@pytest.mark.parametrize(("steps", "warmup", "freeze"), [(5, 5, 0), (5, 0, 5), (5, 2, 3), (0, 0, 0)])
def test_a_schedule_may_end_with_its_warm_up(steps: int, warmup: int, freeze: int) -> None:
    schedule = cosine(1.0, 0.3, steps, warmup=warmup, freeze=freeze)
    values = [schedule(step) for step in range(steps + 3)]
    assert values[steps:] == [0.3] * 3
    assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize(("warmup", "freeze"), [(11, 0), (6, 5), (-1, 0), (0, -1)])
def test_what_does_not_fit_into_the_steps_is_refused(warmup: int, freeze: int) -> None:
    with pytest.raises(ValueError, match=f"freeze {freeze} and warmup {warmup} do not fit into 10 steps"):
        cosine(1.0, 0.0, 10, warmup=warmup, freeze=freeze)


def test_a_line_goes_straight_and_stays() -> None:
    schedule = linear(0.04, 0.07, 3)
    assert [schedule(step) for step in range(6)] == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.07, 0.07])
    assert linear(0.04, 0.07, 0)(0) == 0.07


def test_a_schedule_does_not_remember() -> None:
    schedule = cosine(1.0, 0.0, 20, warmup=3)
    forwards = [schedule(step) for step in range(20)]
    assert [schedule(step) for step in reversed(range(20))] == forwards[::-1]


def names(backbone: str, **options: object) -> list[str]:
    model = timm.create_model(backbone, num_classes=0, **options)
    return [name for name, _ in model.named_parameters()]


def test_a_vit_learns_less_the_deeper_below_the_output() -> None:
    found = names("vit_tiny_patch16_dinov3_qkvb", embed_dim=32, depth=3, num_heads=2)
    rates = layer_rates([*found, "mask_token"], 3, 0.5)
    assert list(rates) == [*found, "mask_token"]
    embedding = {name for name, rate in rates.items() if rate == 0.5**4}
    assert embedding == {"cls_token", "reg_token", "mask_token", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    for block in range(3):
        assert {rates[name] for name in found if name.startswith(f"blocks.{block}.")} == {0.5 ** (3 - block)}
    assert {name for name, rate in rates.items() if rate == 1} == {"norm.weight", "norm.bias"}


def test_a_convnext_learns_less_stage_by_stage() -> None:
    found = names("convnext_atto", depths=(1, 2, 1, 1), dims=(8, 8, 16, 16))
    rates = layer_rates(found, 4, 0.5)
    assert {name for name, rate in rates.items() if rate == 0.5**5} == {n for n in found if n.startswith("stem.")}
    for stage in range(4):
        assert {rates[name] for name in found if name.startswith(f"stages.{stage}.")} == {0.5 ** (4 - stage)}
    assert {name for name, rate in rates.items() if rate == 1} == {"head.norm.weight", "head.norm.bias"}


@pytest.mark.parametrize("prefix", ["", "encoder.net.", "student.encoder.net._orig_mod."])
def test_what_stands_before_timm_s_name_does_not_matter(prefix: str) -> None:
    found = [f"{prefix}{name}" for name in ("cls_token", "blocks.1.attn.qkv.weight", "stages.1.blocks.0.gamma", "norm")]
    assert list(layer_rates(found, 2, 0.5).values()) == [0.125, 0.5, 0.5, 1.0]


def test_heads_and_names_that_only_look_alike_keep_the_full_rate() -> None:
    found = ["cls_head.mlp.0.weight", "patch_head.prototypes.weight", "system.weight", "my_blocks.0.weight"]
    assert layer_rates(found, 12, 0.9) == dict.fromkeys(found, 1.0)


def test_no_decay_is_one_rate_and_deep_blocks_come_in_order() -> None:
    found = [f"blocks.{block}.norm1.weight" for block in range(12)]
    assert set(layer_rates(found, 12, 1.0).values()) == {1.0}
    rates = list(layer_rates(found, 12, 0.9).values())
    assert all(before < after for before, after in itertools.pairwise(rates))


def test_a_depth_that_the_names_exceed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks\.12\.norm1\.weight is in blocks 12, but depth is 12; give their num"):
        layer_rates(["blocks.12.norm1.weight"], 12, 0.9)
