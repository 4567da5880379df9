"""T0 to T3 for every lever and stage: what can act passes the tiers of its class, and the rest is refused."""

import pytest
import torch

from dubsar.configs.blocks import Efficiency
from dubsar.pipelines.levers.table import LEVERS, STAGES
from dubsar.pipelines.parity.exact.cases import CASES, Case
from dubsar.pipelines.parity.exact.miniature import build
from dubsar.pipelines.parity.exact.rounding import Rounded
from dubsar.pipelines.parity.exact.tiers import ROWS, run_cheap_tiers
from dubsar.pipelines.parity.result import Finding
from dubsar.pipelines.parity.statistics import Verdict

TIERS = {"B": ["T1"], "A": ["T2", "T3"], "A+S": ["T2", "T3"], "P": ["T3"], "M": []}
SETTLED = {"B": Verdict.EXACT, "A": Verdict.EQUIVALENT}
PROOFS = [(stage, case) for stage in sorted(STAGES) for case in CASES if stage in case.stages]


def test_every_lever_has_a_case() -> None:
    assert {case.lever for case in CASES} == {lever.name for lever in LEVERS}
    assert all(set(ROWS[case.lever].requires) <= set(case.levers) for case in CASES)
    for case in CASES:
        assert getattr(Efficiency.model_validate(case.levers, strict=False), case.lever) != ROWS[case.lever].off


def named(proof: tuple[str, Case]) -> str:
    return f"{proof[0]}-{proof[1].lever}-{proof[1].value}"


@pytest.mark.parametrize(("stage", "case"), PROOFS, ids=map(named, PROOFS))
def test_a_lever_passes_the_tiers_of_its_class_or_is_refused(stage: str, case: Case) -> None:
    found = [f for f in run_cheap_tiers(stage, case.levers) if f.lever == case.lever]
    if found[0].refused:
        assert [f.verdict for f in found] == [Verdict.NOT_ENGAGED]
        assert len(found[0].what) > 25
        return
    exactness = ROWS[case.lever].exactness
    assert [f.what for f in found if not f.passed] == []
    assert [f.tier for f in found] == ["T0", *TIERS[exactness]]
    assert found[-1].verdict == SETTLED.get(exactness)


def test_levers_together_are_seen_together_and_compared_as_a_bundle() -> None:
    levers = {"precision": "bf16", "fused_optimizer": True, "channels_last": True, "ema": {"decay": 0.9}, "liger": True}
    found = run_cheap_tiers("classify", levers)
    assert [f.lever for f in found if f.tier == "T0"] == list(levers)
    assert [f.lever for f in found if not f.passed] == ["liger"]
    assert _tiers(found, "fused_optimizer") == ["T0", "T2", "T3"]
    assert _tiers(found, "ema") == ["T0"]
    (bundle,) = [f for f in found if f.lever == "bundle"]
    assert (bundle.tier, bundle.verdict) == ("T3", None)  # it holds bf16: outcomes decide


def _tiers(found: list[Finding], lever: str) -> list[str]:
    return [f.tier for f in found if f.lever == lever]


def test_rounding_rounds_products_under_autocast_only_in_both_directions() -> None:
    exact, weight = torch.tensor([[1.0 + 2**-12]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    weight.requires_grad_()
    with Rounded(torch.bfloat16):
        outside = torch.nn.functional.linear(exact, weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = torch.nn.functional.linear(exact, weight)
            untouched = exact * exact
            with torch.autocast("cpu", enabled=False):
                island = exact @ weight
    assert (float(outside), float(island)) == (float(exact), float(exact))
    assert (float(inside), inside.dtype) == (1.0, torch.float64)
    assert float(untouched) == float(exact) ** 2
    (inside * exact).sum().backward()
    assert float(weight.grad) == 1.0  # the gradient 1 + 2 ** -12 was rounded on its way


def test_a_change_reaches_the_arm_of_the_levers_alone() -> None:
    changed = []
    run_cheap_tiers("classify", {"fused_optimizer": True}, change=changed.append)
    assert [m.levers["fused_optimizer"] for m in changed] == [True] * 3
    assert not build("classify", Efficiency()).levers["fused_optimizer"]
