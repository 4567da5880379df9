"""What `dubsar parity` does: the cheap tiers first, and trainings only where they alone can settle the claim.

``full``: T0 to T3 on miniatures in seconds; a lever that fails one of them is named, and nothing is trained. Levers
that compute the same function (classes A and B) are settled there but for T4, a short horizon beside the reference's
reruns. All others are judged by their outcome (T5): paired trainings of both arms with the same seeds, scored on the
same tablets of dev against the margins that were declared before. A bundle that fails is taken apart (T6).

``two_epochs``: the same trainings, but over the first two epochs, and the simple rule beside the verdict: dev after the
first epoch at least equal. It can fail a candidate, but prove nothing: where a lever costs just the margin, the rule
accepts it every other time.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.levers.table import BY_NAME
from dubsar.pipelines.parity.arms import NEVER, Arm, config_hash, train_arm, with_settings
from dubsar.pipelines.parity.attribute import who
from dubsar.pipelines.parity.exact.tiers import run_cheap_tiers
from dubsar.pipelines.parity.outcomes import judge_metrics, stratify
from dubsar.pipelines.parity.plan import Plan, needs_outcome, require_margins
from dubsar.pipelines.parity.report.write import write_reports
from dubsar.pipelines.parity.result import REFUSED, Finding, ParityResult, Stratum, verdict_of
from dubsar.pipelines.parity.short_horizon import RERUNS, band, judge_curve, move_one_weight
from dubsar.pipelines.parity.speeds import speeds
from dubsar.pipelines.parity.statistics import Counts, Interval, Verdict, compare, worst
from dubsar.pipelines.parity.tallies import HIGHER_IS_BETTER, METRICS, VALIDATED
from dubsar.pipelines.training import commit, hardware

PACKAGES = ("torch", "lightning", "timm", "transformers", "ultralytics-opencv-headless", "peft")
PRESETS = ("full", "two_epochs")


def parity(plan: Plan, *, preset: str = "full", fallback: str = "") -> ParityResult:
    """Judge the levers of a plan and write the reports into its folder.

    Args:
        plan: what is compared.
        preset: ``full`` or ``two_epochs``.
        fallback: ``fp32``: where a candidate in 16 bits is inferior, judge it again in float32, and say so.

    Raises:
        ValueError: a margin is missing, or data or config cannot be used.
    """
    result = judge(plan, preset)
    write_reports(result, plan.folder)
    sixteen = plan.levers.get("precision", "fp32")
    if result.verdict is not Verdict.INFERIOR or not fallback or sixteen == "fp32":
        return result
    write_reports(result, plan.folder / sixteen)
    again = dataclasses.replace(plan, levers={k: v for k, v in plan.levers.items() if k != "precision"})
    note = f"{sixteen} was INFERIOR (its report: {sixteen}/parity.html), so the candidate was judged again in float32"
    second = judge(again, preset)
    second = dataclasses.replace(second, notes=[note, *second.notes])
    write_reports(second, plan.folder)
    return second


def judge(plan: Plan, preset: str = "full") -> ParityResult:
    """Judge the levers of a plan, see the module.

    Raises:
        ValueError: a margin is missing, there is no such preset, or data or config cannot be used.
    """
    if preset not in PRESETS:
        raise ValueError(f"--preset is {preset!r}, expected one of {', '.join(PRESETS)}")
    require_outside_data(plan.folder, "--out")
    acting = plan.acting()
    outcome = preset == "two_epochs" or needs_outcome(plan.config, acting)
    if outcome:
        require_margins(plan.config.stage, plan.margins)
        if plan.seeds < 2:
            raise ValueError("--seeds is 1: one seed shows no spread; give at least two, better three")
    findings = _refused(plan) + (run_cheap_tiers(plan.config.stage, acting) if acting else [])
    result = dataclasses.replace(_empty(plan, preset), findings=findings)
    if not acting:
        return dataclasses.replace(result, verdict=Verdict.NOT_ENGAGED)
    if any(not f.passed for f in findings):
        return dataclasses.replace(result, verdict=verdict_of(findings))
    if not outcome and all(BY_NAME[name].exactness == "B" for name in acting):
        return dataclasses.replace(result, verdict=verdict_of(findings))  # equal to the bit: no training can differ
    prepared = stage_module(plan.config.stage).prepare(plan.config, data_root())
    if preset == "two_epochs":
        plan = _over_two_epochs(plan, prepared)
    return _by_outcome(plan, acting, prepared, result) if outcome else _by_curve(plan, acting, prepared, result)


def _over_two_epochs(plan: Plan, prepared: Any) -> Plan:
    config = plan.arm({})
    _, stream = stage_module(config.stage).build(config, resolve_config(config), prepared)
    epoch = stream.epoch_batches() // config.trainer.accumulate or 1
    return dataclasses.replace(
        plan, config=with_settings(plan.config, max_steps=2 * epoch, val_every_steps=epoch), validated=True
    )


def _refused(plan: Plan) -> list[Finding]:
    """List the levers that cannot act here as they were asked to; what they became instead is judged."""
    return [
        Finding("T0", row.lever, None, f"{REFUSED}: {row.asked!r} becomes {row.resolved!r}: {row.why}")
        for row in plan.resolved().rows
        if row.why
    ]


def _empty(plan: Plan, preset: str) -> ParityResult:
    return ParityResult(
        stage=plan.config.stage,
        levers=plan.levers,
        preset=preset,
        commit=commit(),
        hardware=hardware(),
        versions={name: version(name) for name in PACKAGES},
        configs={"reference": config_hash(plan.arm({})), "candidate": config_hash(plan.arm(plan.levers))},
        margins=dict(plan.margins),
        findings=[],
    )


def _subject(acting: Mapping[str, Any]) -> str:
    """Name what a training is judged for: its one lever, or the bundle."""
    return "bundle" if len(acting) > 1 else next(iter(acting))


# --- T4 alone: the same function


def _by_curve(plan: Plan, acting: dict[str, Any], prepared: Any, result: ParityResult) -> ParityResult:
    def train(name: str, levers: Mapping[str, Any], change: Callable[[Any], None] | None = None) -> Arm:
        config = with_settings(plan.arm(levers), val_every_steps=NEVER)
        return train_arm(config, name, plan.folder / "arms", prepared=prepared, score=False, change=change)

    arms = [train("reference", {}), train("candidate", acting)]
    moved = [train(f"reference-moved{n}", {}, functools.partial(move_one_weight, n)) for n in range(1, RERUNS + 1)]
    found = band([arm.curve.losses for arm in (arms[0], *moved)])
    finding = judge_curve(_subject(acting), found, arms[1].curve.losses)
    if finding.passed:
        finding = dataclasses.replace(finding, verdict=Verdict.EQUIVALENT)
    findings = [*result.findings, finding]
    ratio, hours = speeds(plan, acting, prepared, arms[:1], arms[1:])
    return dataclasses.replace(
        result,
        findings=findings,
        curves=[arm.curve for arm in arms],
        band=found.to_dict(),
        throughput=ratio,
        hours=hours,
        verdict=verdict_of(findings),
    )


# --- T5: the outcome


def _by_outcome(plan: Plan, acting: dict[str, Any], prepared: Any, result: ParityResult) -> ParityResult:
    references, candidates = train_pairs(plan, acting, prepared)
    intervals = compare_arms(plan.config.stage, references, candidates)
    outcomes = judge_metrics(intervals, plan.margins, HIGHER_IS_BETTER)
    findings = list(result.findings)
    curves = [arm.curve for arm in (*references, *candidates)]
    drawn: dict[str, list[float]] = {}
    if plan.seeds >= 3:
        found = band([arm.curve.losses for arm in references])
        drawn = found.to_dict()
        mean = np.mean([arm.curve.losses for arm in candidates], axis=0)
        findings.append(judge_curve(_subject(acting), found, mean.tolist()))
    if plan.validated:
        findings.append(_simple_rule(plan.config.stage, _subject(acting), references, candidates))
    verdict = worst([*(f.verdict for f in findings if f.verdict), *(o.verdict for o in outcomes)])
    if verdict is Verdict.INFERIOR and len(acting) > 1:
        findings += _attribute(plan, acting, prepared)
    ratio, hours = speeds(plan, acting, prepared, references, candidates)
    return dataclasses.replace(
        result,
        findings=findings,
        curves=curves,
        band=drawn,
        outcomes=outcomes,
        strata=compare_strata(plan.config.stage, references, candidates),
        throughput=ratio,
        hours=hours,
        verdict=verdict,
    )


def train_pairs(plan: Plan, levers: Mapping[str, Any], prepared: Any) -> tuple[list[Arm], list[Arm]]:
    """Train reference and candidate seed by seed, so that what the machine does meanwhile meets both."""
    references: list[Arm] = []
    candidates: list[Arm] = []
    for seed in range(plan.seeds):
        for arms, name, asked in ((references, "reference", {}), (candidates, "candidate", levers)):
            every = plan.config.trainer.val_every_steps if plan.validated else NEVER
            config = with_settings(plan.arm(asked, seed), val_every_steps=every)
            arms.append(train_arm(config, name, plan.folder / "arms", prepared=prepared))
    return references, candidates


def _simple_rule(stage: str, lever: str, references: Sequence[Arm], candidates: Sequence[Arm]) -> Finding:
    """Say whether dev after the first epoch is at least equal, mean over seeds."""
    name, higher = VALIDATED[stage]
    before, after = (float(np.mean([arm.validations[0][name] for arm in arms])) for arms in (references, candidates))
    worse = (after < before) if higher else (after > before)
    what = f"{name} after the first epoch: {before:.2f} without, {after:.2f} with the levers"
    rule = {"reference": before, "candidate": after}
    return Finding("T4", lever, Verdict.INFERIOR if worse else None, what, name if worse else "", rule)


def compare_arms(
    stage: str, references: Sequence[Arm], candidates: Sequence[Arm], *, finished: bool = False
) -> dict[str, Interval]:
    """Compare the arms by metric over seeds and tablets, or over tablets alone where each is one finished network."""
    return {
        metric: compare(
            count_arms(references, metric),
            count_arms(candidates, metric),
            higher_is_better=HIGHER_IS_BETTER[metric],
            finished=finished,
        )
        for metric in METRICS[stage]
    }


def count_arms(arms: Sequence[Arm], metric: str, *, by_tablet: bool = True) -> Counts:
    """Count what scored arms gave for a metric, by seed and tablet, or by seed and item."""
    tallies = [arm.tally for arm in arms if arm.tally]
    parts_SN, whole_N = np.stack([t.parts[metric] for t in tallies]), tallies[0].wholes[metric]
    if not by_tablet:
        return Counts(parts_SN, whole_N)
    return Counts.of_items(parts_SN, whole_N, tallies[0].tablets_N)


def compare_strata(stage: str, references: Sequence[Arm], candidates: Sequence[Arm]) -> list[Stratum]:
    """Compare the arms within groups of items."""
    tally = references[0].tally
    assert tally is not None
    return [
        row
        for metric in METRICS[stage]
        for row in stratify(
            metric,
            count_arms(references, metric, by_tablet=False),
            count_arms(candidates, metric, by_tablet=False),
            tally.strata,
            tablets=tally.tablets_N.tolist(),
            higher_is_better=HIGHER_IS_BETTER[metric],
        )
    ]


# --- T6: who did it


def _attribute(plan: Plan, acting: dict[str, Any], prepared: Any) -> list[Finding]:
    def fails(levers: Mapping[str, Any]) -> bool | None:
        if not levers:
            return False
        intervals = compare_arms(plan.config.stage, *train_pairs(plan, levers, prepared))
        verdicts = [o.verdict for o in judge_metrics(intervals, plan.margins, HIGHER_IS_BETTER)]
        return None if Verdict.INCONCLUSIVE in verdicts else Verdict.INFERIOR in verdicts

    return who(acting, fails, budget=plan.attribution)
