"""What a comparison of two arms can and cannot prove: intervals, verdicts, power.

Both arms are trained with the same seeds and scored on the same tablets. A score is a ratio of counts (errors per
character, right signs per sign), so each tablet gives a numerator and a denominator and long tablets weigh more.

Two things vary by chance: the seed of a training, and which tablets happen to be in the test set. The variance of the
mean difference is their sum,

    se^2 = sd(difference per seed)^2 / seeds  +  se(tablets)^2

the second by a bootstrap that draws whole tablets (their signs share a hand, a lamp and a scale). Seeds are too few for
a bootstrap (three of them cover 81 % instead of 95 %), so the bound is Student's, with degrees of freedom by
Satterthwaite.

The question is one of *non-inferiority*: the one-sided 95 % bound of the loss must stay below a margin that was stated
before the run. "No significant difference" would be passed by every comparison that is too small to see one.

Two finished networks, of one training each, show no spread of seeds. Then only the tablets count (``finished``), and
what is said holds for these two files and not for the recipes that made them.

Sources: Schuirmann 1987 (two one-sided tests); Satterthwaite 1946; Holm 1979; Welch 1947; Field and Welsh 2007
(bootstrapping clustered data).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy import stats

from dubsar.pipelines.resampling import tablet_error

Floats = npt.NDArray[np.float64]
LEVEL = 0.05  # of each one-sided statement
POWER = 0.8
MOST_SEEDS = 200


class Verdict(StrEnum):
    """What a comparison says of one metric, or of all."""

    EXACT = "EXACT"
    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON_INFERIOR"
    INCONCLUSIVE = "INCONCLUSIVE"
    INFERIOR = "INFERIOR"
    NOT_ENGAGED = "NOT_ENGAGED"
    ENV_NONDETERMINISTIC = "ENV_NONDETERMINISTIC"

    @property
    def proves_parity(self) -> bool:
        """Whether the optimisation may be kept; what could not be decided may not."""
        return self in {Verdict.EXACT, Verdict.EQUIVALENT, Verdict.NON_INFERIOR}


@dataclass(frozen=True)
class Counts:
    """One arm's score by seed and tablet.

    Attributes:
        part_ST: numerators, float (seeds, tablets): errors, or right answers.
        whole_T: denominators, float (tablets,): characters or signs; the same for all seeds and both arms.
    """

    part_ST: Floats
    whole_T: Floats

    def __post_init__(self) -> None:
        if self.part_ST.ndim != 2 or self.part_ST.shape[1:] != self.whole_T.shape:
            raise ValueError(
                f"counts are {self.part_ST.shape} for {self.whole_T.shape} tablets; "
                "expected (seeds, tablets) and (tablets,)"
            )
        if not (np.isfinite(self.part_ST).all() and np.isfinite(self.whole_T).all() and self.whole_T.sum() > 0):
            raise ValueError("counts must be finite, and some tablet must have characters or signs to score")

    @classmethod
    def of_items(cls, part_SN: npt.ArrayLike, whole_N: npt.ArrayLike, tablets_N: npt.ArrayLike) -> "Counts":
        """Sum what each item scored by its tablet.

        Args:
            part_SN: numerators, float (seeds, items).
            whole_N: denominators, float (items,).
            tablets_N: the tablet of each item.
        """
        _, place_N = np.unique(np.asarray(tablets_N), return_inverse=True)
        rows = [np.asarray(row_N, dtype=np.float64) for row_N in (*np.asarray(part_SN), whole_N)]
        sums = [np.bincount(place_N, row_N).astype(np.float64) for row_N in rows]
        return cls(np.stack(sums[:-1]), sums[-1])

    @property
    def percent_S(self) -> Floats:
        """The score of each seed over all tablets, percent."""
        return np.asarray(100 * self.part_ST.sum(1) / self.whole_T.sum())


@dataclass(frozen=True)
class Interval:
    """The difference between two arms, in percentage points; positive means that the candidate is better.

    Attributes:
        mean: over seeds.
        low, high: one-sided 95 % bounds; together a 90 % interval.
        se_seeds, se_tablets: standard errors of ``mean`` by either source of chance.
        degrees: of freedom of the whole.
        correlation: between the arms' scores over seeds; pairing helps where it is above 0.
        paired: whether seeds were paired (else Welch's bound).
        seeds: per arm; 1 where two finished networks were compared, whose recipes may differ by more or less.
    """

    mean: float
    low: float
    high: float
    se_seeds: float
    se_tablets: float
    degrees: float
    correlation: float
    paired: bool
    seeds: int


def compare(
    reference: Counts,
    candidate: Counts,
    *,
    higher_is_better: bool,
    draws: int = 2000,
    seed: int = 0,
    finished: bool = False,
) -> Interval:
    """Estimate how much better the candidate is, with its uncertainty.

    Args:
        reference: all levers off.
        candidate: levers on; same seeds and tablets.
        higher_is_better: False for error rates.
        draws: bootstrap samples of tablets.
        seed: of the bootstrap.
        finished: each arm is one finished network, so that only the tablets vary; of a single tablet nothing is known,
            and the bounds are infinite.

    Raises:
        ValueError: fewer than two seeds (or, of finished networks, more than one), or the arms were not scored on the
            same tablets.
    """
    if reference.part_ST.shape != candidate.part_ST.shape or not np.array_equal(reference.whole_T, candidate.whole_T):
        raise ValueError("the arms were not scored on the same seeds and tablets; nothing can be paired")
    seeds, tablets = reference.part_ST.shape
    if finished and seeds != 1:
        raise ValueError(f"{seeds} seeds of a finished network, expected one; compare the trainings instead")
    if seeds < 2 and not finished:
        raise ValueError("one seed shows no spread; give at least two, better three (--seeds)")
    sign = 1.0 if higher_is_better else -1.0
    a_S, b_S = sign * reference.percent_S, sign * candidate.percent_S
    difference_S = b_S - a_S
    correlation = float("nan") if finished else _correlation(a_S, b_S)
    paired = correlation > 0 or bool(np.ptp(difference_S) == 0)
    if finished:
        variance, degrees = 0.0, np.inf  # no spread of seeds is known, and none is claimed
    elif paired:
        variance, degrees = float(difference_S.var(ddof=1)) / seeds, seeds - 1.0
    else:
        variance, degrees = _pooled([float(a_S.var(ddof=1)) / seeds, float(b_S.var(ddof=1)) / seeds], [seeds - 1.0] * 2)
    by_tablet_T = sign * (candidate.part_ST - reference.part_ST).mean(0)
    se_tablets = tablet_error(by_tablet_T, reference.whole_T, draws, seed)
    if finished and tablets < 2:
        se_tablets = np.inf
    freedom = max(tablets - 1.0, 1.0)
    total = se_tablets**2
    if not finished:
        total, freedom = _pooled([variance, total], [degrees, freedom])
    reach = float(stats.t.ppf(1 - LEVEL, freedom)) * np.sqrt(total) if total > 0 else 0.0
    mean = float(difference_S.mean())
    return Interval(
        mean, mean - reach, mean + reach, float(np.sqrt(variance)), se_tablets, freedom, correlation, paired, seeds
    )


@dataclass(frozen=True)
class Estimate:
    """The score of one config, percent.

    Attributes:
        mean: over seeds.
        low, high: 95 % interval, Student's.
        se_seeds, se_tablets: standard errors of ``mean`` by either source of chance.
        degrees: of freedom of the whole.
        seeds: how many.
    """

    mean: float
    low: float
    high: float
    se_seeds: float
    se_tablets: float
    degrees: float
    seeds: int


def estimate(counts: Counts, *, draws: int = 2000, seed: int = 0) -> Estimate:
    """Estimate what a config scores with another seed on other tablets.

    Args:
        counts: of its trainings.
        draws, seed: of the bootstrap of tablets.

    Raises:
        ValueError: fewer than two seeds.
    """
    seeds, tablets = counts.part_ST.shape
    if seeds < 2:
        raise ValueError("one seed shows no spread; give at least two, better three (--seeds)")
    percent_S = counts.percent_S
    by_seed = float(percent_S.var(ddof=1)) / seeds
    se_tablets = tablet_error(counts.part_ST.mean(0), counts.whole_T, draws, seed)
    total, degrees = _pooled([by_seed, se_tablets**2], [seeds - 1.0, max(tablets - 1.0, 1.0)])
    reach = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * np.sqrt(total) if total > 0 else 0.0
    mean = float(percent_S.mean())
    return Estimate(mean, mean - reach, mean + reach, float(np.sqrt(by_seed)), se_tablets, degrees, seeds)


def judge(interval: Interval, margin: float) -> Verdict:
    """Judge one metric against the loss that was declared bearable, in percentage points.

    Raises:
        ValueError: the margin is not above 0.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}, expected a loss above 0 percentage points; declare it before the run")
    if interval.low > -margin:
        return Verdict.EQUIVALENT if interval.high < margin else Verdict.NON_INFERIOR
    return Verdict.INFERIOR if interval.high < -margin else Verdict.INCONCLUSIVE


def p_value(interval: Interval, margin: float) -> float:
    """Return the probability of so good a difference where the true loss is just the margin."""
    spread = float(np.hypot(interval.se_seeds, interval.se_tablets))
    if spread == 0:
        return 0.0 if interval.mean > -margin else 1.0
    return float(stats.t.sf((interval.mean + margin) / spread, interval.degrees))


def two_sided(interval: Interval) -> tuple[float, float, float]:
    """Return the two-sided 95 % bounds of a difference, and the probability of so large a one where there is none."""
    spread = float(np.hypot(interval.se_seeds, interval.se_tablets))
    if spread == 0:
        return interval.mean, interval.mean, float(interval.mean == 0)
    reach = float(stats.t.ppf(1 - LEVEL / 2, interval.degrees)) * spread
    p = 2 * float(stats.t.sf(abs(interval.mean) / spread, interval.degrees))
    return interval.mean - reach, interval.mean + reach, p


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for looking at several metrics (step-down)."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def judge_all(intervals: Mapping[str, Interval], margins: Mapping[str, float]) -> dict[str, Verdict]:
    """Judge all metrics; a metric passes only where its p-value, adjusted by Holm, does too.

    Raises:
        ValueError: a metric has no margin.
    """
    missing = sorted(set(intervals) - set(margins))
    if missing:
        raise ValueError(f"no margin for {', '.join(missing)}: state what loss is bearable, as --margin {missing[0]}=…")
    adjusted = holm({name: p_value(i, margins[name]) for name, i in intervals.items()})
    verdicts = {name: judge(i, margins[name]) for name, i in intervals.items()}
    return {n: Verdict.INCONCLUSIVE if v.proves_parity and adjusted[n] > LEVEL else v for n, v in verdicts.items()}


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the least favourable verdict: a bundle is as good as its worst metric."""
    order = list(Verdict)
    return max(verdicts, key=order.index) if verdicts else Verdict.INCONCLUSIVE


def power(seeds: int, sd_over_margin: float, loss_over_margin: float = 0.0) -> float:
    """Return the chance that a true loss (in margins) is proved bearable, by seeds alone.

    Args:
        seeds: per arm, paired.
        sd_over_margin: standard deviation of the difference per seed, in margins.
        loss_over_margin: true loss, in margins; 0 for no difference.
    """
    degrees = seeds - 1
    shift = (1 - loss_over_margin) / sd_over_margin * np.sqrt(seeds)
    return _chance_above(degrees, shift)


def seeds_needed(sd_over_margin: float, chance: float = POWER) -> int | None:
    """Return the fewest seeds (3 or more) that settle a case without true difference; None above `MOST_SEEDS`."""
    return next((n for n in range(3, MOST_SEEDS + 1) if power(n, sd_over_margin) >= chance), None)


def margin_supported(interval: Interval) -> float:
    """Return the smallest margin, in percentage points, that these data could have proved had there been no loss."""
    spread = float(np.hypot(interval.se_seeds, interval.se_tablets))
    reach = stats.t.ppf(1 - LEVEL, interval.degrees) + stats.t.ppf(POWER, interval.degrees)
    return float(reach * spread)


def power_at(interval: Interval, margin: float, seeds: int | None = None) -> float:
    """Return the chance that a run like this one proves the margin where there is no true difference.

    More seeds shrink only their own part of the error; what the choice of tablets adds stays, and they are taken to be
    many. Where the tablets alone are too uncertain no number of seeds helps.

    Args:
        interval: as found.
        margin: percentage points.
        seeds: per arm; as many as in ``interval`` where None.
    """
    seeds = interval.seeds if seeds is None else seeds
    by_seed, by_tablet = interval.se_seeds**2 * interval.seeds / seeds, interval.se_tablets**2
    total, degrees = _pooled([by_seed, by_tablet], [seeds - 1.0, np.inf])
    if total == 0:
        return 1.0
    degrees = interval.degrees if seeds == interval.seeds else degrees
    return _chance_above(degrees, margin / np.sqrt(total))


def seeds_to_settle(interval: Interval, margin: float, chance: float = POWER) -> int | None:
    """Return the fewest seeds (3 or more) that settle this case without true difference, on the same tablets.

    None where `MOST_SEEDS` would not do, or where finished networks were compared: then more tablets are needed, or a
    wider margin.
    """
    if interval.seeds == 1 or power_at(interval, margin, MOST_SEEDS) < chance:
        return None
    return next(n for n in range(3, MOST_SEEDS + 1) if power_at(interval, margin, n) >= chance)


def _chance_above(degrees: float, shift: float) -> float:
    """Return the chance that Student's statistic, shifted, passes the one-sided bound.

    SciPy gives no number where the shift is large, as for a margin of many standard errors: then it passes.
    """
    bound = stats.t.ppf(1 - LEVEL, degrees)
    chance = float(stats.nct.sf(bound, degrees, shift))
    return chance if np.isfinite(chance) else float(shift > bound)


def _correlation(a_S: Floats, b_S: Floats) -> float:
    if np.ptp(a_S) == 0 or np.ptp(b_S) == 0:
        return 0.0
    return float(np.corrcoef(a_S, b_S)[0, 1])


def _pooled(variances: Sequence[float], degrees: Sequence[float]) -> tuple[float, float]:
    """Return a sum of variances and its degrees of freedom (Satterthwaite)."""
    total = sum(variances)
    if total == 0:
        return 0.0, min(degrees)
    # as shares, which cannot vanish; all from sources of endless degrees have endless degrees
    lost = sum((v / total) ** 2 / d for v, d in zip(variances, degrees, strict=True) if v)
    return total, 1 / lost if lost else np.inf
