"""Laying lines out: every line once, no row too long, the same steps for every layout, and bounds that hold."""

import numpy as np
import pytest

from dubsar.datasets.packing import (
    COSTS,
    Capacity,
    Lengths,
    PackedSteps,
    PackingStatistics,
    as_lengths,
    choose_layout,
    cost,
    lay_out,
    own_lengths,
    pack_lines,
    padded_ids,
)


def draw(count: int, seed: int = 0, *, spread: float = 0.6) -> Lengths:
    rng = np.random.default_rng(seed)
    source = np.clip(np.exp(rng.normal(3.5, spread, count)), 4, 180).astype(np.int64)
    target = np.clip(source * rng.uniform(1.1, 2.0, count), 3, 300).astype(np.int64)
    return np.stack((source, target), 1)


def test_the_worked_example_of_the_docstring() -> None:
    assert pack_lines(as_lengths([(3, 5), (2, 2), (5, 6)]), Capacity(6, 8)) == [[2], [0, 1]]


@pytest.mark.parametrize("seed", range(5))
def test_each_line_is_in_one_row_and_no_row_is_too_long(seed: int) -> None:
    lengths = draw(500, seed)
    capacity = Capacity.of(lengths)
    rows = pack_lines(lengths, capacity)
    assert sorted(i for row in rows for i in row) == list(range(500))
    widths = np.array([lengths[row].sum(0) for row in rows])
    assert (widths <= [capacity.source, capacity.target]).all()
    lower = max(-(-int(lengths[:, 0].sum()) // capacity.source), -(-int(lengths[:, 1].sum()) // capacity.target))
    assert len(rows) <= 1.1 * lower + 1


def test_a_line_that_just_fits_is_no_trouble_and_one_that_does_not_is_named() -> None:
    lengths = as_lengths([(64, 64), (32, 32), (32, 32)])
    assert sorted(map(sorted, pack_lines(lengths, Capacity(64, 64)))) == [[0], [1, 2]]
    with pytest.raises(ValueError, match=r"line 1 has \(65, 2\) source and target ids, but a row holds 64 and 64"):
        pack_lines(as_lengths([(1, 1), (65, 2)]), Capacity(64, 64))
    assert pack_lines(as_lengths([]), Capacity(64, 64)) == []


def test_a_capacity_is_a_multiple_of_64() -> None:
    assert Capacity.of(as_lengths([(1, 65), (64, 2)])) == Capacity(64, 128)
    assert Capacity(64, 128).ids == 192


def test_steps_are_a_pure_function_of_seed_and_number_and_an_epoch_has_every_line() -> None:
    lengths = draw(300)
    steps = PackedSteps(lengths, Capacity.of(lengths), 7, seed=3)
    epoch = steps.epoch(0)
    assert {len(packs) for packs in epoch} == {7}  # a step's shape never changes
    assert {i for packs in epoch for row in packs for i in row} == set(range(300))
    later = [steps[n] for n in range(2 * len(epoch))]
    assert later[: len(epoch)] == epoch
    assert later[len(epoch) :] == steps.epoch(1) != epoch
    again = PackedSteps(lengths, Capacity.of(lengths), 7, seed=3)
    assert again[len(epoch) + 1] == later[len(epoch) + 1]
    assert again[0] == later[0]
    assert PackedSteps(lengths, Capacity.of(lengths), 7, seed=4)[0] != later[0]


def test_a_set_smaller_than_a_step_is_one_step_without_repeats() -> None:
    lengths = as_lengths([(10, 10), (60, 60)])
    assert sorted(i for row in PackedSteps(lengths, Capacity(64, 64), 9, seed=0)[5] for i in row) == [0, 1]


def test_every_layout_holds_the_same_lines() -> None:
    lengths = draw(400)
    steps = PackedSteps(lengths, Capacity.of(lengths), 8, seed=0)
    own, packs = own_lengths(lengths, steps[0])
    assert own.tolist() == [lengths[i].tolist() for row in steps[0] for i in row]
    wanted = list(range(len(own)))
    for layout in ("off", "bucket", "pack"):
        rectangles = lay_out(own, packs, layout)
        assert sorted(i for rows in rectangles for row in rows for i in row) == wanted
    assert [len(r) for r in lay_out(own, packs, "off")] == [len(own)]
    assert lay_out(own, packs, "pack") == [packs]


def test_buckets_are_cut_where_it_costs_least() -> None:
    lengths = as_lengths([(100, 100), (1, 1), (2, 1), (99, 100), *[(100, 100)] * 4])
    packs = [[i] for i in range(8)]
    long = [0, *range(3, 8)]
    every_cut = ([[*range(8)]], [[1], [2, *long]], [[1, 2], long], [[1, 2, 3], [0, 4, 5, 6, 7]], [[1], [2], long])
    for device, cut in (("cpu", 2), ("cuda", 1)):  # there a call costs more than this padding
        rectangles = lay_out(lengths, packs, "bucket", device)
        assert len(rectangles) == cut
        costs = [cost(lengths, [[[i] for i in part] for part in parts], COSTS[device]) for parts in every_cut]
        assert cost(lengths, rectangles, COSTS[device]) == pytest.approx(min(costs))
    assert [sorted(row[0] for row in rows) for rows in lay_out(lengths, packs, "bucket")] == [long, [1, 2]]


def test_a_cost_counts_calls_ids_and_pairs() -> None:
    lengths = as_lengths([(3, 5), (2, 2), (5, 6)])
    costs = COSTS["cpu"]
    pairs = 25 + 36 + 30
    assert cost(lengths, [[[0], [1], [2]]], costs) == pytest.approx(180 + 3 * 11 + 3 * pairs / 3200)
    packs = [[2], [0, 1]]
    dense = 36 + 64 + 48
    assert cost(lengths, [packs], costs, Capacity(6, 8)) == pytest.approx(180 + 2 * 14 + 2 * dense / 3200)
    shown = (9 + 25 + 15) + (4 + 4 + 4) + pairs  # where masked pairs are skipped
    assert cost(lengths, [packs], COSTS["cuda"], Capacity(6, 8)) == pytest.approx(2048 + 2 * 14 + shown / 20_000)


def test_padding_is_counted_by_the_longest_or_by_the_capacity() -> None:
    lengths = as_lengths([(3, 5), (2, 2), (5, 6)])
    assert padded_ids(lengths, [[[0], [1], [2]]]) == 3 * 11
    assert padded_ids(lengths, [[[2], [0, 1]]]) == 2 * (5 + 7)
    assert padded_ids(lengths, [[[2], [0, 1]]], Capacity(6, 8)) == 2 * 14


def test_bounds_fill_and_the_choice_between_layouts() -> None:
    lengths = draw(600, spread=0.8)
    steps = PackedSteps(lengths, Capacity.of(lengths), 16, seed=0)
    found = PackingStatistics.of(steps, "cuda")
    assert 0.8 < found.fill <= 1
    assert found.against_longest_of_all >= found.against_longest >= found.against_buckets > 1
    assert f"{100 * found.fill:.0f} %" in str(found)
    assert choose_layout("auto", found, "cuda")[0] == "pack"
    assert choose_layout("off", found, "cuda") == ("off", "")
    alike = as_lengths([(64, 128)] * 60)
    uniform = PackingStatistics.of(PackedSteps(alike, Capacity.of(alike), 4, seed=0), "cuda")
    assert (uniform.fill, uniform.against_longest, uniform.against_buckets) == (1, 1, 1)
    layout, why = choose_layout("auto", uniform, "cuda")
    assert layout == "bucket"
    assert why.startswith("auto: packed rows should be 1.00 x as fast as buckets here")


def test_on_a_cpu_rows_that_are_long_beside_their_lines_are_not_packed() -> None:
    """A dense mask hides most pairs of such a row, and all of them are computed."""
    rng = np.random.default_rng(0)
    short = np.stack((rng.integers(10, 40, 4000), rng.integers(10, 60, 4000)), 1)
    chosen = {}
    for rows, longest in ((8, 64), (2, 1024)):
        lengths = np.concatenate((short, as_lengths([(longest, longest)])))
        steps = PackedSteps(lengths, Capacity.of(lengths), rows, seed=0)
        chosen[longest] = choose_layout("auto", PackingStatistics.of(steps, "cpu"), "cpu")[0]
    assert chosen == {64: "pack", 1024: "bucket"}
