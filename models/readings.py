"""How often each sign is read how, between which neighbours: counts that a small transliterator leans on.

A network that has seen each line twice knows less of a rare sign than a plain count does. The table gives each piece
of text a probability from the sign alone, and sharpens it by the sign after, the sign before, and both, each level
backing off to the last (``(count + K * backed off) / (total + K)``). `Trie` turns it into probabilities of the next
byte, so that a decoder can add them to its own (shallow fusion).
"""

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch

_K = 2.0
_LEAST = 1e-5  # pieces below this probability are left out of the trie
_EDGE = "|"  # stands before the first sign and after the last
Trie = dict[tuple[int, ...], dict[int, float]]


class ReadingCounts:
    """Counts of pieces by language and context.

    Args:
        counts: key (language, sign) with "before", "after" or both neighbours, to counts of pieces.
    """

    def __init__(self, counts: dict[str, Counter[str]] | None = None) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter, counts or {})
        self._tries: dict[str, Trie | None] = {}

    def add(self, signs: Sequence[str], pieces: Sequence[str], language: str) -> None:
        """Count one line whose signs and pieces are aligned."""
        row = [_EDGE, *signs, _EDGE]
        for before, sign, after, piece in zip(row, row[1:], row[2:], pieces, strict=False):
            for key in _keys(language, before, sign, after):
                self.counts[key][piece] += 1

    def pruned(self) -> "ReadingCounts":
        """Leave out contexts that were seen once: they are most of the table and say least."""
        kept = {k: c for k, c in self.counts.items() if len(k.split("\t")) == 2 or c.total() > 1}
        return ReadingCounts(kept)

    def distribution(self, language: str, before: str, sign: str, after: str) -> dict[str, float]:
        """Return the probability of each piece seen for the sign; empty for a sign never seen."""
        alone, *contexts = _keys(language, before, sign, after)
        seen = self.counts.get(alone)
        if not seen:
            return {}
        total = seen.total()
        shares = {piece: count / total for piece, count in seen.items()}
        for key in contexts:
            if found := self.counts.get(key):
                weight = found.total() + _K
                shares = {piece: (found.get(piece, 0) + _K * share) / weight for piece, share in shares.items()}
        return shares

    def tries(self, signs: Sequence[str], language: str, offset: int, boundary: int) -> list[Trie | None]:
        """Return for each sign the log probability of the next id given those of its piece so far.

        Args:
            signs: of one line.
            language: three letters.
            offset: id of byte 0.
            boundary: id that ends a piece.
        """
        row = [_EDGE, *signs, _EDGE]
        found = []
        for context in zip(row, row[1:], row[2:], strict=False):
            key = "\t".join((language, *context))
            if key not in self._tries:
                self._tries[key] = _trie(self.distribution(language, *context), offset, boundary)
            found.append(self._tries[key])
        return found

    def to_tensor(self) -> torch.Tensor:
        """Return the table as one uint8 tensor (compressed JSON), to be kept with the weights."""
        data = gzip.compress(json.dumps(self.counts, ensure_ascii=False, separators=(",", ":")).encode(), mtime=0)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, data: torch.Tensor) -> "ReadingCounts":
        """Read what `to_tensor` wrote."""
        counts = json.loads(gzip.decompress(data.numpy().tobytes()))
        return cls({key: Counter(pieces) for key, pieces in counts.items()})

    @classmethod
    def of(cls, lines: Iterable[tuple[Sequence[str], Sequence[str], str]]) -> "ReadingCounts":
        """Count lines of (signs, pieces, language)."""
        table = cls()
        for signs, pieces, language in lines:
            table.add(signs, pieces, language)
        return table


def _keys(language: str, before: str, sign: str, after: str) -> tuple[str, str, str, str]:
    """Return the keys from the sign alone to both neighbours."""
    return (
        f"{language}\t{sign}",
        f"{language}\t\t{sign}\t{after}",
        f"{language}\t{before}\t{sign}\t",
        f"{language}\t{before}\t{sign}\t{after}",
    )


def _trie(shares: dict[str, float], offset: int, boundary: int) -> Trie | None:
    if not shares:
        return None
    sums: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for piece, share in shares.items():
        if share >= _LEAST:
            prefix: tuple[int, ...] = ()
            for token in (*(b + offset for b in piece.encode()), boundary):
                sums[prefix][token] += share
                prefix = (*prefix, token)
    return {
        prefix: {token: math.log(share / sum(following.values())) for token, share in following.items()}
        for prefix, following in sums.items()
    }
