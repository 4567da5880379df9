"""The stream of training batches: endless, and each batch a pure function of the seed and its number.

So a resumed run goes on with the batch that the unbroken run would have seen, the same batches come whatever the number
of data-loader workers, and ranks share the stream out among themselves.
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

Batch = dict[str, torch.Tensor]


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

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches from ``start`` on; of several workers each makes its own, in turn."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for own in itertools.count(self.start + first, step):
            yield self.batch(own * self.ranks + self.rank)
