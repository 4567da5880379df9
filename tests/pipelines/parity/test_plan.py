"""What a comparison compares: which levers, with which margins, and whether trainings are needed."""

from pathlib import Path
from typing import Any

import pytest

from dubsar.configs.base import load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import STAGES
from dubsar.pipelines.levers.table import LEVERS
from dubsar.pipelines.parity.plan import Plan, choose_levers, needs_outcome, parse_margins, require_margins
from dubsar.pipelines.parity.tallies import HIGHER_IS_BETTER, METRICS, TALLIES, VALIDATED

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug"


def config(stage: str, *overrides: str) -> Any:
    return load(DEBUG / f"{stage}.yaml", STAGES[stage], overrides)


def test_the_bundle_is_what_the_config_turns_on() -> None:
    on = config("classify", "efficiency.precision=bf16", "efficiency.ema={decay: 0.9}")
    assert choose_levers(on, []) == {"precision": "bf16", "ema": {"decay": 0.9}}
    with pytest.raises(ValueError, match="all levers are off, so there is nothing to compare"):
        choose_levers(config("classify"), [])


def test_a_named_lever_has_the_configs_value_or_the_doctors() -> None:
    on = config("transliterate", "efficiency.packing=pack")
    assert choose_levers(on, ["packing", "precision"]) == {"packing": "pack", "precision": "bf16"}
    with pytest.raises(ValueError, match=r"--levers: unknown lever 'paking' \(did you mean 'packing'\?\)"):
        choose_levers(on, ["paking"])
    for lever in LEVERS:
        (name,) = choose_levers(config("classify"), [lever.name])
        assert name == lever.name


def test_arms_differ_in_levers_and_seed_alone() -> None:
    plan = Plan(config("transliterate", "trainer.seed=3"), {"fused_optimizer": True}, {}, 2, Path("x"))
    reference, candidate = plan.arm({}, 1), plan.arm(plan.levers, 1)
    assert reference.efficiency == Efficiency()
    assert candidate.efficiency == Efficiency(fused_optimizer=True)
    assert reference.trainer.seed == candidate.trainer.seed == 4
    assert candidate.model_copy(update={"efficiency": Efficiency()}) == reference


def test_a_lever_that_cannot_act_is_judged_as_what_it_becomes() -> None:
    plan = Plan(config("transliterate"), {"attention": "flash", "liger": True}, {}, 2, Path("x"))
    assert plan.acting() == {"attention": "sdpa"}


def test_margins_are_declared_for_every_metric_before_the_run() -> None:
    assert parse_margins(["cer=0.2", "ser=1"]) == {"cer": 0.2, "ser": 1.0}
    require_margins("transliterate", {"cer": 0.2, "ser": 1.0})
    for margins, message in (
        ({"cer": 0.2}, "no margin for ser: declare before the run"),
        ({"cer": 0.2, "ser": 0.0}, r"--margin ser=0: expected a loss above 0 percentage points"),
        ({"cer": 0.2, "ser": 1.0, "wer": 1.0}, "transliterate has no metric 'wer', only cer, ser"),
    ):
        with pytest.raises(ValueError, match=message):
            require_margins("transliterate", margins)
    for text in ("cer", "cer=", "cer=x"):
        with pytest.raises(ValueError, match=f"--margin {text}: expected a metric and percentage points"):
            parse_margins([text])


@pytest.mark.parametrize(
    ("stage", "levers", "needed"),
    [
        ("transliterate", {"packing": "pack", "attention": "sdpa"}, False),
        ("transliterate", {"checkpointing": "full"}, False),
        ("transliterate", {"precision": "bf16"}, True),
        ("classify", {"ema": {"decay": 0.9}, "fused_optimizer": True}, True),
    ],
)
def test_trainings_are_needed_where_more_than_rounding_changes(stage: str, levers: Any, needed: bool) -> None:
    assert needs_outcome(config(stage), levers) is needed


def test_packing_draws_other_dropout_where_there_is_any() -> None:
    assert needs_outcome(config("transliterate", "model.dropout=0.1"), {"packing": "pack"})


def test_every_stage_is_counted_by_metrics_of_known_direction() -> None:
    assert set(TALLIES) == set(METRICS) == set(VALIDATED) == set(STAGES)
    assert {m for metrics in METRICS.values() for m in metrics} == set(HIGHER_IS_BETTER)
