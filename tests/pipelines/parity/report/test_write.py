"""The parity report: complete, self-contained, and never greener than what was proved."""

import base64
import io
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from dubsar.pipelines.parity.report.drawings import COLOURS, draw_forest, draw_losses
from dubsar.pipelines.parity.report.junit import junit
from dubsar.pipelines.parity.report.sections import MEANING, conclusion, saved_hours, tone
from dubsar.pipelines.parity.report.write import markdown, page, summarise, write_reports
from dubsar.pipelines.parity.result import Curve, Finding, Outcome, ParityResult, Ratio, Stratum
from dubsar.pipelines.parity.statistics import Verdict

NASTY = "</td><script>alert('x')</script> | [bold]\x07 & *\n"
PROVED = [v for v in Verdict if v.proves_parity]
NOT_PROVED = [v for v in Verdict if not v.proves_parity]


def outcome(verdict: Verdict, metric: str = "cer", seeds: int | None = 12) -> Outcome:
    return Outcome(metric, False, 0.5, -0.1, -0.7, 0.5, 0.2, 0.1, 0.6, True, 0.04, 0.8312, seeds, verdict, 0.4)


def finding(verdict: Verdict | None, tier: str = "T0", what: str = "seen") -> Finding:
    return Finding(tier, "precision", verdict, what, "head", {"ratio": 1.25})


def result(verdict: Verdict = Verdict.INCONCLUSIVE, text: str = "plain") -> ParityResult:
    rng = np.random.default_rng(0)
    steps = list(range(10, 400, 10))
    losses = (5 / np.sqrt(steps) + rng.normal(0, 0.01, (3, len(steps)))).tolist()
    curves = [
        Curve(arm, seed, steps, losses[seed], 2.0, {"cer": 10.0 + seed}, text, "a CPU")
        for arm in ("reference", "candidate")
        for seed in range(3)
    ]
    low = (5 / np.sqrt(steps) - 0.02).tolist()
    return ParityResult(
        stage="transliterate",
        levers={"precision": "bf16", text: True},
        preset="full",
        commit="abc1234",
        hardware=text,
        versions={"torch": "2.14"},
        configs={"reference": "11ff", "candidate": "22ff"},
        margins={"cer": 0.5},
        findings=[
            finding(None),
            Finding("T0", "cuda_graphs", None, "refused: needs CUDA"),
            finding(verdict, "T5", text),
        ],
        curves=curves,
        band={"steps": [float(s) for s in steps], "low": low, "high": [x + 0.04 for x in low]},
        outcomes=[outcome(verdict)],
        strata=[Stratum("cer", text, 12.0, 10.0, 11.0, -1.0, -np.inf, np.inf)],
        throughput=Ratio(1.4, 1.31, 1.52),
        hours={
            "reference": {"hours": 100.0, "provenance": "claimed"},
            "candidate": {"hours": 70.0, "provenance": "measured on H200"},
        },
        notes=[text],
        verdict=verdict,
    )


@cache
def page_of(verdict: Verdict = Verdict.INCONCLUSIVE) -> str:
    return page(result(verdict))


def styles(found: ParityResult) -> list[str]:
    """The styles of all that the terminal shows."""
    columns = [c for part in summarise(found) for c in part.columns]
    return [str(text.style) for c in columns for text in (c.header, *c.cells) if isinstance(text, Text)]


class Reader(HTMLParser):
    """Collects tags, attributes and the class in which each text stands; fails on tags that are not closed."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((" ".join(c for _, c in self.open), data))


def test_all_four_files_are_written_and_the_json_is_the_result(tmp_path: Path) -> None:
    found = result()
    write_reports(found, tmp_path / "new")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "parity.html",
        "parity.json",
        "parity.md",
        "parity.xml",
    ]
    text = (tmp_path / "new" / "parity.json").read_text(encoding="utf-8")
    assert "Infinity" in text
    assert ParityResult.from_dict(json.loads(text, parse_constant=pytest.fail)) == found
    once = {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()}
    write_reports(found, tmp_path / "new")
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == once, "the same result, the same bytes"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page_of()
    assert re.findall(r"https?:|//[a-z]|@import|<script|<link|<iframe|url\(", text) == []
    reader = Reader(text)
    sources = [a["src"] or "" for tag, a in reader.tags if tag == "img"]
    assert [s.split(",")[0] for s in sources] == ["data:image/svg+xml;base64"] * 2
    assert not any("href" in a or any(k.startswith("on") for k in a) for _, a in reader.tags)


def test_the_page_can_be_read_aloud() -> None:
    reader = Reader(page_of())
    assert ("html", {"lang": "en"}) in reader.tags
    assert all(a.get("alt") for tag, a in reader.tags if tag == "img")
    assert all(a.get("scope") == "col" for tag, a in reader.tags if tag == "th")
    assert [tag for tag, _ in reader.tags].count("h1") == 1
    assert "@media print" in page_of()


def test_foreign_text_stays_text() -> None:
    text = page(result(text=NASTY))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5
    Reader(text)
    table = [line for line in markdown(result(text=NASTY)).splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table if "hardware" in line[:12]}) == 1
    assert "\n<" not in markdown(result(text=NASTY))
    console = Console(width=400, file=io.StringIO(), record=True)
    for part in summarise(result(text=NASTY)):
        console.print(part)
    assert "[bold]" in console.export_text(), "a name is no markup"


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_colour_follows_the_verdict_and_never_stands_alone(verdict: Verdict) -> None:
    found = result(verdict)
    wanted = "passed" if verdict in PROVED else "undecided" if verdict is Verdict.INCONCLUSIVE else "failed"
    assert tone(verdict) == wanted
    places = [(c.split()[-1], t) for c, t in Reader(page_of(verdict)).texts if str(verdict) in t and c.split()]
    assert len(places) >= 3, "the heading, the tier and the metric"
    assert {c for c, _ in places} == {wanted}
    sign = {"passed": "✓", "undecided": "?", "failed": "✗"}[wanted]
    assert all(t.startswith(f"{sign} {verdict}") for _, t in places)
    assert f"**{sign} {verdict}**" in markdown(found)


@pytest.mark.parametrize("verdict", NOT_PROVED)
def test_nothing_is_green_where_nothing_is_proved(verdict: Verdict) -> None:
    reader = Reader(page_of(verdict))
    assert not any("passed" in (a.get("class") or "").split() for _, a in reader.tags)
    assert "✓" not in markdown(result(verdict))
    assert not any(COLOURS["passed"] in style for style in styles(result(verdict)))
    assert any(COLOURS["passed"] in style for style in styles(result(Verdict.EXACT)))
    assert COLOURS["passed"] not in draw_forest(result(verdict).outcomes)
    assert COLOURS["passed"] in draw_forest(result(Verdict.EXACT).outcomes)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_junit_counts_what_is_not_proved(verdict: Verdict) -> None:
    suite = ET.fromstring(junit(result(verdict, NASTY)))[0]
    cases = {(c.get("classname"), c.get("name")): [x.tag for x in c] for c in suite.iter("testcase")}
    bad = {
        Verdict.INCONCLUSIVE: "error",
        Verdict.ENV_NONDETERMINISTIC: "error",
        Verdict.INFERIOR: "failure",
        Verdict.NOT_ENGAGED: "failure",
    }.get(verdict, "system-out")
    assert cases == {
        ("parity.transliterate.T0", "precision"): ["system-out"],
        ("parity.transliterate.T0", "cuda_graphs"): ["skipped"],
        ("parity.transliterate.T5", "precision"): [bad],
        ("parity.transliterate.metrics", "cer"): [bad],
        ("parity.transliterate", "verdict"): [bad],
    }
    counts = {
        k: int(suite.get(k) or -1) if suite.get(k) != "0" else 0 for k in ("tests", "failures", "errors", "skipped")
    }
    assert counts == {
        "tests": 5,
        "failures": 3 * (bad == "failure"),
        "errors": 3 * (bad == "error"),
        "skipped": 1,
    }


def test_a_refusal_that_was_judged_is_not_skipped() -> None:
    judged = Finding("T0", "cuda_graphs", Verdict.NOT_ENGAGED, "refused: needs CUDA")
    suite = ET.fromstring(junit(replace(result(), findings=[judged])))[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    assert "✗ NOT_ENGAGED" in markdown(replace(result(), findings=[judged]))


def test_a_run_that_found_nothing_is_not_green() -> None:
    empty = ParityResult("detect", {}, "full", "", "", {}, {}, {}, [])
    suite = ET.fromstring(junit(empty))[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    Reader(page(empty))
    assert "INCONCLUSIVE" in markdown(empty)
    assert str(summarise(empty)[-1].columns[0].header) == "? INCONCLUSIVE"


def test_an_inconclusive_metric_says_what_would_settle_it() -> None:
    assert conclusion(outcome(Verdict.INCONCLUSIVE)) == "? INCONCLUSIVE (needs n = 12 seeds, or margin >= 0.84)"
    assert "needs more tablets, or margin" in conclusion(outcome(Verdict.INCONCLUSIVE, seeds=None))
    assert conclusion(outcome(Verdict.EXACT)) == "✓ EXACT"
    for text in (page_of(), markdown(result())):
        assert "smallest margin provable" in text
        assert "0.83" in text
        assert "40 %" in text


def test_hours_of_different_origin_are_never_subtracted() -> None:
    mixed = result().hours
    assert "not stated" in saved_hours(mixed)
    assert "claimed" in saved_hours(mixed)
    assert "measured on H200" in saved_hours(mixed)
    assert "30.0" not in saved_hours(mixed)
    same = {arm: {**row, "provenance": "modelled"} for arm, row in mixed.items()}
    assert saved_hours(same) == "Device-hours saved: 30.00 of 100.00 (30 %), modelled."
    unstated = {arm: {"hours": row["hours"]} for arm, row in mixed.items()}
    assert "not stated" in saved_hours(unstated)
    assert "origin not stated" in markdown(replace(result(), hours=unstated))


def test_the_throughput_stands_with_its_interval() -> None:
    assert "1.400 (95 % interval 1.310 to 1.520)" in page_of()
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(summarise(result())[-1])
    assert "1.400 (95 % interval 1.310 to 1.520)" in console.export_text()
    assert "0.000 to ∞" in page(replace(result(), throughput=Ratio(1.4, 0.0, np.inf)))


def test_both_arms_are_drawn_side_by_side_with_the_band() -> None:
    full = draw_losses(result())
    assert full.count('id="axes_') == 2
    assert full.count("band of reference reruns") == 2
    assert full.count("FillBetween") == 2
    assert "FillBetween" not in draw_losses(replace(result(), band={}))
    assert base64.b64encode(full.encode()).decode() in page_of()


def test_a_training_that_diverged_is_drawn_as_far_as_it_went() -> None:
    diverged = replace(result().curves[0], losses=[4.0, 3.0, np.inf, np.nan], steps=[1, 2, 3, 4])
    whole = replace(diverged, losses=[4.0, 3.0], steps=[1, 2])
    ticks = [
        re.findall(r"<!-- ([\d.]+) -->", draw_losses(replace(result(), curves=[c], band={}))) for c in (diverged, whole)
    ]
    assert ticks[0] == ticks[1], "a loss that is not finite stretches no scale"
    assert "4.0" in ticks[0]


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANING) == set(Verdict)
    assert "NOT" in MEANING[Verdict.INCONCLUSIVE]
