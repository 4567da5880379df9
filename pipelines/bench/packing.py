"""How many real ids a second does each layout of transliteration's optimizer steps train on?

The steps are the same lines whatever the layout, of the lengths that the lines of Oracc's training split have. How
much packing can give differs from step to step, since one long line pads all others; so what it reaches of its bound is
taken step by step: the time per id that is computed, padding included, of padded lines over that of packed rows.
"""

from functools import partial
from typing import Any

from dubsar.datasets.packing import PackingStatistics, choose_layout
from dubsar.pipelines.bench.measure import (
    Arm,
    Comparison,
    Effort,
    Measured,
    Samples,
    compare,
    interleave,
    speed_up,
    timings,
)
from dubsar.pipelines.bench.stage import PlainLoop, build_small, small_config

OFF, BUCKET, PACK, AUTO = "off", "bucket", "pack", "auto"
PER_COMPUTED = ", per computed id"
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
    computed = {
        layout: [sum(map(_computed_ids, rectangles)) for rectangles in steps] for layout, steps in batches.items()
    }
    return [Measured("transliterate", "real id", found, _comparisons(samples, ids_R, computed), notes)]


def _step(loop: PlainLoop, batches: list[Any], number: int) -> None:
    loop.step(batches[number], number)


def _batches(stream: Any, layout: str, rounds: int) -> list[Any]:
    stream.layout = layout
    return [stream.batch(number) for number in range(rounds)]


def _real_ids(rectangle: dict[str, Any]) -> int:
    """Count source ids and targets, padding left out."""
    return int(rectangle["mask_BL"].sum()) + int((rectangle["target_BT"] >= 0).sum())


def _computed_ids(rectangle: dict[str, Any]) -> int:
    """Count source and decoder ids, padding included."""
    return int(rectangle["source_BL"].numel() + rectangle["decoder_BT"].numel())


def _comparisons(samples: Samples, real: list[int], computed: dict[str, list[int]]) -> list[Comparison]:
    """Compare the layouts; bounds are estimated from the ids of the same steps in the way that the speeds are."""
    best = min((t for t in timings(samples) if t.arm != AUTO), key=lambda t: t.median).arm
    bound = {layout: speed_up(computed[layout], computed[PACK]).value for layout in (OFF, BUCKET)}
    per_computed = {
        f"{layout}{PER_COMPUTED}": [s * r / c for s, r, c in zip(samples[layout], real, computed[layout], strict=True)]
        for layout in (OFF, PACK)
    }
    return [
        compare(samples, OFF, PACK, bound=bound[OFF]),
        compare(per_computed, OFF + PER_COMPUTED, PACK + PER_COMPUTED, bound=1.0, required=SHARE_OF_BOUND),
        compare(samples, BUCKET, PACK, bound=bound[BUCKET]),
        compare(samples, OFF, BUCKET),
        compare(samples, best, AUTO, required=1 / (1 + MOST_BEHIND)),
    ]
