"""Who of a bundle is at fault: single culprits, levers that fail only together, hidden faults, and the budget."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dubsar.pipelines.parity.attribute import minimal_failing, who
from dubsar.pipelines.parity.result import Finding
from dubsar.pipelines.parity.statistics import Verdict

LEVERS: dict[str, Any] = {
    "precision": "bf16",
    "compile": "full",
    "attention": "sdpa",
    "fused_optimizer": True,
    "packing": "pack",
    "ema": {"decay": 0.999},
    "dora": {"rank": 4},
    "channels_last": True,
}


class Bench:
    """Fails where all levers of one of the culprit sets are on; remembers what it was asked."""

    def __init__(self, *culprits: set[str]) -> None:
        self.culprits = culprits
        self.asked: list[frozenset[str]] = []

    def __call__(self, levers: Mapping[str, Any]) -> bool | None:
        self.asked.append(frozenset(levers))
        assert all(levers[n] == LEVERS[n] for n in levers), "values travel with the names"
        return any(c <= set(levers) for c in self.culprits)


def blamed(findings: list[Finding]) -> list[set[str]]:
    """The minimal failing sets that a report names."""
    return [set(f.culprit.split(" + ")) for f in findings if f.lever == "bundle" and f.verdict is Verdict.INFERIOR]


@pytest.mark.parametrize("culprit", LEVERS)
def test_a_single_culprit_is_found_and_no_other(culprit: str) -> None:
    bench = Bench({culprit})
    findings = who(LEVERS, bench)
    assert blamed(findings) == [{culprit}]
    assert [f.lever for f in findings if f.lever != "bundle"] == [culprit], "leave-one-out names it alone"
    assert {f.tier for f in findings} == {"T6"}


@pytest.mark.parametrize("pair", combinations(LEVERS, 2))
def test_levers_that_fail_only_together_are_found_as_a_pair(pair: tuple[str, str]) -> None:
    findings = who(LEVERS, Bench(set(pair)))
    assert blamed(findings) == [set(pair)]
    assert {f.lever for f in findings if f.lever != "bundle"} == set(pair)
    assert any("fail together" in f.what for f in findings)


def test_no_set_is_run_twice() -> None:
    bench = Bench({"compile", "dora"})
    who(LEVERS, bench)
    assert len(bench.asked) == len(set(bench.asked))


def test_two_faults_of_their_own_are_both_found_though_leave_one_out_sees_neither() -> None:
    findings = who(LEVERS, Bench({"packing"}, {"ema", "dora"}))
    assert blamed(findings) == [{"packing"}, {"ema", "dora"}]
    assert [f for f in findings if f.lever != "bundle"] == []


def test_three_that_must_meet() -> None:
    assert blamed(who(LEVERS, Bench({"precision", "packing", "channels_last"}))) == [
        {"precision", "packing", "channels_last"}
    ]


def test_a_bundle_of_one() -> None:
    bench = Bench({"ema"})
    assert blamed(who({"ema": LEVERS["ema"]}, bench)) == [{"ema"}]
    assert bench.asked == [frozenset({"ema"}), frozenset()]


def test_a_failure_that_does_not_come_back_blames_no_lever() -> None:
    (only,) = who(LEVERS, Bench())
    assert only.verdict is Verdict.INCONCLUSIVE
    assert "run again, the bundle passed" in only.what
    assert only.culprit == ""
    (undecided,) = who(LEVERS, lambda _: None)
    assert "could not be decided" in undecided.what


def test_a_failure_with_all_levers_off_is_the_machines() -> None:
    (only,) = who(LEVERS, Bench(set()))
    assert only.verdict is Verdict.ENV_NONDETERMINISTIC


@pytest.mark.parametrize("budget", [0, 1, 3, 6, 10, 12])
def test_the_budget_is_kept_and_its_end_said(budget: int) -> None:
    bench = Bench({"precision", "channels_last"}, {"ema"})
    findings = who(LEVERS, bench, budget=budget)
    assert len(bench.asked) <= budget
    (last,) = [f for f in findings if "budget" in f.what]
    assert last.verdict is Verdict.INCONCLUSIVE
    assert f"budget of {budget} runs is spent" in last.what
    assert any(c <= set(last.culprit.split(" + ")) for c in bench.culprits), "what it names holds a culprit"


def test_a_suspicion_is_kept_and_looked_at_first() -> None:
    def alone(name: str, value: Any) -> Finding:
        assert value == LEVERS[name]
        return Finding("T3", name, Verdict.INFERIOR if name == "dora" else None, "error ratio", "layer 3")

    plain, told = Bench({"dora"}), Bench({"dora"})
    assert blamed(who(LEVERS, plain)) == [{"dora"}]
    findings = who(LEVERS, told, alone=alone)
    assert [(f.tier, f.lever) for f in findings[:2]] == [("T3", "dora"), ("T6", "dora")]
    assert blamed(findings) == [{"dora"}]
    assert len(told.asked) < len(plain.asked)


def test_a_fault_that_another_lever_hides_is_told() -> None:
    def fails(levers: Mapping[str, Any]) -> bool:
        on = set(levers)
        # ema hides what compile does, unless packing is there as well
        return "compile" in on and ("ema" not in on or "packing" in on)

    findings = who(LEVERS, fails)
    (hidden,) = [f for f in findings if "not monotone" in f.what]
    assert hidden.culprit == "ema"
    assert blamed(findings)[0] == {"compile"}
    assert not any("not monotone" in f.what for f in who(LEVERS, Bench({"compile"})))


def test_what_could_not_be_decided_clears_nobody() -> None:
    def fails(levers: Mapping[str, Any]) -> bool | None:
        return None if len(levers) == 1 else bool(levers)

    findings = who({n: LEVERS[n] for n in ("ema", "dora")}, fails)
    assert [(f.lever, f.verdict) for f in findings] == [
        ("ema", Verdict.INCONCLUSIVE),
        ("dora", Verdict.INCONCLUSIVE),
        ("bundle", Verdict.INFERIOR),
    ]
    assert "some smaller set could not be decided" in findings[-1].what


def test_ddmin_gives_a_minimal_set_for_any_fault() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        names = [f"lever{k}" for k in range(int(rng.integers(1, 12)))]
        needed = set(rng.choice(names, int(rng.integers(1, len(names) + 1)), replace=False))
        asked = []
        fails: Callable[[Any], bool] = lambda part, n=needed, a=asked: a.append(part) or n <= set(part)  # type: ignore[misc,func-returns-value,assignment] # noqa: E731
        assert set(minimal_failing(names, fails)) == needed
        assert len(asked) <= len(names) ** 2 + 3 * len(names), "the bound of the paper"
