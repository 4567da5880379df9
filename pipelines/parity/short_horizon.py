"""T4: does the loss of the first few hundred steps run where the reference's own reruns run?

Two trainings of one method never agree for long: rounding grows. How far they part is not guessed but measured, on
reruns of the reference that differ from it by what should not matter: one weight moved to the next floating-point
number for a lever that computes the same function (class A), the seed for one that changes rounding or estimator (P, S,
M). The loss is averaged over windows; per window the reruns give a mean and a deviation, and a candidate has to stay
within the two-sided 99 % prediction interval of one more rerun, Bonferroni over windows. Below a thousandth of the loss
nothing is called a difference: the reruns start from so small a change that their band is almost nothing at first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from dubsar.pipelines.parity.result import Finding
from dubsar.pipelines.parity.statistics import Verdict

Floats = npt.NDArray[np.float64]
WINDOWS = 10
LEVEL = 0.01
LEAST = 1e-3  # of the loss: no difference is seen below it
RERUNS = 5


@dataclass(frozen=True)
class Band:
    """Where the loss of one more rerun would run, by window.

    Attributes:
        steps_W: last step of each window.
        low_W, high_W: bounds of the window's mean loss.
    """

    steps_W: npt.NDArray[np.int64]
    low_W: Floats
    high_W: Floats

    def to_dict(self) -> dict[str, list[float]]:
        """Return plain lists, as `ParityResult.band` wants them."""
        return {"steps": self.steps_W.tolist(), "low": self.low_W.tolist(), "high": self.high_W.tolist()}


def window_means(losses: Sequence[float], windows: int = WINDOWS) -> Floats:
    """Average a loss curve over windows of equal length."""
    return np.array([part.mean() for part in np.array_split(np.asarray(losses, dtype=float), windows)])


def band(reruns: Sequence[Sequence[float]], windows: int = WINDOWS) -> Band:
    """Return the band of the reference's reruns.

    Args:
        reruns: loss by step of each, three at least.
        windows: over which losses are averaged.

    Raises:
        ValueError: too few reruns, or they are not of one length.
    """
    if len(reruns) < 3 or len({len(r) for r in reruns}) != 1:
        raise ValueError(f"{len(reruns)} reruns of {sorted({len(r) for r in reruns})} steps; expected 3 of one length")
    means_RW = np.stack([window_means(r, windows) for r in reruns])
    count = len(reruns)
    reach = stats.t.ppf(1 - LEVEL / (2 * windows), count - 1) * np.sqrt(1 + 1 / count)
    centre_W = means_RW.mean(0)
    half_W = np.maximum(reach * means_RW.std(0, ddof=1), LEAST * np.abs(centre_W))
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(len(reruns[0])), windows)])
    return Band(ends, centre_W - half_W, centre_W + half_W)


def judge_curve(lever: str, found: Band, losses: Sequence[float]) -> Finding:
    """Say whether a candidate's loss stays in the band; a loss that is not finite never does."""
    means_W = window_means(losses, len(found.steps_W))
    inside_W = (means_W >= found.low_W) & (means_W <= found.high_W)
    width = float(np.mean((found.high_W - found.low_W) / 2 / np.abs(found.high_W + found.low_W) * 2))
    if inside_W.all():
        what = f"loss of {len(losses)} steps stays in the band of the reference's reruns (half width {width:.1%})"
        return Finding("T4", lever, None, what, numbers={"half_width": width})
    first = int((~inside_W).argmax())
    off = float(means_W[first] / (found.low_W[first] + found.high_W[first]) * 2 - 1)
    what = f"loss leaves the band of the reference's reruns by step {found.steps_W[first]}: {off:+.2%} of its middle"
    return Finding("T4", lever, Verdict.INFERIOR, what, f"loss from step {found.steps_W[first]} on", {"off": off})


def move_one_weight(number: int, system: Any) -> None:
    """Move one weight of a network to the next floating-point number; another one for each ``number`` from 1 on."""
    parameters = [p for p in system.network.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(number)
    chosen = parameters[int(torch.randint(len(parameters), (), generator=generator))].data.view(-1)
    index = int(torch.randint(len(chosen), (), generator=generator))
    chosen[index] = torch.nextafter(chosen[index], torch.tensor(torch.inf, dtype=chosen.dtype, device=chosen.device))
