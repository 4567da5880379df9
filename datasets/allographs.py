"""Which classes of an inventory are one sign to a coarser eye: one MZL number, or one shape in Neo-Assyrian.

The inventory keeps apart what Unicode keeps apart. MZL files some of that under one number (TIL and IDIM, 113b), and
Neo-Assyrian scribes wrote some signs with different numbers alike (KU, TUG₂, ZI₃, EŠ₂; GAR and the numeral 4): no
picture of one sign tells those apart, only its neighbours do. A confusion within such a group is no fault of the eye.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dubsar.datasets.inventory import SEPARATOR, Inventory
from dubsar.datasets.tables import read_rows

Groups = npt.NDArray[np.int64]


def groups_by_number(inventory: Inventory) -> Groups:
    """Unite classes that share an MZL number; one without a number stands alone.

    Args:
        inventory: the classes.

    Returns:
        The group of each class (C,), counted from 0.
    """
    return _united(inventory, _numbers(inventory))


def groups_by_shape(inventory: Inventory, table: Path) -> Groups:
    """Unite classes that share an MZL number, or that the font Assyrian draws by one glyph.

    Args:
        inventory: the classes.
        table: ``assyrian_font.tsv`` of the sign list, which was made by looking at photographs.

    Returns:
        The group of each class (C,), counted from 0.

    Raises:
        FileNotFoundError: the table is absent.
        ValueError: it lacks a column; with file and line.
    """
    shapes: list[tuple[str, int]] = []
    for row in read_rows(table, ("glyph", "font_codepoint")):
        class_id = inventory.id_of_glyph.get(row["glyph"])
        if class_id is not None and row["font_codepoint"]:
            shapes.append((row["font_codepoint"], class_id))
    return _united(inventory, [*_numbers(inventory), *shapes])


def _numbers(inventory: Inventory) -> list[tuple[str, int]]:
    return [(number, i) for i, c in enumerate(inventory.classes) for number in c.mzl.split(SEPARATOR) if number]


def _united(inventory: Inventory, marks: Iterable[tuple[str, int]]) -> Groups:
    """Return groups (C,) of classes that a chain of common marks connects."""
    holders: dict[str, list[int]] = defaultdict(list)
    for mark, class_id in marks:
        holders[mark].append(class_id)
    pairs = np.array([(ids[0], other) for ids in holders.values() for other in ids[1:]]).reshape(-1, 2).astype(int)
    count = len(inventory)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
