"""From counts and rates to the rows of a result: metrics, strata, throughput."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from dubsar.pipelines.parity.result import Outcome, Ratio, Stratum
from dubsar.pipelines.parity.statistics import (
    LEVEL,
    Counts,
    Floats,
    Interval,
    compare,
    holm,
    judge_all,
    margin_supported,
    p_value,
    power_at,
    seeds_to_settle,
)

_NOTHING = float("nan")


def judge_metrics(
    intervals: Mapping[str, Interval], margins: Mapping[str, float], higher_is_better: Mapping[str, bool]
) -> list[Outcome]:
    """Judge all metrics of a run together.

    Args:
        intervals: of `compare`, by metric.
        margins: declared before the run, by metric.
        higher_is_better: by metric.

    Raises:
        ValueError: a metric has no margin, or one that is not above 0.
    """
    verdicts = judge_all(intervals, margins)
    adjusted = holm({name: p_value(i, margins[name]) for name, i in intervals.items()})
    return [
        Outcome(
            metric=name,
            higher_is_better=higher_is_better[name],
            margin=margins[name],
            gain=i.mean,
            low=i.low,
            high=i.high,
            se_seeds=i.se_seeds,
            se_tablets=i.se_tablets,
            correlation=i.correlation,
            paired=i.paired,
            p=adjusted[name],
            margin_supported=margin_supported(i),
            seeds_needed=seeds_to_settle(i, margins[name]),
            verdict=verdicts[name],
            power=power_at(i, margins[name]),
        )
        for name, i in intervals.items()
    ]


def stratify(
    metric: str,
    reference: Counts,
    candidate: Counts,
    groups: Mapping[str, npt.NDArray[np.bool_]],
    *,
    tablets: Sequence[object] | None = None,
    higher_is_better: bool,
) -> list[Stratum]:
    """Compare the arms within groups of items, such as rare signs; groups may overlap.

    A group without items has no scores, one from a single tablet no bounds: how tablets differ cannot be seen on one.
    Arms of one seed are finished networks.

    Args:
        metric: its name.
        reference, candidate: counts by seed and item.
        groups: which items belong to it, boolean (items,), by name of the group.
        tablets: tablet of each item; where None each item is a tablet.
        higher_is_better: False for error rates.
    """
    names = range(len(reference.whole_T)) if tablets is None else tablets
    _, tablet_I = np.unique([str(t) for t in names], return_inverse=True)
    rows = []
    for name, member_I in groups.items():
        parts = [_by_tablet(arm, member_I, tablet_I) for arm in (reference, candidate)]
        if parts[0] is None or parts[1] is None:
            rows.append(Stratum(metric, name, 0.0, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING))
            continue
        finished = len(parts[0].part_ST) == 1
        interval = compare(parts[0], parts[1], higher_is_better=higher_is_better, finished=finished)
        alone = len(parts[0].whole_T) < 2
        low, high = (-np.inf, np.inf) if alone else (interval.low, interval.high)
        before, after = (float(arm.percent_S.mean()) for arm in (parts[0], parts[1]))
        rows.append(Stratum(metric, name, float(parts[0].whole_T.sum()), before, after, interval.mean, low, high))
    return rows


def throughput(reference_rates: Sequence[float], candidate_rates: Sequence[float]) -> Ratio:
    """Return the candidate's speed over the reference's, with Student's 95 % interval of the paired logarithms.

    One pair shows no spread: its interval is everything.

    Args:
        reference_rates, candidate_rates: optimizer steps per second; the same place means the same seed.

    Raises:
        ValueError: the arms have not as many rates, none, or one that is not above 0.
    """
    if not 0 < len(reference_rates) == len(candidate_rates):
        raise ValueError(f"{len(reference_rates)} rates of the reference and {len(candidate_rates)} of the candidate")
    rates_2S: Floats = np.array([reference_rates, candidate_rates], dtype=float)
    if not (np.isfinite(rates_2S).all() and (rates_2S > 0).all()):
        raise ValueError(f"rates are {rates_2S.tolist()}, expected steps per second above 0")
    log_S = np.log(rates_2S[1] / rates_2S[0])
    mean, seeds = float(log_S.mean()), len(log_S)
    if seeds == 1:
        return Ratio(float(np.exp(mean)), 0.0, float("inf"))
    reach = float(stats.t.ppf(1 - LEVEL / 2, seeds - 1)) * float(log_S.std(ddof=1)) / np.sqrt(seeds)
    return Ratio(float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach)))


def _by_tablet(counts: Counts, member_I: npt.NDArray[np.bool_], tablet_I: npt.NDArray[np.intp]) -> Counts | None:
    """Return the counts of some items, summed by tablet; None where they hold nothing to score."""
    kept_I = member_I & (counts.whole_T > 0)
    if not kept_I.any():
        return None
    _, place_I = np.unique(tablet_I[kept_I], return_inverse=True)
    sums = [np.bincount(place_I, row_I[kept_I]).astype(np.float64) for row_I in (*counts.part_ST, counts.whole_T)]
    return Counts(np.stack(sums[:-1]), sums[-1])
