"""`dubsar parity` from config to reports on a few real lines: trainings are paired, used again, and judged."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dubsar.configs.base import load
from dubsar.configs.schema import TransliterateConfig
from dubsar.datasets.sources import data_root as default_root
from dubsar.pipelines.cli import app
from dubsar.pipelines.parity import run as run_module
from dubsar.pipelines.parity.arms import Arm
from dubsar.pipelines.parity.plan import Plan
from dubsar.pipelines.parity.result import Curve, ParityResult
from dubsar.pipelines.parity.run import compare_arms, parity, train_pairs
from dubsar.pipelines.parity.statistics import Verdict
from dubsar.pipelines.parity.tallies import Tally
from dubsar.pipelines.stages import transliterate

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug" / "transliterate.yaml"
FEW = ("data.sources=[hittite]", "data.limit=40", "data.val_lines=2", "trainer.max_steps=12")
MARGINS = {"cer": 1e6, "ser": 1e6}

pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _data(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(data_root))


def plan(folder: Path, levers: dict[str, Any], margins: dict[str, float], *overrides: str, seeds: int = 2) -> Plan:
    return Plan(load(DEBUG, TransliterateConfig, (*FEW, *overrides)), levers, margins, seeds, folder)


def test_a_change_of_precision_is_judged_by_its_outcome_and_a_second_run_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = plan(tmp_path / "p", {"precision": "bf16"}, MARGINS)
    result = parity(wanted)
    assert capsys.readouterr().out.count("starts") == 4
    assert {(c.arm, c.seed) for c in result.curves} == {(a, s) for a in ("reference", "candidate") for s in (0, 1)}
    assert all(len(c.losses) == 12 and c.steps_per_second > 0 for c in result.curves)
    assert result.verdict in {Verdict.EQUIVALENT, Verdict.NON_INFERIOR}  # nobody can lose so much
    assert [o.metric for o in result.outcomes] == ["cer", "ser"]
    assert {s.name for s in result.strata} == {"hittite", "lines under 10 signs", "lines of 10 signs or more"}
    assert {f.tier for f in result.findings} >= {"T0", "T3"}
    assert result.throughput is not None
    names = {p.name for p in wanted.folder.iterdir()}
    assert names == {"arms", "parity.json", "parity.md", "parity.html", "parity.xml"}
    assert not list(wanted.folder.rglob("*.ckpt"))
    stored = ParityResult.from_dict(json.loads((wanted.folder / "parity.json").read_text()))
    again = parity(wanted)
    assert "starts" not in capsys.readouterr().out
    assert again.outcomes == result.outcomes == stored.outcomes


def test_the_same_function_is_judged_by_its_first_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = parity(plan(tmp_path / "p", {"packing": "pack"}, {}))
    assert result.verdict is Verdict.EQUIVALENT
    assert [f.tier for f in result.findings][-1] == "T4"
    assert len(result.band["low"]) == len(result.band["high"]) > 1
    assert result.outcomes == []
    assert capsys.readouterr().out.count("starts") == 7  # both arms, and five reruns with one weight moved


def test_what_is_equal_to_the_bit_needs_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = parity(plan(tmp_path / "p", {"checkpointing": "full"}, {}))
    assert result.verdict is Verdict.EXACT
    assert [f.tier for f in result.findings] == ["T0", "T1"]
    assert "starts" not in capsys.readouterr().out


def test_two_epochs_validate_on_the_way_and_tell_the_simple_rule(tmp_path: Path) -> None:
    result = parity(plan(tmp_path / "p", {"fused_optimizer": True}, MARGINS), preset="two_epochs")
    rule = next(f for f in result.findings if "val/cer after the first epoch" in f.what)
    steps = {c.steps[-1] for c in result.curves}
    assert len(steps) == 1
    assert steps.pop() % 2 == 0
    assert (rule.verdict is Verdict.INFERIOR) == (rule.numbers["candidate"] > rule.numbers["reference"])


def test_an_inferior_candidate_in_16_bits_is_judged_again_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def judge(one: Plan, preset: str) -> ParityResult:
        judged.append(one.levers)
        verdict = Verdict.INFERIOR if "precision" in one.levers else Verdict.EXACT
        return dataclasses.replace(run_module._empty(one, preset), verdict=verdict)

    monkeypatch.setattr(run_module, "judge", judge)
    levers = {"precision": "bf16", "packing": "pack"}
    assert parity(plan(tmp_path / "kept", levers, {})).verdict is Verdict.INFERIOR
    result = parity(plan(tmp_path / "p", levers, {}), fallback="fp32")
    assert judged[1:] == [levers, {"packing": "pack"}]
    assert result.verdict is Verdict.EXACT
    assert result.notes[0].startswith("bf16 was INFERIOR")
    assert (tmp_path / "p" / "bf16" / "parity.json").exists()


def test_a_bundle_that_is_inferior_is_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings are made up: with ema every tablet has ten errors more."""
    asked: list[frozenset[str]] = []

    def arm(name: str, seed: int, errors: float) -> Arm:
        rng = np.random.default_rng(seed)
        parts = {m: errors + rng.normal(0, 0.5, 30) for m in ("cer", "ser")}
        tally = Tally(np.array([f"T{n}" for n in range(30)]), parts, {m: np.full(30, 100.0) for m in parts}, {})
        curve = Curve(name, seed, list(range(40)), [3.0 + 0.1 * seed] * 40, 1.0, {}, "commit", "CPU")
        return Arm(curve, tally, [])

    def pairs(one: Plan, levers: dict[str, Any], _: Any) -> tuple[list[Arm], list[Arm]]:
        asked.append(frozenset(levers))
        after = 30.0 if "ema" in levers else 20.0
        seeds = range(one.seeds)
        return [arm("reference", s, 20.0) for s in seeds], [arm("candidate", s, after) for s in seeds]

    monkeypatch.setattr(run_module, "train_pairs", pairs)
    monkeypatch.setattr(run_module, "run_cheap_tiers", lambda *_: [])
    levers = {"precision": "bf16", "ema": {"decay": 0.9}, "fused_optimizer": True}
    result = parity(plan(tmp_path / "p", levers, {"cer": 1.0, "ser": 1.0}, seeds=3))
    assert result.verdict is Verdict.INFERIOR
    assert [o.verdict for o in result.outcomes] == [Verdict.INFERIOR] * 2
    assert "ema" in [f.culprit for f in result.findings if f.tier == "T6"]
    assert asked[0] == frozenset(levers)
    assert frozenset({"ema"}) in asked


def test_arms_are_compared_tablet_by_tablet(tmp_path: Path) -> None:
    wanted = plan(tmp_path, {"fused_optimizer": True}, {})
    prepared = transliterate.prepare(wanted.config, default_root())
    references, candidates = train_pairs(wanted, wanted.levers, prepared)
    (tally, *_) = [arm.tally for arm in references]
    assert tally is not None
    assert Tally.from_dict(json.loads(json.dumps(tally.to_dict()))).percent == tally.percent
    assert {t.split("/")[0] for t in tally.tablets_N} == {"hittite"}
    interval = compare_arms("transliterate", references, candidates)["cer"]
    before, after = (np.mean([a.curve.scores["cer"] for a in arms]) for arms in (references, candidates))
    assert interval.mean == pytest.approx(before - after)  # an error rate: less is better


def test_the_command_refuses_before_it_trains_and_exits_by_verdict(tmp_path: Path) -> None:
    command = ["parity", "transliterate", "--config", str(DEBUG), "-o", str(tmp_path / "p"), *FEW]
    for options, message in (
        (["--levers", "precision"], "no margin for cer"),
        (["--levers", "precision", "--bundle"], "--bundle and --levers exclude one another"),
        (
            ["--levers", "precision", "--margin", "cer=1", "--margin", "ser=1", "--seeds", "1"],
            "one seed shows no spread",
        ),
        ([], "all levers are off"),
    ):
        outcome = CliRunner().invoke(app, [*command, *options])
        assert message in str(outcome.exception)
        assert not (tmp_path / "p").exists()
    nothing = CliRunner().invoke(app, [*command, "--levers", "liger"])
    assert nothing.exit_code == 12
    assert "NOT_ENGAGED" in nothing.output
