"""Counts of readings in context: backing off, byte tries, and the way to and from a tensor."""

import math

import pytest

from dubsar.models.readings import ReadingCounts

LINES = [
    ("𒀭𒌨", ["{d}", "taš"], "akk"),
    ("𒀭𒈨", ["an", "-me"], "akk"),
    ("𒀭𒌨", ["{d}", "taš"], "akk"),
]


def test_context_sharpens_and_sums_to_one() -> None:
    table = ReadingCounts.of(LINES)
    alone = table.distribution("akk", "?", "𒀭", "?")
    assert alone == pytest.approx({"{d}": 2 / 3, "an": 1 / 3})
    before_ur = table.distribution("akk", "|", "𒀭", "𒌨")
    assert before_ur["{d}"] > alone["{d}"]
    assert sum(before_ur.values()) == pytest.approx(1)


def test_an_unknown_sign_or_language_has_no_reading() -> None:
    table = ReadingCounts.of(LINES)
    assert table.distribution("akk", "|", "𒁹", "|") == {}
    assert table.tries("𒀭", "hit", 3, 259) == [None]


def test_tries_spell_the_pieces() -> None:
    (trie,) = ReadingCounts.of(LINES).tries("𒈨", "akk", 3, 259)
    assert trie is not None
    path = [b + 3 for b in b"-me"]
    assert [trie[tuple(path[:i])] for i in range(3)] == [{token: 0.0} for token in path]
    assert trie[tuple(path)] == {259: 0.0}
    (an,) = ReadingCounts.of(LINES).tries("𒀭", "akk", 3, 259)
    assert an is not None
    assert sum(math.exp(p) for p in an[()].values()) == pytest.approx(1)


def test_table_survives_the_tensor_and_pruning_keeps_single_signs() -> None:
    table = ReadingCounts.of(LINES)
    assert ReadingCounts.from_tensor(table.to_tensor()).counts == table.counts
    pruned = table.pruned()
    assert "akk\t𒈨" in pruned.counts
    assert "akk\t𒀭\t𒈨\t|" not in pruned.counts
    assert "akk\t|\t𒀭\t𒌨" in pruned.counts
