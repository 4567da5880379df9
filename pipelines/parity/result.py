"""What a parity run found: plain records, written to ``parity.json`` and read back by the reports.

The file has a schema version. A field may be added under the same version; a field that is renamed, dropped or given
another meaning raises it. JSON knows no numbers that are not finite (the loss of a training that diverged, a bound that
does not exist): they are spelled as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from dubsar.pipelines.parity.statistics import Verdict, worst

SCHEMA_VERSION = 1
EXIT_STATUS = {  # of the command; 1 to 5 are taken by its other faults
    Verdict.EXACT: 0,
    Verdict.EQUIVALENT: 0,
    Verdict.NON_INFERIOR: 0,
    Verdict.INCONCLUSIVE: 10,
    Verdict.INFERIOR: 11,
    Verdict.NOT_ENGAGED: 12,
    Verdict.ENV_NONDETERMINISTIC: 13,
}
REFUSED = "refused"  # how the sentence of a finding begins whose lever cannot act on this machine or in this stage
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class Finding:
    """What one tier says of one lever.

    Attributes:
        tier: ``T0`` to ``T6``.
        lever: name of the lever, or ``bundle``.
        verdict: what follows for the lever; None where the tier passed without settling the claim.
        what: one sentence with the figures.
        culprit: what is at fault where it failed: a module, a tensor, a kernel, a lever.
        numbers: the figures by name.
    """

    tier: str
    lever: str
    verdict: Verdict | None
    what: str
    culprit: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the next tier may follow."""
        return self.verdict is None or self.verdict.proves_parity

    @property
    def refused(self) -> bool:
        """Whether the lever could not act here: no pass, and a failure only where the verdict says so."""
        return self.what.startswith(REFUSED)


@dataclass(frozen=True)
class Curve:
    """One training of one arm.

    Attributes:
        arm: ``reference`` or ``candidate``.
        seed: of the training.
        steps, losses: training loss by optimizer step.
        steps_per_second: optimizer steps over the wall time of the training loop, validation left out.
        scores: percent by metric, at the end of the schedule.
        commit, hardware: what trained it.
    """

    arm: str
    seed: int
    steps: list[int]
    losses: list[float]
    steps_per_second: float
    scores: dict[str, float]
    commit: str
    hardware: str


@dataclass(frozen=True)
class Stratum:
    """One group of items, such as rare signs: the mean score of both arms and the candidate's gain, percent."""

    metric: str
    name: str
    items: float
    reference: float
    candidate: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """One metric over all seeds and tablets, see `dubsar.pipelines.parity.statistics.Interval`; percentage points.

    Attributes:
        metric: such as ``cer``.
        higher_is_better: False for error rates.
        margin: the loss declared bearable before the run.
        gain, low, high: mean difference (positive: the candidate is better) and its one-sided 95 % bounds.
        se_seeds, se_tablets, correlation, paired: as in `Interval`.
        p: adjusted by Holm.
        margin_supported: the smallest margin that these data could have proved.
        seeds_needed: seeds that would settle it without true difference; None: no number up to 200 would.
        verdict: of this metric.
        power: chance that these seeds and tablets prove the margin where there is no true difference.
    """

    metric: str
    higher_is_better: bool
    margin: float
    gain: float
    low: float
    high: float
    se_seeds: float
    se_tablets: float
    correlation: float
    paired: bool
    p: float
    margin_supported: float
    seeds_needed: int | None
    verdict: Verdict
    power: float = math.nan


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times or rates with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ParityResult:
    """Everything that a parity run found.

    Attributes:
        stage: stage name.
        levers: what is compared against all levers off, as asked: name to value.
        preset: ``full``, ``two_epochs`` or ``gpu-check``.
        commit, hardware, versions: where it ran.
        configs: hash of the config of each arm.
        margins: declared before the run, percentage points by metric.
        findings: tier by tier.
        curves: of all trainings.
        band: lowest and highest reference loss by step (T4): ``{"steps": …, "low": …, "high": …}``.
        outcomes, strata: of T5.
        throughput: candidate's steps per second over the reference's.
        hours: GPU-hours of a full training, ``reference`` and ``candidate``: each ``{"hours": …, "provenance": …}``,
            the provenance one of ``measured here``, ``measured on <gpu>``, ``modelled`` and ``claimed``.
        notes: sentences that the reader must see, such as a rerun in fp32.
        verdict: of the whole.
        files: where two finished files of weights were compared, what they are: ``reference`` and ``candidate``, each
            with ``name``, ``sha256``, ``commit``, ``parameters``, ``megabytes`` and ``crops_per_second``.
    """

    stage: str
    levers: dict[str, Any]
    preset: str
    commit: str
    hardware: str
    versions: dict[str, str]
    configs: dict[str, str]
    margins: dict[str, float]
    findings: list[Finding]
    curves: list[Curve] = field(default_factory=list)
    band: dict[str, list[float]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    strata: list[Stratum] = field(default_factory=list)
    throughput: Ratio | None = None
    hours: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    verdict: Verdict = Verdict.INCONCLUSIVE
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the schema's version."""
        return {"schema_version": SCHEMA_VERSION, **_mapped(asdict(self), _spelled)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ParityResult":
        """Read back what `to_dict` gave.

        Raises:
            ValueError: another schema version.
        """
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"parity.json has schema version {version!r}, expected {SCHEMA_VERSION}")
        plain = _mapped({k: v for k, v in data.items() if k != "schema_version"}, _unspelled)
        plain["findings"] = [
            Finding(**{**f, "verdict": Verdict(f["verdict"]) if f["verdict"] else None}) for f in plain["findings"]
        ]
        plain["curves"] = [Curve(**c) for c in plain["curves"]]
        plain["outcomes"] = [Outcome(**{**o, "verdict": Verdict(o["verdict"])}) for o in plain["outcomes"]]
        plain["strata"] = [Stratum(**s) for s in plain["strata"]]
        plain["throughput"] = Ratio(**plain["throughput"]) if plain["throughput"] else None
        return cls(**{**plain, "verdict": Verdict(plain["verdict"])})


def verdict_of(findings: list[Finding]) -> Verdict:
    """Return the least favourable verdict that any tier has given."""
    return worst([f.verdict for f in findings if f.verdict is not None])


def exit_status(verdict: Verdict) -> int:
    """Return the exit status of the command: 0 only where parity is proved, see `EXIT_STATUS`."""
    return EXIT_STATUS[verdict]


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return nested lists and dictionaries with ``leaf`` applied to what they hold."""
    if isinstance(value, dict):
        return {k: _mapped(v, leaf) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(v, leaf) for v in value]
    return leaf(value)


def _spelled(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _unspelled(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value
