"""T4: an equal method stays in the band of the reference's reruns, a wrong one leaves it; a weight moves by an ulp."""

import numpy as np
import pytest
import torch

from dubsar.pipelines.parity.short_horizon import (
    LEAST,
    RERUNS,
    WINDOWS,
    band,
    judge_curve,
    move_one_weight,
    window_means,
)
from dubsar.pipelines.parity.statistics import Verdict

STEPS = 300


def curve(seed: int, *, offset: float = 0.0, spread: float = 0.05) -> list[float]:
    """Draw a loss curve: the same descent, a run's own wander, noise by step."""
    rng = np.random.default_rng(seed)
    steps = np.arange(STEPS)
    wander = rng.normal(0, spread) * np.minimum(1, steps / 100)
    return list(2 + 3 * np.exp(-steps / 80) + wander + rng.normal(0, 0.1, STEPS) + offset)


def test_windows_average_equal_parts() -> None:
    assert window_means([1, 3, 5, 7], 2).tolist() == [2, 6]
    assert len(window_means(list(range(STEPS)))) == WINDOWS


def test_an_equal_method_stays_inside_as_often_as_the_band_promises() -> None:
    trials = 300
    out = 0
    for trial in range(trials):
        seeds = range(100 * trial, 100 * trial + RERUNS + 2)
        found = band([curve(s) for s in seeds[:-1]])
        out += judge_curve("bundle", found, curve(seeds[-1])).verdict is Verdict.INFERIOR
    assert out / trials <= 0.02  # nominal 1 %


@pytest.mark.parametrize("offset", [0.4, -0.4])
def test_a_method_that_differs_leaves_the_band_and_the_step_is_named(offset: float) -> None:
    found = band([curve(s) for s in range(RERUNS)])
    finding = judge_curve("packing", found, curve(99, offset=offset))
    assert (finding.tier, finding.lever, finding.verdict) == ("T4", "packing", Verdict.INFERIOR)
    assert finding.culprit == "loss from step 30 on"
    assert finding.numbers["off"] == pytest.approx(offset / 5, rel=0.5)


def test_a_loss_that_is_not_finite_never_stays_inside() -> None:
    found = band([curve(s) for s in range(RERUNS)])
    losses = curve(7)
    losses[200] = float("nan")
    assert judge_curve("bundle", found, losses).verdict is Verdict.INFERIOR


def test_reruns_that_hardly_differ_still_leave_a_thousandth_of_room() -> None:
    losses = curve(0)
    found = band([losses] * RERUNS)
    assert (found.high_W - found.low_W) / 2 == pytest.approx(LEAST * window_means(losses))
    assert judge_curve("bundle", found, [x * (1 + LEAST / 2) for x in losses]).passed
    assert not judge_curve("bundle", found, [x * (1 + 2 * LEAST) for x in losses]).passed
    assert list(found.to_dict()) == ["steps", "low", "high"]
    assert found.to_dict()["steps"][-1] == STEPS


def test_too_few_or_unequal_reruns_give_no_band() -> None:
    for reruns in ([curve(0)] * 2, [curve(0), curve(1), curve(2)[:-1]]):
        with pytest.raises(ValueError, match="expected 3 of one length"):
            band(reruns)


def test_exactly_one_weight_moves_to_the_next_number() -> None:
    moved = set()
    for number in range(1, RERUNS + 1):
        system = torch.nn.Module()
        torch.manual_seed(0)
        system.network = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 3))
        before = torch.cat([p.detach().flatten() for p in system.network.parameters()])
        move_one_weight(number, system)
        after = torch.cat([p.detach().flatten() for p in system.network.parameters()])
        (index,) = (before != after).nonzero().flatten().tolist()
        assert after[index] == torch.nextafter(before[index], torch.tensor(torch.inf))
        moved.add(index)
    assert len(moved) > 1
