"""The sections of a parity report: plain texts and tables, which Markdown, HTML and the terminal show alike.

Every verdict carries a sign and its name, so that colour is never the only sign. What is not proved is never shown as
passed: ``undecided`` (amber) stands for what could not be decided, ``failed`` (red) for what was decided against.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dubsar.pipelines.parity.result import Curve, Finding, Outcome, ParityResult
from dubsar.pipelines.parity.statistics import Verdict

ARMS = ("reference", "candidate")
ONGOING, REFUSED = "ongoing", "refused"
_TONES = {
    Verdict.EXACT: "passed",
    Verdict.EQUIVALENT: "passed",
    Verdict.NON_INFERIOR: "passed",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.INFERIOR: "failed",
    Verdict.NOT_ENGAGED: "failed",
    Verdict.ENV_NONDETERMINISTIC: "failed",
}
_SIGNS = {"passed": "✓", "undecided": "?", "failed": "✗"}
MEANING = {
    Verdict.EXACT: "The candidate computes the same as the reference: nothing can be lost.",
    Verdict.EQUIVALENT: "Loss and gain both stay below the margin, with 95 % confidence each.",
    Verdict.NON_INFERIOR: "The loss stays below the margin with 95 % confidence; there may be a gain.",
    Verdict.INCONCLUSIVE: "Not proved either way. The optimisation has NOT been shown to keep accuracy.",
    Verdict.INFERIOR: "The candidate is worse than what was declared bearable.",
    Verdict.NOT_ENGAGED: "A lever was asked for and did nothing; whatever else was measured says nothing about it.",
    Verdict.ENV_NONDETERMINISTIC: "Two identical runs differ on this machine, so nothing can be told bit by bit.",
}


@dataclass(frozen=True)
class Section:
    """One part of the report.

    Attributes:
        title: its heading.
        intro: how to read the table.
        texts: what was found, in sentences.
        head: column titles.
        rows: cells as text.
        tones: of each row, where its last cell is a verdict: ``passed``, ``undecided``, ``failed``, ``ongoing``
            (nothing found, nothing proved) or ``refused``.
        picture: which drawing belongs here: ``curves``, ``forest`` or none.
    """

    title: str
    intro: str = ""
    texts: Sequence[str] = ()
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    tones: Sequence[str] = ()
    picture: str = ""


def tone(verdict: Verdict) -> str:
    """Return ``passed``, ``undecided`` or ``failed``."""
    return _TONES[verdict]


def signed(verdict: Verdict) -> str:
    """Return a verdict with its sign."""
    return f"{_SIGNS[tone(verdict)]} {verdict}"


def number(value: float, digits: int = 2) -> str:
    """Return a number as text, a dash where there is none."""
    if math.isnan(value):
        return "–"
    return f"{value:.{digits}f}" if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def conclusion(outcome: Outcome) -> str:
    """Return a metric's verdict; an inconclusive one says what would settle it."""
    if outcome.verdict is not Verdict.INCONCLUSIVE:
        return signed(outcome.verdict)
    seeds = "more tablets" if outcome.seeds_needed is None else f"n = {outcome.seeds_needed} seeds"
    # rounded up: the margin as printed has to be wide enough
    margin = math.ceil(100 * outcome.margin_supported) / 100
    return f"{signed(outcome.verdict)} (needs {seeds}, or margin >= {margin:.2f})"


def sections(result: ParityResult) -> list[Section]:
    """Return the report's parts in reading order; parts without content are left out."""
    parts = [
        _compared(result),
        _files(result),
        _notes(result),
        _tiers(result),
        _metrics(result),
        _support(result),
        _strata(result),
        _speed(result),
        _trainings(result),
    ]
    return [p for p in parts if p.rows or p.texts]


def _compared(result: ParityResult) -> Section:
    rows = [
        ("levers", ", ".join(f"{k} = {v}" for k, v in result.levers.items()) or "none"),
        ("preset", result.preset),
        ("margins, stated before the run", ", ".join(f"{k} {v:g} pp" for k, v in result.margins.items()) or "none"),
        ("commit", result.commit),
        ("hardware", result.hardware),
        ("versions", ", ".join(f"{k} {v}" for k, v in result.versions.items())),
        *((f"config of the {arm}", digest) for arm, digest in result.configs.items()),
    ]
    return Section("What was compared", head=("what", "value"), rows=rows)


def _files(result: ParityResult) -> Section:
    rows = [
        (
            *(arm, str(f["name"]), f"{f['parameters']:,}", number(f["megabytes"]), number(f["crops_per_second"], 1)),
            *(str(f["commit"]), str(f["sha256"])[:12]),
        )
        for arm, f in result.files.items()
    ]
    head = ("arm", "weights", "parameters", "MB on disk", "crops per second", "commit", "sha256")
    return Section("The two files", "", (), head, rows)


def _notes(result: ParityResult) -> Section:
    return Section("Notes", texts=result.notes)


def _tiers(result: ParityResult) -> Section:
    rows, tones = [], []
    for f in result.findings:
        figures = ", ".join(f"{k} = {v:.4g}" for k, v in f.numbers.items())
        word, colour = _standing(f)
        rows.append((f.tier, f.lever, f.what, f.culprit, figures, word))
        tones.append(colour)
    head = ("tier", "lever", "found", "culprit", "figures", "verdict")
    intro = "Cheap tiers come first. A tier that finds nothing hands the claim on to the next; that alone is no proof."
    return Section("Tier by tier", intro, (), head, rows, tones)


def _standing(finding: Finding) -> tuple[str, str]:
    if finding.verdict is not None:
        return signed(finding.verdict), tone(finding.verdict)
    return ("– refused, not tested", REFUSED) if finding.refused else ("→ nothing found, goes on", ONGOING)


def _metrics(result: ParityResult) -> Section:
    rows = [
        (
            o.metric,
            *(number(_mean([c for c in result.curves if c.arm == arm], o.metric)) for arm in ARMS),
            number(o.gain),
            f"{number(o.low)} to {number(o.high)}",
            number(o.margin),
            number(o.p, 3),
            f"{number(o.correlation)}, {'paired' if o.paired else 'Welch'}",
            conclusion(o),
        )
        for o in result.outcomes
    ]
    head = (
        *("metric", "reference", "candidate", "gain", "95 % bounds", "margin", "p (Holm)"),
        *("correlation of arms", "verdict"),
    )
    intro = (
        "Percentage points. Gain is positive where the candidate is better, also for error rates. "
        "A metric passes where its lower bound lies above minus the margin and p is at most 0.05."
    )
    return Section("Metrics", intro, (), head, rows, [tone(o.verdict) for o in result.outcomes], "forest")


def _mean(curves: list[Curve], metric: str) -> float:
    scores = [c.scores[metric] for c in curves if metric in c.scores]
    return sum(scores) / len(scores) if scores else math.nan


def _support(result: ParityResult) -> Section:
    rows = [
        (
            o.metric,
            number(o.margin),
            number(o.margin_supported),
            "–" if math.isnan(o.power) else f"{100 * o.power:.0f} %",
            _seeds(result, o),
            "not known" if result.files else number(o.se_seeds),
            number(o.se_tablets),
        )
        for o in result.outcomes
    ]
    head = (
        *("metric", "margin stated", "smallest margin provable", "power", "seeds needed"),
        *("error by seeds", "error by tablets"),
    )
    intro = (
        "What these data could have shown had there been no difference at all, four times of five. "
        "A margin is stated before a run: to use a wider one, state it for the next run."
    )
    return Section("What margin the data can support", intro, (), head, rows)


def _seeds(result: ParityResult, outcome: Outcome) -> str:
    if result.files:
        return "one training each: take more tablets"
    return "more than 200: take more tablets" if outcome.seeds_needed is None else str(outcome.seeds_needed)


def _strata(result: ParityResult) -> Section:
    rows = [
        (
            *(s.metric, s.name, f"{s.items:g}", number(s.reference), number(s.candidate), number(s.gain)),
            f"{number(s.low)} to {number(s.high)}",
        )
        for s in result.strata
    ]
    head = ("metric", "group", "items", "reference", "candidate", "gain", "95 % bounds")
    intro = "Looked at, not judged: with many groups some bound lies off zero by chance."
    return Section("By group", intro, (), head, rows)


def _speed(result: ParityResult) -> Section:
    texts = []
    if result.throughput is not None:
        r = result.throughput
        texts.append(
            f"Throughput, candidate over reference: {number(r.value, 3)} "
            f"(95 % interval {number(r.low, 3)} to {number(r.high, 3)})."
        )
    if all("hours" in result.hours.get(arm, {}) for arm in ARMS):
        texts.append(saved_hours(result.hours))
    rows = [
        (name, number(float(row["hours"])), _provenance(row)) for name, row in result.hours.items() if "hours" in row
    ]
    head = ("arm", "device-hours of a full training", "origin")
    intro = "A device-hour is one GPU for an hour, or this machine's CPU where no GPU trained."
    return Section("Speed and device-hours", intro, texts, head, rows)


def saved_hours(hours: dict[str, dict[str, Any]]) -> str:
    """Say what is saved; figures of different origin are never subtracted.

    Args:
        hours: of `ParityResult`.
    """
    before, after = (float(hours[arm]["hours"]) for arm in ARMS)
    origins = [_provenance(hours[arm]) for arm in ARMS]
    if origins[0] != origins[1] or origins[0] == _UNSTATED:
        return f"Device-hours saved: not stated, since the figures differ in origin ({origins[0]}; {origins[1]})."
    share = f" ({100 * (before - after) / before:.0f} %)" if before > 0 else ""
    return f"Device-hours saved: {before - after:.2f} of {before:.2f}{share}, {origins[0]}."


_UNSTATED = "origin not stated"


def _provenance(row: dict[str, Any]) -> str:
    return str(row.get("provenance") or _UNSTATED)


def _trainings(result: ParityResult) -> Section:
    rows = [
        (
            *(c.arm, str(c.seed), str(c.steps[-1] if c.steps else 0)),
            *(number(c.losses[-1] if c.losses else math.nan, 4), number(c.steps_per_second, 3)),
            ", ".join(f"{k} {number(v)}" for k, v in c.scores.items()),
            *(c.commit, c.hardware),
        )
        for c in result.curves
        if not result.files
    ]
    head = ("arm", "seed", "steps", "last loss", "steps per second", "scores, %", "commit", "hardware")
    return Section("Trainings", "", (), head, rows, picture="curves")
