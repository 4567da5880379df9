"""What `dubsar data labels` prints: the map HZL <-> MZL <-> Unicode, and what a data set's labels are in it."""

from collections import Counter
from pathlib import Path
from typing import Literal

from rich.table import Table

from dubsar.datasets.label_map import count_labels, map_labels, read_hzl_numbers, to_tsv, without_code_point
from dubsar.datasets.sign_list import read_sign_list
from dubsar.datasets.signs import SignSource
from dubsar.datasets.sources import data_root, require_outside_data
from dubsar.datasets.splits import SPLITS
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.console import print_table


def report_map(out: Path | None) -> None:
    """Print the map, and what of it is known; write it as a table with tabs on request.

    Raises:
        FileNotFoundError, ValueError: the sign list is absent or faulty, or ``out`` lies in the data folder.
    """
    root = data_root()
    if out is not None:
        require_outside_data(out, "--out")
    signs = read_sign_list(root)
    rows = map_labels(signs, read_hzl_numbers(root))
    table = Table("HZL", "as written", "doubt", "sign", "glyph", "code points", "MZL", "ABZ")
    for row in rows:
        table.add_row(row.hzl, row.written, row.doubt, row.sign_name, row.glyph, row.codepoints, row.mzl, row.abz)
    print_table(table)
    print("  ".join(f"{name}: {count}" for name, count in count_labels(rows, signs).items()))
    if out is not None:
        text = to_tsv(rows).encode()
        write_atomically(out, lambda file: file.write(text))
        print(f"{out}: {len(rows)} rows")


def report_data_set(root: Path, layout: Literal["folders", "coco"], catalogue: str, tablet_pattern: str) -> None:
    """Print what a data set of labels holds, what is left out or doubtful in it, and which labels have no code point.

    Raises:
        FileNotFoundError, ValueError: the data set or the sign list is absent or faulty.
    """
    source = SignSource(root, layout, catalogue, data_root(), tablet_pattern)
    inventory, notes = source.labels()
    signs, issues = source.listed()
    for line in [*map(str, issues), *notes]:
        print(line)
    lacking = without_code_point(inventory)
    print(f"{root}: {len(inventory)} labels, {len(lacking)} without a sure code point: {', '.join(lacking) or 'none'}")
    for split in SPLITS:
        counts = Counter(label for label, of_split in signs if of_split == split)
        print(f"{split}: {sum(counts.values())} signs of {len(counts)} labels")
