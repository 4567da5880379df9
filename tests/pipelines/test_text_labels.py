"""Labels from a tablet's text, with an engine that finds the boxed signs and half knows them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubsar.configs.base import load
from dubsar.configs.schema import ClassifyConfig, ReadConfig, shipped_config
from dubsar.datasets.formats.tablet_signs import Photograph, read_tablet_signs
from dubsar.datasets.inventory import read_inventory
from dubsar.pipelines import text_labels
from dubsar.pipelines.reading.engine import Detections
from dubsar.pipelines.signs import open_signs
from dubsar.pipelines.text_labels import label_from_text

TABLET = "P334865"  # a small one of train
UNSURE = 0.3  # share of finds that look like another sign


class HalfBlind:
    """Finds each boxed sign of a photograph, and mistakes some."""

    def __init__(self, photograph: Photograph, root: Path) -> None:
        self.photograph, self.inventory = photograph, read_inventory(root)
        self.boxes_N4 = np.array([b.box_xyxy for b in photograph.boxes])
        self.classes_N = np.array([self.inventory.id_of_glyph[b.glyph] for b in photograph.boxes])

    def find(self, _: Any) -> Detections:
        count = len(self.boxes_N4)
        return Detections(self.boxes_N4, np.ones(count), np.zeros(count, np.int64), 60.0)

    def classify(self, _: Any, boxes_N4: Any, top_k: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(0)
        likely_NC = np.full((len(boxes_N4), len(self.inventory)), 1e-4)
        for row, box in enumerate(boxes_N4):
            shown = self.classes_N[int(np.abs(self.boxes_N4 - box).sum(1).argmin())]
            likely_NC[row, rng.integers(300) if rng.random() < UNSURE else shown] = 0.9
        order = np.argsort(-likely_NC, axis=1)[:, :top_k]
        return np.take_along_axis(likely_NC, order, 1), order


@pytest.fixture
def blind(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Photograph:
    """Show one photograph, every third of whose boxes is hidden."""
    whole = next(p for p in read_tablet_signs(data_root, split="train") if p.object_id == TABLET)
    shown = replace(whole, boxes=tuple(b for n, b in enumerate(whole.boxes) if n % 3))
    monkeypatch.setattr(text_labels, "read_tablet_signs", lambda *_, **__: [shown])
    monkeypatch.setattr(text_labels, "load_engine", lambda _: HalfBlind(whole, data_root))
    return whole


@pytest.mark.data
def test_signs_without_a_box_are_named_by_the_text(
    blind: Photograph, data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "more.tsv"
    counts = label_from_text("train", out, load(shipped_config("read"), ReadConfig))
    assert counts["photographs"] == 1
    assert counts["agreeing"] >= 0.9 * counts["on boxed signs"] > 10
    assert counts["new"] > 5
    assert f"{counts['new']} boxes" in capsys.readouterr().out
    truth = {tuple(round(v) for v in b.box_xyxy): b.glyph for b in blind.boxes}
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    named = [
        (round(float(x)), round(float(y)), round(float(x) + float(w)), round(float(y) + float(h)), glyph)
        for _, x, y, w, h, _, _, _, _, glyph, *_ in rows
    ]
    right = sum(truth.get(tuple(box)) == glyph for *box, glyph in named)  # type: ignore[call-overload]
    assert right >= 0.8 * len(named)


@pytest.mark.data
def test_a_classifier_learns_from_the_table_and_is_not_scored_on_it(data_root: Path, tmp_path: Path) -> None:
    first = next(p for p in read_tablet_signs(data_root, split="train") if p.boxes)
    box = first.boxes[0]
    more = tmp_path / "more.tsv"
    row = (first.file, 1, 1, 20, 20, "text", "a", "", "A", box.glyph, "", "", "train")
    head = ["file", "x", "y", "w", "h", "source", "label_raw", "mzl", "sign_name", "glyph", "view", "flag", "split"]
    more.write_text("\n".join("\t".join(map(str, cells)) for cells in (head, row)) + "\n", encoding="utf-8")
    data = load(shipped_config("debug/classify"), ClassifyConfig, (f"data.more_signs={more}",)).data
    plain, signs = open_signs(data.model_copy(update={"more_signs": ""})), open_signs(data)

    def count(source: Any, split: str) -> int:
        return sum(len(p.boxes) for p in source.photographs(split))

    assert count(signs, "train") == count(plain, "train") + 1
    assert count(signs, "dev") == count(plain, "dev")
    more.write_text(more.read_text().replace("\t20\t20\t", "\t20\t0\t"))
    with pytest.raises(ValueError, match=rf"{more}:2: "):
        signs.photographs("train")


def test_a_table_of_another_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split is dev, but a table to learn from is of train"):
        label_from_text("dev", tmp_path / "more.tsv", load(shipped_config("read"), ReadConfig))
