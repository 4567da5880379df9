"""Stages in small: the same weights and batches whatever the levers, no data file, and float64 that is float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dubsar.configs.blocks import Efficiency
from dubsar.pipelines.levers.table import STAGES
from dubsar.pipelines.parity.exact.miniature import build, fit, in_float64
from dubsar.pipelines.parity.exact.record import Recorder, digest, lines

OTHER = {
    "pretrain": {"fused_optimizer": True, "attention": "sdpa", "checkpointing": "full", "precision": "bf16"},
    "classify": {"fused_optimizer": True, "channels_last": True, "precision": "bf16"},
    "detect": {"fused_optimizer": True, "channels_last": True, "precision": "bf16"},
    "transliterate": {"fused_optimizer": True, "attention": "sdpa", "precision": "bf16"},
}


def asked(**levers: Any) -> Efficiency:
    return Efficiency.model_validate(levers, strict=False)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_the_seed_decides_weights_and_batches_and_the_levers_do_not(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBSAR_DATA", str(tmp_path / "nothing"))
    one, same, other = build(stage, asked()), build(stage, asked(**OTHER[stage])), build(stage, asked(), seed=1)
    weights = [{n: digest(p) for n, p in m.system.network.named_parameters()} for m in (one, same, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    batches = [[digest(t) for t in tree_leaves(m.stream.batch(3))] for m in (one, same, other)]
    assert batches[0] == batches[1]
    assert batches[0] != batches[2]


def test_every_layout_holds_the_same_lines() -> None:
    found = {}
    for layout in ("off", "bucket", "pack"):
        rectangles: Any = build("transliterate", asked(packing=layout)).stream.batch(0)
        found[layout] = sorted(line for r in rectangles for line, *_ in lines(r))
        assert (len(rectangles) > 1) == (layout == "bucket")
    assert found["off"] == found["bucket"] == found["pack"]
    lengths = [length for length, *_ in found["off"]]
    assert max(lengths) > 4 * min(lengths)


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_in_float64_no_float32_is_left(stage: str) -> None:
    miniature, recorder = build(stage, asked(), steps=2), Recorder()
    with in_float64(miniature):
        fit(miniature, [recorder])
    record = recorder.record
    for tensors in (record.forward, record.gradients):
        assert {t.dtype for t in tensors.values()} == {torch.float64}
    for tensors in (record.examples, record.gradients):  # what was float32 on its way is held by a float32 without loss
        assert [n for n, t in tensors.items() if t.any() and torch.equal(t, t.float().double())] == []
    assert torch.get_default_dtype() == torch.float32
    assert len(record.losses) == 2


def test_in_float64_the_norm_of_a_t5_is_no_island_of_float32() -> None:
    miniature = build("transliterate", asked())
    norm = miniature.system.network.encoder.final_layer_norm
    states_BLD = torch.rand(2, 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = states_BLD / (states_BLD.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    with in_float64(miniature):
        assert float((norm(states_BLD) - wanted).abs().max()) < 1e-14
    real = build("transliterate", asked()).system.network.encoder.final_layer_norm.double()
    assert float((real(states_BLD) - wanted).abs().max()) > 1e-9  # negative control: its own forward


def test_the_step_is_large_enough_for_anchors_to_need_nine_bits() -> None:
    miniature, recorder = build("detect", asked(), large=True), Recorder()
    fit(miniature, [recorder])
    anchors = recorder.record.modules["anchor points"]
    assert float((anchors - anchors.bfloat16().float()).abs().max()) >= 2
    assert {"decoded boxes", "box loss", "cls loss", "dfl loss"} <= set(recorder.record.modules)
    small = Recorder()
    fit(build("detect", asked()), [small])
    exact = small.record.modules["anchor points"]
    assert torch.equal(exact, exact.bfloat16().float())
