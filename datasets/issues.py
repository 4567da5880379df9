"""What a reader or a check found wrong: where, what, and how bad."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Issue:
    """One finding in a data file.

    Attributes:
        path: the file.
        line: line in it, counted from 1; 0 where the whole file is meant.
        message: what was found and what was expected.
        severity: ``error`` spoils training or scores, ``warning`` costs data, ``note`` is worth knowing.
    """

    path: Path
    line: int
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.severity}: {self.message}"
