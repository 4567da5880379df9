"""How the lines of an optimizer step are laid out in rectangles: padded, in buckets of like length, or packed.

A *step* is a set of lines that does not depend on the layout, so that a run with another layout is the same
optimisation. Lines are packed within windows of shuffled lines, best fit decreasing over two capacities (ids of the
encoder, ids of the decoder); the packs are shuffled, not the lengths; and a step is a fixed number of packs. What is
then computed is one of

* ``off``: one rectangle, every line padded to the step's longest;
* ``bucket``: the step's lines by length, cut into the rectangles that waste least;
* ``pack``: the packs themselves, rows of a shape that never changes.

Worked example, three lines with (source, target) lengths (3, 5), (2, 2), (5, 6) and capacity (6, 8)::

    pack_lines     [[2], [0, 1]]                 line 2 fills a row; 0 and 1 share one: 3 + 2 <= 6 and 5 + 2 <= 8
    source ids     a a a a a .                   .  is padding
                   b b b c c .
    documents      0 0 0 0 0 -1                  which line of its row an id belongs to
                   0 0 0 1 1 -1
    attention      b sees b, c sees c: in the encoder, in the decoder (not ahead), and from decoder to encoder

No position ids are needed: T5's bias depends on key minus query only, and a line's ids stand together. Three faults
would go unnoticed: `_shift_right` on packed targets (the decoder's input is given per line: start, then the target
without its last id), cross-attention without a mask, and a boolean mask with eager attention (it is added as 0 or 1).

Source: best-fit decreasing with vector capacities, Panigrahy et al. 2011, "Heuristics for vector bin packing".
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Layout = Literal["off", "bucket", "pack"]
Rows = list[list[int]]  # of one rectangle: which lines stand in each row
Lengths = npt.NDArray[np.int64]

MULTIPLE = 64  # of a capacity
WINDOW = 4096  # lines that are packed together


@dataclass(frozen=True)
class Costs:
    """What a training step of a ByT5 costs on a device, in ids computed.

    Attributes:
        call: a further call of the network.
        pairs_per_id: pairs of query and key whose attention costs as much as one id.
        skips: whether attention skips pairs that a document mask hides.
        worth_packing: how much cheaper packed rows have to be than buckets before ``auto`` packs.
    """

    call: float
    pairs_per_id: float
    skips: bool
    worth_packing: float = 1.0


COSTS = {
    # fitted to steps of the shipped transliterator (d_model 256, 4 + 2 layers) on one CPU core in bf16 with eager
    # attention; packed rows were 1.07 times as fast beside buckets as this says, hence the threshold below 1
    "cpu": Costs(180, 3200, skips=False, worth_packing=0.95),
    # not measured: a step there is bound by launches where it is small, and FlexAttention skips what is masked
    "cuda": Costs(2048, 20_000, skips=True, worth_packing=1.1),
}


@dataclass(frozen=True)
class Capacity:
    """Ids that a row holds."""

    source: int
    target: int

    @classmethod
    def of(cls, lengths_N2: Lengths) -> "Capacity":
        """Return the least capacity, in multiples of 64, that holds every line."""
        source, target = (-(-int(n) // MULTIPLE) * MULTIPLE for n in lengths_N2.max(0))
        return cls(source, target)

    @property
    def ids(self) -> int:
        """Ids of a row, source and target."""
        return self.source + self.target


def pack_lines(lengths_N2: Lengths, capacity: Capacity) -> Rows:
    """Pack lines best fit decreasing: the largest first, each into the row that it leaves least room in.

    Args:
        lengths_N2: ids of source and target of each line.
        capacity: of every row.

    Returns:
        Rows of line indices, each line in one of them.

    Raises:
        ValueError: a line is longer than a row.
    """
    limit_2 = np.array([capacity.source, capacity.target])
    if len(lengths_N2) and (lengths_N2 > limit_2).any():
        index = int((lengths_N2 > limit_2).any(1).argmax())
        raise ValueError(
            f"line {index} has {tuple(lengths_N2[index].tolist())} source and target ids, but a row holds "
            f"{capacity.source} and {capacity.target}"
        )
    share_N2 = lengths_N2 / limit_2
    free_R2 = np.empty((len(lengths_N2), 2))
    rows: Rows = []
    for index in np.argsort(-share_N2.max(1), kind="stable"):
        left_R2 = free_R2[: len(rows)] - share_N2[index]
        room_R = np.where((left_R2 >= -1e-12).all(1), left_R2.sum(1), np.inf)
        if rows and np.isfinite(room_R).any():
            best = int(room_R.argmin())
            rows[best].append(int(index))
        else:
            best = len(rows)
            rows.append([int(index)])
            free_R2[best] = 1.0
        free_R2[best] -= share_N2[index]
    return rows


class PackedSteps:
    """The lines of each optimizer step, as packs, numbered without end; a pure function of seed and number.

    An epoch's last step is filled up with the epoch's first packs.

    Args:
        lengths_N2: ids of source and target of each line.
        capacity: of a pack.
        rows: packs of a step.
        seed: of the order.
    """

    def __init__(self, lengths_N2: Lengths, capacity: Capacity, rows: int, seed: int) -> None:
        self.lengths_N2, self.capacity, self.rows, self.seed = lengths_N2, capacity, rows, seed
        self._start_epoch(0, 0)

    def __getitem__(self, number: int) -> Rows:
        """Return the packs of step ``number``; epochs follow one another."""
        if number < self._first:
            self._start_epoch(0, 0)
        while number >= self._first + len(self._current):
            self._start_epoch(self._epoch + 1, self._first + len(self._current))
        return self._current[number - self._first]

    def _start_epoch(self, epoch: int, first: int) -> None:
        self._epoch, self._first, self._current = epoch, first, self.epoch(epoch)

    def epoch(self, epoch: int) -> list[Rows]:
        """Return all steps of an epoch."""
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.lengths_N2)))
        rng.shuffle(order)
        packs: Rows = []
        for first in range(0, len(order), WINDOW):
            window = order[first : first + WINDOW]
            packs += [[window[i] for i in row] for row in pack_lines(self.lengths_N2[window], self.capacity)]
        rng.shuffle(packs)
        rows = min(self.rows, len(packs))
        packs += packs[: -len(packs) % rows]
        return [packs[first : first + rows] for first in range(0, len(packs), rows)]


def lay_out(lengths_N2: Lengths, packs: Rows, layout: Layout, device: str = "cpu") -> list[Rows]:
    """Lay the lines of a step out in rectangles.

    Args:
        lengths_N2: ids of source and target of the step's lines, in the order of the packs.
        packs: rows of indices into ``lengths_N2``.
        layout: see the module.
        device: where they are computed, ``cpu`` or ``cuda``: what a further rectangle costs depends on it.
    """
    if layout == "pack":
        return [packs]
    lines = [[index] for row in packs for index in row]
    return [lines] if layout == "off" else _buckets(lengths_N2, COSTS.get(device, COSTS["cuda"]))


def _buckets(lengths_N2: Lengths, costs: Costs) -> list[Rows]:
    """Cut lines, sorted by length, where ids, attention and calls together cost least (dynamic programming)."""
    order = np.argsort(lengths_N2.sum(1), kind="stable")
    sorted_N2 = lengths_N2[order]
    count = len(order)
    cost, cut = np.zeros(count + 1), np.zeros(count + 1, dtype=int)
    for end in range(1, count + 1):
        # for every start, the longest source and target among start … end - 1
        longest_S2 = np.maximum.accumulate(sorted_N2[:end][::-1], axis=0)[::-1]
        row_S = longest_S2.sum(1) + _pairs(longest_S2) / costs.pairs_per_id
        costs_S = cost[:end] + row_S * np.arange(end, 0, -1) + costs.call
        cut[end] = int(costs_S.argmin())
        cost[end] = costs_S[cut[end]]
    rectangles: list[Rows] = []
    end = count
    while end:
        rectangles.append([[int(i)] for i in order[cut[end] : end]])
        end = int(cut[end])
    return rectangles


def _pairs(lengths_N2: Lengths) -> npt.NDArray[np.float64]:
    """Return the pairs (N,) that attention in encoder and decoder and from decoder to encoder computes."""
    source_N, target_N = lengths_N2.T.astype(float)
    return np.asarray(source_N**2 + target_N**2 + source_N * target_N)


def cost(lengths_N2: Lengths, rectangles: list[Rows], costs: Costs, capacity: Capacity | None = None) -> float:
    """Return what rectangles cost, in ids computed; rows have the given capacity, or their rectangle's longest."""
    total = 0.0
    for rows in rectangles:
        widths_R2 = np.array([lengths_N2[row].sum(0) for row in rows])
        row_12 = np.array([[capacity.source, capacity.target]]) if capacity else widths_R2.max(0, keepdims=True)
        kept = capacity is not None and costs.skips
        pairs = _pairs(lengths_N2[[i for row in rows for i in row]]).sum() if kept else len(rows) * _pairs(row_12)[0]
        total += costs.call + len(rows) * float(row_12.sum()) + float(pairs) / costs.pairs_per_id
    return total


def padded_ids(lengths_N2: Lengths, rectangles: list[Rows], capacity: Capacity | None = None) -> int:
    """Count the ids that are computed, padding included; rows have the given capacity, or their rectangle's longest."""
    total = 0
    for rows in rectangles:
        widths_R2 = np.array([lengths_N2[row].sum(0) for row in rows])
        total += len(rows) * (capacity.ids if capacity else int(widths_R2.max(0).sum()))
    return total


@dataclass(frozen=True)
class PackingStatistics:
    """What packing can give, counted over some steps before training.

    The bounds are padded ids of a baseline over ids of the packed rows: packing is at most so much faster.

    Attributes:
        capacity: of a row.
        rows: of a step.
        lines: per step, mean.
        fill: real ids over ids of the packed rows.
        mean_over_max: mean length over the longest, 1 where all are equal.
        against_longest_of_all, against_longest, against_buckets: bounds against lines padded to the longest of all,
            to the longest of their step, and in buckets of like length.
        cheaper_than_buckets: what buckets cost over what packed rows cost, by the device's `Costs`.
    """

    capacity: Capacity
    rows: int
    lines: float
    fill: float
    mean_over_max: float
    against_longest_of_all: float
    against_longest: float
    against_buckets: float
    cheaper_than_buckets: float

    @classmethod
    def of(cls, steps: PackedSteps, device: str = "cpu", count: int = 32) -> "PackingStatistics":
        """Count over the first ``count`` steps."""
        lengths_N2, costs = steps.lengths_N2, COSTS.get(device, COSTS["cuda"])
        longest = int(lengths_N2.max(0).sum())
        lines = real = packed = of_all = of_step = of_buckets = 0
        cost_of_packs = cost_of_buckets = 0.0
        for number in range(count):
            own_L2, packs = own_lengths(lengths_N2, steps[number])
            buckets = lay_out(own_L2, packs, "bucket", device)
            lines += len(own_L2)
            real += int(own_L2.sum())
            packed += len(packs) * steps.capacity.ids
            of_all += len(own_L2) * longest
            of_step += padded_ids(own_L2, lay_out(own_L2, packs, "off"))
            of_buckets += padded_ids(own_L2, buckets)
            cost_of_packs += cost(own_L2, [packs], costs, steps.capacity)
            cost_of_buckets += cost(own_L2, buckets, costs)
        mean = float(lengths_N2.sum(1).mean()) / int(lengths_N2.sum(1).max())
        ratios = (of_all / packed, of_step / packed, of_buckets / packed, cost_of_buckets / cost_of_packs)
        return cls(steps.capacity, steps.rows, lines / count, real / packed, mean, *ratios)

    def __str__(self) -> str:
        return (
            f"packing: {self.lines:.0f} lines a step in {self.rows} rows of {self.capacity.source} + "
            f"{self.capacity.target} ids, fill {100 * self.fill:.0f} %, mean / longest {self.mean_over_max:.2f}; "
            f"at most {self.against_longest_of_all:.2f} x faster than padding to the longest of all, "
            f"{self.against_longest:.2f} x than to the longest of a step, {self.against_buckets:.2f} x than buckets"
        )


def own_lengths(lengths_N2: Lengths, packs: Rows) -> tuple[Lengths, Rows]:
    """Return the lengths of a step's lines in the order of its packs, and the packs as indices into them."""
    counter = itertools.count()
    own_packs = [[next(counter) for _ in row] for row in packs]
    return lengths_N2[[index for row in packs for index in row]], own_packs


def choose_layout(asked: Layout | Literal["auto"], statistics: PackingStatistics, device: str) -> tuple[Layout, str]:
    """Decide what ``auto`` becomes, and why: packed rows where they are so much cheaper than buckets that it pays.

    Fewer padded ids alone do not tell: a dense mask makes attention compute what it hides, and every bucket is a
    further call of the network.
    """
    if asked != "auto":
        return asked, ""
    gain, least = statistics.cheaper_than_buckets, COSTS.get(device, COSTS["cuda"]).worth_packing
    layout: Layout = "pack" if gain > least else "bucket"
    return layout, f"auto: packed rows should be {gain:.2f} x as fast as buckets here, {least:.2f} is asked for"


def as_lengths(pairs: Sequence[tuple[int, int]]) -> Lengths:
    """Return (source, target) lengths as an array (N, 2)."""
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
