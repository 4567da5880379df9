"""The labelled signs that a config names."""

from collections.abc import Sequence
from dataclasses import replace
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


def open_common_signs(asked: Sequence[tuple[Path, ClassifyData]]) -> SignSource:
    """Return the data set that several classifiers were trained on, as people labelled it.

    Args:
        asked: files of weights, one or more, each with the data block that it was trained by.

    Raises:
        ValueError: they name different data sets; `SignSource` tells by what data sets differ.
    """
    (first, _), *_ = asked
    found = [replace(open_signs(data), more=None) for _, data in asked]
    for (path, _), signs in zip(asked, found, strict=True):
        if signs != found[0]:
            raise ValueError(
                f"{path}: trained on the {signs.layout} signs in {signs.root}, but {first} on the {found[0].layout} "
                f"signs in {found[0].root}; what is compared or votes together must know one data set"
            )
    return found[0]
