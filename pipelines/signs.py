"""The labelled signs that a config names."""

from pathlib import Path

from dubsar.configs.schema import ClassifyData
from dubsar.datasets.signs import SignSource
from dubsar.datasets.sources import data_root


def open_signs(data: ClassifyData, root: Path | None = None) -> SignSource:
    """Return the data set that a config names.

    Args:
        data: the stage's data block.
        root: data folder that holds ``tablet-signs/`` and ``sign-list/``; `data_root()` where None. ``data.root`` comes
            before it.
    """
    shared = root or data_root()
    own = Path(data.root) if data.root else shared
    more = Path(data.more_signs) if data.more_signs else None
    return SignSource(own, data.source, data.catalogue, shared, data.tablet_pattern, more)
