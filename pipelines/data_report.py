"""What `dubsar data` prints: defects of a data set, and where public data can be fetched."""

from collections import Counter
from pathlib import Path

from rich.table import Table

from dubsar.datasets.check import check_data
from dubsar.datasets.sources import SOURCES, data_root
from dubsar.pipelines.console import print_table


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
    table = Table("source", "licence", "for", "address and checksum")
    for source in SOURCES:
        table.add_row(
            source.name,
            source.licence,
            source.use,
            "\n".join(filter(None, (source.address, source.sha256, source.note))),
        )
    print_table(table)
