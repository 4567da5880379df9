"""Print scores and tables so that nothing is cut off."""

from rich.console import Console
from rich.table import Table

_UNFOLDED = 10_000  # columns


def cell(name: str, value: float) -> str:
    """Write a score with two decimals, and a probability of error (``p``), which is no percentage, with four."""
    return f"{value:.{4 if name == 'p' else 2}f}"


def print_table(table: Table) -> None:
    """Print a table: as wide as it needs in a pipe, where a program may read it; folded to fit on a terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=_UNFOLDED)).maximum
    for column in table.columns:
        column.overflow = "fold"
    console.print(table)
