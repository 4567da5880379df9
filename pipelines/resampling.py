"""Chance by tablet: what a score might have been on other tablets of the same kind.

The signs of one tablet share a hand, a lamp and a scale, so a bootstrap draws whole tablets, never single signs.

Source:
    Field and Welsh 2007 (bootstrapping clustered data).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
DRAWS = 2000
OUTSIDE = 0.05  # of a 95 % interval


def tablet_error(part_T: Floats, whole_T: Floats, draws: int, seed: int) -> float:
    """Return the standard error, in percentage points, of ``sum(part) / sum(whole)`` over tablets drawn anew."""
    if len(whole_T) < 2 or not part_T.any():
        return 0.0
    return 100 * spread(np.stack([part_T, whole_T], axis=1), _ratio, draws, seed)


def spread(sums_TK: Floats, statistic: Callable[[Floats], Floats], draws: int = DRAWS, seed: int = 0) -> float:
    """Return the standard error of a statistic over tablets drawn anew.

    Args:
        sums_TK: what the statistic adds up, by tablet, at least two tablets.
        statistic: turns sums (D, K) of whole draws into values, one a draw; a draw without a value may be left out.
        draws, seed: of the bootstrap.
    """
    tablets = len(sums_TK)
    rng = np.random.default_rng(seed)
    times_DT = rng.multinomial(tablets, np.full(tablets, 1 / tablets), size=draws)
    values = statistic(times_DT @ sums_TK)
    # a draw of T from T tablets spreads by (T - 1) / T less than the tablets do
    return float(values.std(ddof=1) * np.sqrt(tablets / (tablets - 1)))


def sums_by_tablet(tablets_N: npt.NDArray[np.str_], values_NK: Floats) -> Floats:
    """Add up what the items (N, K) of each tablet give: (T, K), tablets in order of their names."""
    names, place_N = np.unique(tablets_N, return_inverse=True)
    sums_TK = np.zeros((len(names), values_NK.shape[1]))
    np.add.at(sums_TK, place_N, values_NK)
    return sums_TK


def percent_bounds(
    tablets_N: npt.NDArray[np.str_], values_NK: Floats, statistic: Callable[[Floats], Floats] | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of a score in percent: Student's, with the bootstrap's standard error over tablets.

    A single tablet shows no spread: its interval is everything.

    Args:
        tablets_N: the tablet of each item.
        values_NK: what the statistic adds up; where it is left out (right or wrong as 1 and 0, and 1).
        statistic: as of `spread`, as a share of one; a ratio of the two columns where None.

    Returns:
        Low and high, percent, within 0 to 100.
    """
    sums_TK = sums_by_tablet(tablets_N, values_NK)
    if len(sums_TK) < 2:
        return 0.0, 100.0
    found = statistic or _ratio
    value = float(found(sums_TK.sum(0, keepdims=True))[0])
    reach = float(stats.t.ppf(1 - OUTSIDE / 2, len(sums_TK) - 1)) * spread(sums_TK, found)
    return 100 * max(0.0, value - reach), 100 * min(1.0, value + reach)


def _ratio(sums_D2: Floats) -> Floats:
    kept_D2 = sums_D2[sums_D2[:, 1] > 0]
    return np.asarray(kept_D2[:, 0] / kept_D2[:, 1])
