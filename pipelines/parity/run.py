"""What `dubsar parity` does: the cheap tiers first, and trainings only where they alone can settle the claim.

``full``: T0 to T3 on miniatures in seconds; a lever that fails one of them is named, and nothing is trained. Levers
that compute the same function (classes A and B) are settled there but for T4, a short horizon beside the reference's
reruns. All others are judged by their outcome (T5): paired trainings of both arms with the same seeds, scored on the same
tablets of dev against the margins that were declared before. A bundle that fails is taken apart (T6).

``two_epochs``: the first two epochs of both arms, loss curves side by side, dev after the first epoch at least equal,
and the ratio of speeds.
"""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import StageConfig
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.pipelines.doctor import EACH_ON
from dubsar.pipelines.launch import stage_module
from dubsar.pipelines.levers.resolve import Resolved, resolve_config
from dubsar.pipelines.levers.table import BY_NAME, LEVERS
from dubsar.pipelines.parity.arms import Arm, config_hash, train_arm, with_settings
from dubsar.pipelines.parity.attribute import who
from dubsar.pipelines.parity.outcomes import judge_metrics, stratify, throughput
from dubsar.pipelines.parity.result import Finding, ParityResult, Stratum, verdict_of
from dubsar.pipelines.parity.short_horizon import RERUNS, band, judge_curve, move_one_weight
from dubsar.pipelines.parity.statistics import Counts, Interval, Verdict, compare, worst
from dubsar.pipelines.parity.tallies import HIGHER_IS_BETTER, METRICS
from dubsar.pipelines.parity.tiers import run_cheap_tiers
from dubsar.pipelines.training import commit, hardware

PACKAGES = ("torch", "lightning", "timm", "transformers", "ultralytics-opencv-headless", "peft")


@dataclass(frozen=True)
class Plan:
    """What is compared, and how.

    Attributes:
        config: the stage's config; its efficiency block is the bundle.
        levers: what is asked of each lever of the candidate; the reference has all levers off.
        margins: the loss declared bearable, percentage points by metric.
        seeds: of the paired trainings.
        folder: where arms and reports go.
        attribution: most further comparisons to find out which lever of a failing bundle is at fault.
    """

    config: StageConfig
    levers: dict[str, Any]
    margins: dict[str, float]
    seeds: int
    folder: Path
    attribution: int = 12

    def arm(self, levers: Mapping[str, Any], seed: int = 0) -> StageConfig:
        """Return the config of an arm with these levers on and all others off."""
        efficiency = Efficiency.model_validate(dict(levers), strict=False)
        config = self.config.model_copy(update={"efficiency": efficiency})
        return with_settings(config, seed=self.config.trainer.seed + seed)

    def resolved(self) -> Resolved:
        """Return what the levers of the candidate become on this machine."""
        return resolve_config(self.arm(self.levers))

    def acting(self) -> dict[str, Any]:
        """Return what the levers that act become."""
        return {row.lever: row.resolved for row in self.resolved().rows if row.resolved != BY_NAME[row.lever].off}


def choose_levers(config: StageConfig, names: Sequence[str]) -> dict[str, Any]:
    """Return what is asked of each lever: the config's whole bundle, or the named ones.

    A named lever has the config's value, or where that is off the value that `dubsar doctor` asks for.

    Raises:
        ValueError: an unknown name, or a bundle with all levers off.
    """
    block = config.efficiency.model_dump()
    on = {lever.name: block[lever.name] for lever in LEVERS if block[lever.name] != lever.off}
    if not names:
        if not on:
            raise ValueError(
                "efficiency: all levers are off, so there is nothing to compare; give --levers or a config"
            )
        return on
    for name in names:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            raise ValueError(f"--levers: unknown lever {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return {name: on.get(name, EACH_ON[name]) for name in names}


def require_margins(stage: str, margins: Mapping[str, float]) -> None:
    """Refuse a comparison whose margins were not declared for every metric of the stage.

    Raises:
        ValueError: a metric without margin, a margin that is not above 0, or one for an unknown metric.
    """
    known = METRICS[stage]
    if unknown := sorted(set(margins) - set(known)):
        raise ValueError(f"--margin: {stage} has no metric {unknown[0]!r}, only {', '.join(known)}")
    for name in known:
        if name not in margins:
            raise ValueError(
                f"no margin for {name}: declare before the run what loss is bearable, as --margin {name}=0.5 "
                "(percentage points)"
            )
        if not margins[name] > 0:
            raise ValueError(f"--margin {name}={margins[name]:g}: expected a loss above 0 percentage points")


def needs_outcome(config: StageConfig, levers: Mapping[str, Any]) -> bool:
    """Say whether the levers change more than rounding, so that only trainings can tell what they cost.

    Another random draw (S) is none where the model draws nothing.
    """
    classes = {letter for name in levers for letter in BY_NAME[name].exactness}
    draws = any(getattr(config.model, name, 0) for name in ("dropout", "drop_rate", "drop_path_rate"))
    return bool(classes & ({"P", "M", "S"} if draws else {"P", "M"}))


def judge_levers(plan: Plan) -> ParityResult:
    """Judge the candidate of a plan, see the module.

    Raises:
        ValueError: a margin is missing, or data or config cannot be used.
    """
    require_outside_data(plan.folder, "--out")
    acting = plan.acting()
    outcome = needs_outcome(plan.config, acting)
    if outcome:
        require_margins(plan.config.stage, plan.margins)
    result = _empty(plan, "full")
    findings = _refused(plan) + (run_cheap_tiers(plan.config.stage, acting) if acting else [])
    if not acting:
        return dataclasses.replace(result, findings=findings, verdict=Verdict.NOT_ENGAGED)
    if any(not f.passed for f in findings):
        return dataclasses.replace(result, findings=findings, verdict=verdict_of(findings))
    prepared = stage_module(plan.config.stage).prepare(plan.config, data_root())
    result = dataclasses.replace(result, findings=findings)
    return _by_outcome(plan, acting, prepared, result) if outcome else _by_curve(plan, acting, prepared, result)


def _refused(plan: Plan) -> list[Finding]:
    """List the levers that cannot act here as they were asked to; what they became instead is judged."""
    return [
        Finding("T0", row.lever, None, f"refused: {row.asked!r} becomes {row.resolved!r}: {row.why}")
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


# --- T4 alone: the same function


def _by_curve(plan: Plan, acting: dict[str, Any], prepared: Any, result: ParityResult) -> ParityResult:
    def train(name: str, levers: Mapping[str, Any], change: Callable[[Any], None] | None = None) -> Arm:
        return train_arm(plan.arm(levers), name, plan.folder / "arms", prepared=prepared, score=False, change=change)

    arms = [train("reference", {}), train("candidate", acting)]
    moved = [
        train(f"reference-moved{n}", {}, lambda system, n=n: move_one_weight(system, n)) for n in range(1, RERUNS + 1)
    ]
    found = band([arm.curve.losses for arm in (arms[0], *moved)])
    finding = judge_curve("bundle" if len(acting) > 1 else next(iter(acting)), found, arms[1].curve.losses)
    findings = [*result.findings, finding]
    return dataclasses.replace(
        result,
        findings=findings,
        curves=[arm.curve for arm in arms],
        band=found.to_dict(),
        throughput=throughput(*([arm.curve.steps_per_second] for arm in arms)),
        hours=_hours(plan, [arms[0]], [arms[1]]),
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
        findings.append(judge_curve("bundle" if len(acting) > 1 else next(iter(acting)), found, mean.tolist()))
    verdict = worst([verdict_of([f for f in findings if f.verdict]), *(o.verdict for o in outcomes)])
    if verdict is Verdict.INFERIOR and len(acting) > 1:
        findings += _attribute(plan, acting, prepared)
    return dataclasses.replace(
        result,
        findings=findings,
        curves=curves,
        band=drawn,
        outcomes=outcomes,
        strata=_strata(plan.config.stage, references, candidates),
        throughput=throughput(*([a.curve.steps_per_second for a in arms] for arms in (references, candidates))),
        hours=_hours(plan, references, candidates),
        verdict=verdict,
    )


def train_pairs(plan: Plan, levers: Mapping[str, Any], prepared: Any) -> tuple[list[Arm], list[Arm]]:
    """Train reference and candidate seed by seed, so that what the machine does meanwhile meets both."""
    references: list[Arm] = []
    candidates: list[Arm] = []
    for seed in range(plan.seeds):
        for arms, name, asked in ((references, "reference", {}), (candidates, "candidate", levers)):
            arms.append(train_arm(plan.arm(asked, seed), name, plan.folder / "arms", prepared=prepared))
    return references, candidates


def compare_arms(stage: str, references: Sequence[Arm], candidates: Sequence[Arm]) -> dict[str, Interval]:
    """Compare the arms by metric over seeds and tablets."""
    return {
        metric: compare(
            _counts(references, metric), _counts(candidates, metric), higher_is_better=HIGHER_IS_BETTER[metric]
        )
        for metric in METRICS[stage]
    }


def _counts(arms: Sequence[Arm], metric: str, *, by_tablet: bool = True) -> Counts:
    tallies = [arm.tally for arm in arms if arm.tally]
    parts_SN, whole_N = np.stack([t.parts[metric] for t in tallies]), tallies[0].wholes[metric]
    if not by_tablet:
        return Counts(parts_SN, whole_N)
    _, place_N = np.unique(tallies[0].tablets_N, return_inverse=True)
    parts_ST = np.stack([np.bincount(place_N, part_N) for part_N in parts_SN])
    return Counts(parts_ST, np.bincount(place_N, whole_N).astype(float))


def _strata(stage: str, references: Sequence[Arm], candidates: Sequence[Arm]) -> list[Stratum]:
    tally = references[0].tally
    assert tally is not None
    return [
        row
        for metric in METRICS[stage]
        for row in stratify(
            metric,
            _counts(references, metric, by_tablet=False),
            _counts(candidates, metric, by_tablet=False),
            tally.strata,
            tablets=tally.tablets_N.tolist(),
            higher_is_better=HIGHER_IS_BETTER[metric],
        )
    ]


def _hours(plan: Plan, references: Sequence[Arm], candidates: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Return device hours of the config's whole schedule at the speeds that were measured."""
    devices = plan.config.trainer.devices * plan.config.trainer.num_nodes
    seconds = {
        name: plan.config.trainer.max_steps / float(np.mean([a.curve.steps_per_second for a in arms])) * devices
        for name, arms in (("reference", references), ("candidate", candidates))
    }
    return {name: {"hours": s / 3600, "provenance": "modelled from the speed measured here"} for name, s in seconds.items()}


# --- T6: who did it


def _attribute(plan: Plan, acting: dict[str, Any], prepared: Any) -> list[Finding]:
    def fails(levers: Mapping[str, Any]) -> bool | None:
        if not levers:
            return False
        intervals = compare_arms(plan.config.stage, *train_pairs(plan, levers, prepared))
        verdicts = [o.verdict for o in judge_metrics(intervals, plan.margins, HIGHER_IS_BETTER)]
        return None if Verdict.INCONCLUSIVE in verdicts else Verdict.INFERIOR in verdicts

    return who(acting, fails, budget=plan.attribution)
