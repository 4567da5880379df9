"""The stream of training batches: endless, and each batch a pure function of the seed and its number.

So a resumed run goes on with the batch that the unbroken run would have seen, the same batches come whatever the number
of data-loader workers, and ranks share the stream out among themselves.
"""

import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

Batch = dict[str, torch.Tensor] | list[dict[str, torch.Tensor]]


class Stream(IterableDataset[Batch]):
    """Base of the stages' streams.

    Attributes:
        start: batches that this rank has used before this iteration starts.
        rank: which of the ``ranks`` processes this is.
    """

    start = 0
    rank, ranks = 0, 1

    @abstractmethod
    def batch(self, number: int) -> Batch:
        """Return batch ``number``; the same for the same number, whatever was drawn before."""

    @abstractmethod
    def epoch_batches(self) -> int:
        """Return how many batches make an epoch, at least 1."""

    def counts(self) -> dict[str, int]:
        """Count what the training set holds, such as its crops of each class; nothing to count where empty."""
        return {}

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches from ``start`` on; of several workers each makes its own, in turn."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for own in itertools.count(self.start + first, step):
            yield self.batch(own * self.ranks + self.rank)


def count_names(classes_N: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    """Count class ids (N,) by the class's name, most frequent first; classes of one name are counted together."""
    return dict(Counter(names[c] for c in classes_N.tolist()).most_common())
