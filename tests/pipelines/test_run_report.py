"""The report of a run: curves from what was logged, one page that needs nothing else."""

import io
import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from dubsar.pipelines.run_report import draw_curves, lever_table, read_curves, write_run_report


def put(folder: Path) -> Path:
    folder.mkdir()
    rows = [{"step": s, "seconds": 0.5, "train/loss": 3.0 / s} for s in (1, 2, 3)]
    rows += [{"step": 3, "val/cer": 40.0, "val/ser": 50.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"step": 4, "tr')
    levers = [
        {"lever": "attention", "exactness": "A", "asked": "flash", "resolved": "sdpa", "why": "no <mask>"},
        {"lever": "ema", "exactness": "M", "asked": None, "resolved": None, "why": ""},
    ]
    (folder / "levers.json").write_text(json.dumps(levers))
    (folder / "config.yaml").write_text("name: <script>alert(1)</script>\n")
    return folder


def test_curves_are_read_by_metric(tmp_path: Path) -> None:
    assert read_curves(put(tmp_path / "run") / "metrics.jsonl") == {
        "train/loss": [(1, 3.0), (2, 1.5), (3, 1.0)],
        "val/cer": [(3, 40.0)],
        "val/ser": [(3, 50.0)],
    }
    assert read_curves(tmp_path / "none.jsonl") == {}


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    folder = put(tmp_path / "a<b>")
    write_run_report(folder, {"cer": 12.3456})
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<h1>a&lt;b&gt;</h1>" in page
    assert "<td>cer</td><td>12.35</td>" in page
    assert "<td>attention</td><td>A</td><td>flash</td><td>sdpa</td><td>no &lt;mask&gt;</td>" in page
    assert "<td>ema</td>" not in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.yaml",
        "curves.png",
        "levers.json",
        "metrics.jsonl",
        "report.html",
    ]


def test_what_was_seen_of_the_levers_is_shown(tmp_path: Path) -> None:
    folder = put(tmp_path / "run")
    rows = json.loads((folder / "levers.json").read_text())
    assert lever_table(rows)[0] == ("lever", "class", "asked", "resolved", "why")
    rows[0] |= {"engaged": False, "observed": "eager: <none>"}
    rows.append(rows[0] | {"lever": "packing", "asked": "pack", "resolved": "off", "why": "no"})
    del rows[2]["engaged"], rows[2]["observed"]
    head, body = lever_table(rows)
    assert head == ("lever", "class", "asked", "resolved", "engaged", "observed", "why")
    assert body == [
        ("attention", "A", "flash", "sdpa", "False", "eager: <none>", "no <mask>"),
        ("packing", "A", "pack", "off", "", "", "no"),
    ]
    (folder / "levers.json").write_text(json.dumps(rows))
    write_run_report(folder, {})
    assert "<td>sdpa</td><td>False</td><td>eager: &lt;none&gt;</td>" in (folder / "report.html").read_text()


def test_curves_are_drawn_one_beside_the_other() -> None:
    one = Image.open(io.BytesIO(draw_curves({"train/loss": [(1, 2.0), (2, 1.0)]}, "t")))
    two = Image.open(io.BytesIO(draw_curves({"train/loss": [(1, 2.0), (2, 1.0)], "val/cer": [(2, 9.0)]}, "t")))
    assert (one.height, two.width) == (two.height, 2 * one.width)
    assert np.asarray(one.convert("L")).std() > 5


def test_a_run_that_logged_nothing_has_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_run_report(tmp_path / "run", {})
    assert "All off: the reference." in (tmp_path / "run" / "report.html").read_text()
