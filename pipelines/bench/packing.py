"""How many real ids a second does each layout of transliteration's optimizer steps train on?

The steps are the same lines whatever the layout, of the lengths that the lines of Oracc's training split have.
"""

from functools import partial
from typing import Any

from dubsar.datasets.packing import PackingStatistics, choose_layout
from dubsar.pipelines.bench.measure import Arm, Comparison, Effort, Measured, Samples, compare, interleave, timings
from dubsar.pipelines.bench.stage import PlainLoop, build_small, small_config

OFF, BUCKET, PACK, AUTO = "off", "bucket", "pack", "auto"
SHARE_OF_BOUND = 0.9
MOST_BEHIND = 0.03  # of `auto` behind the best layout


def bench_packing(effort: Effort) -> list[Measured]:
    """Time training steps in every layout, and in the one that ``auto`` chooses here."""
    overrides = ("data.sources=[oracc]", "efficiency.packing=off", "trainer.accelerator=cpu")
    small = build_small(small_config("transliterate", effort, *overrides))
    stream: Any = small.stream
    statistics = PackingStatistics.of(stream.steps, "cpu", effort.rounds)
    chosen, why = choose_layout("auto", statistics, "cpu")
    layouts = {OFF: OFF, BUCKET: BUCKET, PACK: PACK, AUTO: chosen}
    batches = {layout: _batches(stream, layout, effort.rounds) for layout in (OFF, BUCKET, PACK)}
    ids_R = [sum(map(_real_ids, rectangles)) for rectangles in batches[OFF]]
    loop = PlainLoop(small)
    arms = [Arm(arm, partial(_step, loop, batches[layout]), ids_R.__getitem__) for arm, layout in layouts.items()]
    samples = interleave(arms, effort)
    found = timings(samples)
    rates = ", ".join(f"{t.arm} {1 / t.median:,.0f}" for t in found)
    notes = (str(statistics), f"auto is {chosen} ({why})", f"real ids a second: {rates}")
    return [Measured("transliterate", "real id", found, _comparisons(samples, statistics), notes)]


def _step(loop: PlainLoop, batches: list[Any], number: int) -> None:
    loop.step(batches[number], number)


def _batches(stream: Any, layout: str, rounds: int) -> list[Any]:
    stream.layout = layout
    return [stream.batch(number) for number in range(rounds)]


def _real_ids(rectangle: dict[str, Any]) -> int:
    """Count source ids and targets, padding left out."""
    return int(rectangle["mask_BL"].sum()) + int((rectangle["target_BT"] >= 0).sum())


def _comparisons(samples: Samples, statistics: PackingStatistics) -> list[Comparison]:
    best = min((t for t in timings(samples) if t.arm != AUTO), key=lambda t: t.median).arm
    bound = statistics.against_longest
    return [
        compare(samples, OFF, PACK, bound=bound, required=SHARE_OF_BOUND * bound),
        compare(samples, BUCKET, PACK, bound=statistics.against_buckets),
        compare(samples, OFF, BUCKET),
        compare(samples, best, AUTO, required=1 / (1 + MOST_BEHIND)),
    ]
