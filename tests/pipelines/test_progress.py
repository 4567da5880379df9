"""Progress: a bar on a terminal, a line now and then in a log, and nothing for what is quickly done."""

import io

import pytest
from rich.console import Console

from dubsar.pipelines.reading import progress
from dubsar.pipelines.reading.progress import watched


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed; a test moves them."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for item in watched(range(10), "reading"):
        clock[0] += 12.0
        seen.append(item)
    assert seen == list(range(10))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "reading 3/10  84 s to go",
        "reading 6/10  48 s to go",
        "reading 9/10  12 s to go",
    ]


def test_slow_items_have_a_line_each_but_the_last(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in watched("abc", "rendering"):
        clock[0] += 100.0
    assert capsys.readouterr().err.splitlines() == ["rendering 1/3  200 s to go", "rendering 2/3  100 s to go"]


@pytest.mark.parametrize("items", [[], [1], [1, 2, 3]])
def test_what_is_quickly_done_leaves_no_line(items: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert list(watched(items, "reading")) == items
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("items", "shown"), [([1, 2], "2/2"), ([1], "")])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, items: list[int], shown: str) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80))
    assert list(watched(items, "reading")) == items
    assert shown in screen.getvalue()
    assert ("reading" in screen.getvalue()) == bool(shown)
