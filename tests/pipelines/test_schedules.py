"""Schedules by the step, and learning rates by depth on timm's own names."""

import re
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

from dubsar.pipelines.schedules import cosine, growing_side, layer_rates, linear


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


def test_crops_grow_in_steps_of_8_px_and_the_last_quarter_has_them_whole() -> None:
    side = growing_side(32, 60, 100)
    sides = [side(step) for step in range(100)]
    assert (sides[0], sides[74], sides[75], sides[99]) == (32, 56, 60, 60)
    assert sorted(set(sides)) == [32, 40, 48, 56, 60]
    assert sides == sorted(sides)
    assert {growing_side(48, 48, 100)(step) for step in range(100)} == {48}
    assert growing_side(8, 16, 1)(0) == 8


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


SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_dinov3_qkvb": {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 2},
    "vit_tiny_patch16_224": {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 2},
    "convnext_atto": {"depths": (1, 2, 1, 1), "dims": (8, 8, 16, 16)},
    "resnet18": {"channels": (8, 8, 16, 16)},
    "efficientnet_lite0": {},
    "mobilenetv4_conv_small": {},
    "swin_tiny_patch4_window7_224": {"img_size": 32, "window_size": 2, "embed_dim": 16, "depths": (1, 1, 2, 1)},
}
# layers between embedding and head, what an embedding's name begins with, and where a layer's number stands
LAYERS = {
    "vit_tiny_patch16_dinov3_qkvb": (3, ("cls_token", "reg_token", "patch_embed"), r"blocks\.(\d+)\."),
    "vit_tiny_patch16_224": (3, ("cls_token", "pos_embed", "patch_embed"), r"blocks\.(\d+)\."),
    "convnext_atto": (4, ("stem",), r"stages\.(\d+)\."),
    "resnet18": (4, ("conv1", "bn1"), r"layer(\d+)\."),
    "efficientnet_lite0": (7, ("conv_stem", "bn1"), r"blocks\.(\d+)\."),
    "mobilenetv4_conv_small": (5, ("conv_stem", "bn1"), r"blocks\.(\d+)\."),
    "swin_tiny_patch4_window7_224": (4, ("patch_embed",), r"layers\.(\d+)\."),
}
BEHIND = {"norm", "head", "fc", "fc_norm", "conv_head", "bn2", "norm_head", "classifier"}


def small(backbone: str, classes: int = 3) -> Any:
    return timm.create_model(backbone, num_classes=classes, **SMALL[backbone])


@pytest.mark.parametrize("backbone", SMALL)
def test_a_network_learns_less_the_deeper_below_the_output(backbone: str) -> None:
    net = small(backbone)
    rates = layer_rates(net, net, 0.5)
    assert list(rates) == [name for name, _ in net.named_parameters()]
    count, embedding, number = LAYERS[backbone]
    first = min(int(found[1]) for name in rates if (found := re.match(number, name)))
    wanted = {}
    for name in rates:
        if name.startswith(embedding):
            layer = 0
        elif found := re.match(number, name):
            layer = int(found[1]) - first + 1
        else:
            assert name.split(".")[0] in BEHIND
            layer = count + 1
        wanted[name] = 0.5 ** (count + 1 - layer)
    assert rates == wanted
    assert len(set(rates.values())) == count + 2


def test_what_stands_around_the_network_keeps_the_full_rate_but_for_the_mask_token() -> None:
    net = small("convnext_atto", 0)
    around = nn.Module()
    around.encoder, around.head = nn.Module(), nn.Linear(2, 2)
    around.encoder.net = net
    around.encoder.mask_token = nn.Parameter(torch.zeros(8))
    rates = layer_rates(around, net, 0.5)
    inner = layer_rates(net, net, 0.5)
    assert {name: rates.pop(f"encoder.net.{name}") for name in inner} == inner
    assert rates == {"encoder.mask_token": 0.5**5, "head.weight": 1.0, "head.bias": 1.0}


def test_no_decay_is_one_rate_and_asks_nothing_of_the_network() -> None:
    net = nn.Linear(2, 2)
    assert layer_rates(net, net, 1.0) == {"weight": 1.0, "bias": 1.0}
    with pytest.raises(ValueError, match=r"model\.layer_decay: timm does not tell the layers of a Linear; set it to 1"):
        layer_rates(net, net, 0.9)
