"""Show how far a long loop is: a bar where somebody watches, else a line now and then for the log."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY_SECONDS = 30.0
Item = TypeVar("Item")


def watched(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield items, and say on standard error how many are done and the seconds to go.

    Args:
        items: what the loop goes over; a single one needs no bar.
        label: what is done to them, such as ``reading``.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from _logged(items, label)
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # what the loop prints is its result: it goes above the bar on a terminal, and to the file where it is sent to one
    watched_too = sys.stdout.isatty()
    quiet = len(items) < 2
    bar = Progress(*columns, console=console, disable=quiet, redirect_stdout=watched_too, redirect_stderr=False)
    with bar as progress:
        task = progress.add_task("", total=len(items))
        for item in items:
            yield item
            progress.advance(task)


def _logged(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield items, and print a line after one of them where the last line is `EVERY_SECONDS` old."""
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= EVERY_SECONDS and done < len(items):
            last = now
            left = (now - started) / done * (len(items) - done)
            print(f"{label} {done}/{len(items)}  {left:.0f} s to go", file=sys.stderr, flush=True)
