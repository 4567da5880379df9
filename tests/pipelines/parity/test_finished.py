"""Parity of two finished files: the verdict by tablets, what the report says, and what is refused before it reads."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dubsar.datasets.inventory import Inventory, InventoryMismatch, SignClass
from dubsar.pipelines.cli import app
from dubsar.pipelines.parity import finished
from dubsar.pipelines.parity.finished import judge_files
from dubsar.pipelines.parity.result import ParityResult
from dubsar.pipelines.parity.statistics import Verdict

Makes = Callable[..., Path]
MARGINS = {"top1": 2.0, "top5": 2.0}
CLASSES = 7  # so that top-5 is no foregone conclusion
MANY = Inventory(tuple(SignClass(g, g) for g in "𒀀𒈾𒋗𒀭𒁀𒂊𒃻"))


@pytest.fixture
def two(noise_root: Path, a_member: Makes) -> tuple[Path, Path]:
    return a_member(noise_root / "one"), a_member(noise_root / "two", "data.crop_px=24", seed=1)


def answers(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """Let the files, one after the other, be right on such shares of the signs."""
    tablets, signs = 30, 20
    truth = np.random.default_rng(0).integers(0, CLASSES, tablets * signs)
    names = np.repeat([f"T{n:02}" for n in range(tablets)], signs)
    luck = np.random.default_rng(1).random(len(truth))  # of a sign: what is right at a small share is at a larger one
    given = iter(share for share in shares for _ in range(3))  # by margin
    real = finished.read_crops

    def cut(*arguments: Any, **options: Any) -> Any:
        side = real(*arguments, **options).pixels_NSS3.shape[1]
        return finished.Crops(np.zeros((len(truth), side, side, 3), np.uint8), truth, names)

    def classify(_: Any, pixels: Any) -> torch.Tensor:
        if len(pixels) != len(truth):  # a timed call
            return torch.zeros(1)
        wrong = luck > next(given)
        logits = np.eye(CLASSES, dtype=np.float32)[truth]
        logits[wrong] = 1 - logits[wrong] + np.arange(CLASSES) / 100
        return torch.from_numpy(logits)

    monkeypatch.setattr(finished, "read_crops", cut)
    monkeypatch.setattr(finished, "classify_crops", classify)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "status"),
    [
        (0.8, 0.8, Verdict.EQUIVALENT, 0),
        (0.6, 0.8, Verdict.NON_INFERIOR, 0),
        (0.8, 0.6, Verdict.INFERIOR, 11),
    ],
)
def test_the_verdict_follows_the_signs(
    before: float, after: float, verdict: Verdict, status: int, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, before, after)
    monkeypatch.setattr(finished, "training_counts", lambda *_: np.where(np.arange(CLASSES) < 3, 19, 20))
    out = two[0].parent / "p"
    files = ["--reference", str(two[0]), "--candidate", str(two[1]), "-o", str(out), "--split", "test"]
    done = CliRunner().invoke(app, ["parity", "classify", *files, "--margin", "top1=2", "--margin", "top5=2"])
    assert done.exit_code == status, done.output
    assert str(verdict) in done.output
    found = ParityResult.from_dict(json.loads((out / "parity.json").read_text()))
    assert found.verdict is verdict
    assert found.outcomes[0].gain == pytest.approx(100 * (after - before), abs=6)
    assert found.preset == "finished weights on test, 30 tablets"
    assert {s.name for s in found.strata} == {"rare signs (under 20 crops)", "frequent signs"}
    assert found.outcomes[0].seeds_needed is None


def test_the_report_says_that_it_compares_files_and_how_large_and_fast_they_are(two: tuple[Path, Path]) -> None:
    out = two[0].parent / "p"
    found = judge_files(*two, MARGINS, "dev", out)
    assert found.verdict in set(Verdict)
    assert {p.name for p in out.iterdir()} == {"parity.json", "parity.md", "parity.html", "parity.xml"}
    for name in ("parity.html", "parity.md"):
        text = (out / name).read_text(encoding="utf-8")
        assert "These two files are compared, not these two recipes" in text
        for words in ("The two files", "crops per second", "one training each: take more tablets", "not known"):
            assert words in text
        assert "Training loss by optimizer step" not in text
        assert "Trainings" not in text
    assert list(found.files) == ["reference", "candidate"]
    for name, path in zip(found.files, two, strict=True):
        assert found.files[name]["megabytes"] == (path / "classify.safetensors").stat().st_size / 1e6
        assert found.files[name]["crops_per_second"] > 0
        assert re.search(rf"{found.files[name]['parameters']:,}", (out / "parity.md").read_text(encoding="utf-8"))
    assert found.throughput is not None
    assert ParityResult.from_dict(json.loads((out / "parity.json").read_text())).files == found.files


def test_a_file_beside_itself_is_equivalent(two: tuple[Path, Path]) -> None:
    found = judge_files(two[0], two[0], MARGINS, "test", two[0].parent / "p")
    assert found.verdict is Verdict.EQUIVALENT
    assert [(o.gain, o.low, o.high) for o in found.outcomes] == [(0, 0, 0)] * 2


def test_what_cannot_be_judged_is_refused_before_anything_is_read(two: tuple[Path, Path]) -> None:
    one, other = map(str, two)
    files = ["--reference", one, "--candidate", other]
    both = ["--margin", "top1=1", "--margin", "top5=1"]
    out = two[0].parent / "p"
    for options, message in (
        (["classify", *files], "no margin for top1: declare before the run what loss is bearable"),
        (["classify", *files, "--margin", "top1=1"], "no margin for top5"),
        (["classify", "--reference", one, *both], "go together: give both"),
        (["classify", "--split", "test", *both], "go together: give both"),
        (["detect", *files, *both], "are of classify, not of detect"),
        (["classify", *files, *both, "--split", "train"], "--split is 'train', expected dev or test"),
        (["classify", *files, *both, "--levers", "ema"], "config, levers, preset and fallback are for trainings"),
        (["classify", "optim.lr=1", *files, *both], "config, levers, preset and fallback are for trainings"),
        (files, "STAGE is missing: pretrain, classify, detect or transliterate"),
    ):
        done = CliRunner().invoke(app, ["parity", *options, "-o", str(out)])
        assert message in str(done.exception)
        assert not out.exists()


def test_files_for_other_signs_are_refused(two: tuple[Path, Path], a_member: Makes) -> None:
    foreign = a_member(two[0].parent / "foreign", signs=MANY)
    with pytest.raises(InventoryMismatch, match=rf"^{foreign}: made for sign inventory {MANY.hash}"):
        judge_files(two[0], foreign, MARGINS, "dev", two[0].parent / "p")


def test_one_tablet_is_not_enough(two: tuple[Path, Path]) -> None:
    path = two[0].parent / "data" / "tablet-signs" / "images.tsv"
    text = path.read_text(encoding="utf-8")
    for number in (3, 4, 5):
        text = text.replace(f"\t{number}.png", "\t2.png")  # the object, not the file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^dev has signs of 1 tablet, expected two or more"):
        judge_files(*two, MARGINS, "dev", two[0].parent / "p")
