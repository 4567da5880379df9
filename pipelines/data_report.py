"""What `dubsar data` prints: defects of a data set, and where public data can be fetched."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from dubsar.datasets.check import check_data
from dubsar.datasets.sources import SOURCES, data_root

_UNFOLDED = 10_000


def report_defects(root: Path | None) -> int:
    """Print every finding with file and line, then their counts; return the number of errors."""
    issues = check_data(root or data_root())
    for issue in issues:
        print(issue)
    counts = Counter(i.severity for i in issues)
    print("  ".join(f"{counts[s]} {s}s" for s in ("error", "warning", "note")))
    return counts["error"]


def list_sources() -> None:
    """Print name, licence, use and address of each public source."""
    table = Table("source", "licence", "for", Column("address and checksum", overflow="fold"))
    for source in SOURCES:
        table.add_row(
            source.name,
            source.licence,
            source.use,
            "\n".join(filter(None, (source.address, source.sha256, source.note))),
        )
    console = Console()
    if not console.is_terminal:  # in a pipe no address may be folded
        console.width = console.measure(table, options=console.options.update(max_width=_UNFOLDED)).maximum
    console.print(table)
