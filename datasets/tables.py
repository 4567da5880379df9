"""Tab-separated tables without quoting, read so that text stays text (a sign may be called NA or NULL).

Lines are split at tabs, which is what the csv module does without quoting, but without its limit on the size of a cell.
"""

from dataclasses import dataclass
from pathlib import Path

from dubsar.datasets.issues import Issue


@dataclass(frozen=True)
class Row:
    """One row of a table: its line in the file, counted from 1, and its cells by column name."""

    line: int
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]


def read_rows(path: Path, columns: tuple[str, ...], *, issues: list[Issue] | None = None) -> list[Row]:
    """Read a table.

    Args:
        path: UTF-8, tab-separated, one header line; a quote character is an ordinary character.
        columns: names that the header must hold; further columns are kept.
        issues: where given, a bad row is listed there and left out instead of raised.

    Returns:
        The rows in file order; every cell is a string, empty where the cell is empty.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: with file and line: not UTF-8, a column is absent, or a row has too few or too many cells.
    """
    found: list[Issue] = []
    rows = _parse(path, columns, found)
    if issues is None and found:
        raise ValueError(f"{found[0].path}:{found[0].line}: {found[0].message}")
    if issues is not None:
        issues.extend(found)
    return rows


def _parse(path: Path, columns: tuple[str, ...], found: list[Issue]) -> list[Row]:
    rows: list[Row] = []
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        header = file.readline().rstrip("\n").split("\t")
        missing = [c for c in columns if c not in header]
        if missing:
            found.append(
                Issue(path, 1, f"the header lacks {', '.join(missing)}; found {', '.join(header) or 'nothing'}")
            )
            return []
        for line, text in enumerate(file, start=2):
            if text == "\n":
                continue
            cells = text.rstrip("\n").split("\t")
            if len(cells) != len(header):
                found.append(Issue(path, line, f"{len(cells)} cells, expected {len(header)} as in the header"))
            elif any("\udc80" <= c <= "\udcff" for c in text):
                found.append(Issue(path, line, "bytes that are not UTF-8; save the table as UTF-8"))
            else:
                rows.append(Row(line, dict(zip(header, cells, strict=True))))
    return rows
