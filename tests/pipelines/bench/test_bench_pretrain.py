"""`dubsar bench pretrain`: that both sides do the same amount of work, and what it tells."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from dubsar.configs.base import load
from dubsar.configs.schema import PretrainConfig, shipped_config
from dubsar.pipelines.bench import pretrain
from dubsar.pipelines.bench.measure import Effort
from dubsar.pipelines.bench.run import BENCHES, bench
from dubsar.pipelines.networks import build_ssl

lightly_step: Any = pytest.importorskip("dubsar.pipelines.bench.lightly_step", reason="lightly is not installed")


def config(*overrides: str, name: str = "debug/pretrain") -> PretrainConfig:
    loaded = load(shipped_config(name), PretrainConfig, ("data.labelled=false", "model.gram=null", *overrides))
    return loaded  # type: ignore[no-any-return]


def batch(settings: PretrainConfig) -> dict[str, torch.Tensor]:
    data = settings.data
    return {
        "globals_VBCHW": torch.rand(2, data.batch_size, 3, data.global_px, data.global_px),
        "locals_VBCHW": torch.rand(data.locals, data.batch_size, 3, data.local_px, data.local_px),
    }


@pytest.mark.data
def test_pretrain(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(pretrain, "memory_note", lambda names, *_: measured.extend(names) or "memory")
    step, given, both = BENCHES["pretrain"](Effort(rounds=6, tiny=True))
    arms = ["ours", "lightly", "lightly, our attention", "ours, levers off", "lightly, levers off"]
    assert [t.arm for t in step.timings] == measured == arms
    assert all(len(t.seconds) == 6 for group in (step, given, both) for t in group.timings)
    assert [(c.baseline, c.arm, c.required) for c in step.comparisons] == [
        ("lightly", "ours", 1.2),
        ("lightly, our attention", "ours", None),
        ("lightly, levers off", "ours, levers off", None),
        ("ours, levers off", "ours", None),
    ]
    for arm in range(2):
        added = [a + b for a, b in zip(step.timings[arm].seconds, given.timings[arm].seconds, strict=True)]
        assert both.timings[arm].seconds == added
    assert "waits for its input: ours " in both.notes[1]
    assert "memory" in step.notes


@pytest.mark.data
@pytest.mark.slow
def test_memory_is_that_of_the_arm() -> None:
    """A head of 32 MiB more, its teacher, gradient and two moments, must be seen in the peak."""
    if not pretrain._RESET.exists():
        pytest.skip("this system tells no peak")
    peaks = []
    with pretrain._few_tiles(Effort(tiny=True)) as (small, tiles):
        for prototypes in (64, 2**19):
            settings = small.model_copy(update={"model": small.model.model_copy(update={"prototypes": prototypes})})
            note = pretrain.memory_note(("ours",), settings, tiles, [pretrain._small(settings, tiles).stream.batch(0)])
            peaks.append(int(note.split()[-2].replace(",", "")))
    assert peaks[1] - peaks[0] > 5 * 32


@pytest.mark.parametrize("name", ["debug/pretrain", "vit/pretrain"])
def test_both_networks_have_as_many_tokens_and_almost_as_many_parameters(name: str) -> None:
    settings = config(name=name)
    ours, theirs = build_ssl(settings).student, lightly_step.LightlyLoop(settings).student
    pixels = torch.rand(2, 3, settings.data.global_px, settings.data.global_px)
    seen = ours.encoder(pixels)
    tokens = theirs.backbone.encode(pixels).shape
    assert tokens == (2, seen.patches_BND.shape[1] + ours.encoder.net.num_prefix_tokens, ours.encoder.width)
    count = [sum(p.numel() for p in branch.parameters()) for branch in (ours, theirs)]
    assert count[1] == pytest.approx(count[0], rel=0.03)


def test_lightly_s_step_trains_all_of_the_student_and_moves_the_teacher() -> None:
    settings = config("optim.lr=0.1", "model.teacher_momentum=[0.5,0.5]")
    loop = lightly_step.LightlyLoop(settings)
    before = [[p.detach().clone() for p in branch.parameters()] for branch in (loop.student, loop.teacher)]
    views = lightly_step.views_of(batch(settings))
    assert len(views) == 2 + settings.data.locals
    loop.step(views)
    student = list(loop.student.parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before[0], student, strict=True))
    for old, new, kept in zip(before[1], student, loop.teacher.parameters(), strict=True):
        torch.testing.assert_close(kept, 0.5 * old + 0.5 * new)


def test_lightly_s_masks_are_as_many_as_ours() -> None:
    settings = config(name="vit/pretrain")
    masks = lightly_step.LightlyLoop(settings).masks((64, 8, 8))
    shares = masks.flatten(1).float().mean(1)
    assert int((shares > 0).sum()) == 32
    assert float(shares.max()) <= 0.5
    assert 0.25 < float(shares[shares > 0].mean()) < 0.35


def test_only_the_arm_of_our_attention_has_the_lever_s() -> None:
    for same in (True, False):
        loop = lightly_step.LightlyLoop(config(), same_attention=same)
        assert {b.attn.fused_attn for b in loop.student.backbone.vit.blocks} == {not same}


def test_without_lightly_the_bench_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "lightly" else find(name, *rest)
    )
    with pytest.raises(ValueError, match="pip install lightly"):
        bench("pretrain", tmp_path)
