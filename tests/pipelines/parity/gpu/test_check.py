"""The checks for a GPU: their numerics on a CPU, tiny; each can fail; time, errors and the verdict of the whole."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dubsar.pipelines.parity.gpu import attention as gpu_attention
from dubsar.pipelines.parity.gpu import network as gpu_network
from dubsar.pipelines.parity.gpu import numerics as gpu_numerics
from dubsar.pipelines.parity.gpu.check import (
    CHECKS,
    FAILED,
    NOT_ENGAGED,
    NOT_RUN,
    OK,
    GpuCheck,
    Row,
    gpu_check,
    run_checks,
    show,
)
from dubsar.pipelines.parity.gpu.figures import CannotJudge, Check, Found, error_ratio, relative_errors
from dubsar.pipelines.parity.result import exit_status

CPU = torch.device("cpu")
IN_TRUTH = Found(0.0, 1.0, "times", True, "seen")
# what a CPU can show in seconds; the kernels of FlexAttention and CUDA graphs are not there, so they do not engage
ON_A_CPU = {
    "float32_island": OK,
    "float16_step": OK,
    "fused_adamw": OK,
    "flash_attention": OK,
    "checkpointing": OK,
    "channels_last": OK,
    "flex_attention": NOT_ENGAGED,
    "packed_step": NOT_ENGAGED,
}


def function_of(check: Check) -> str:
    return str(getattr(check.call, "func", check.call).__name__)


def first(name: str) -> Check:
    return next(check for check in CHECKS if function_of(check) == name)


def run(check: Check) -> Row:
    return run_checks([check], CPU, 300, tiny=True).rows[0]


def made_up(call: Any) -> Check:
    return Check("lever", "made up", call)


def result(*found: Any) -> GpuCheck:
    """A run of checks that return or raise what is given."""

    def call(outcome: Any) -> Any:
        def checked(device: torch.device, *, tiny: bool = False) -> Found:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return checked

    return run_checks([made_up(call(f)) for f in found], CPU)


def test_every_check_runs_here_or_on_a_gpu_only() -> None:
    assert {function_of(c) for c in CHECKS} == {*ON_A_CPU, "cuda_graphs", "max_autotune"}


@pytest.mark.parametrize("name", ON_A_CPU)
def test_the_numerics_hold_on_a_cpu(name: str) -> None:
    row = run(first(name))
    assert (row.outcome, row.why) == (ON_A_CPU[name], "")
    assert row.found is not None
    assert row.found.seen
    assert row.found.figure <= row.found.at_most


@pytest.mark.slow
def test_a_cuda_graph_does_not_engage_on_a_cpu() -> None:
    row = run(first("cuda_graphs"))
    assert (row.outcome, row.found and row.found.figure) == (NOT_ENGAGED, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.lever)
def test_each_lever_acts_on_a_gpu(check: Check) -> None:
    row = run_checks([check], torch.device("cuda"), 300, tiny=True).rows[0]
    assert row.outcome in {OK, NOT_ENGAGED} if function_of(check) == "checkpointing" else row.outcome == OK, row


# --- negative controls


def test_anchors_in_bf16_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubsar.models.detector.at_least_float32", lambda tensor: tensor)
    row = run(first("float32_island"))
    assert row.outcome == FAILED  # what finds the anchors themselves is T3, see the exact tiers


def test_a_bias_that_is_not_the_same_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    build = gpu_attention.transliterators

    def unlike(*args: Any) -> Any:
        dense, flex = build(*args)
        torch.nn.init.zeros_(flex.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
        return dense, flex

    monkeypatch.setattr(gpu_attention, "transliterators", unlike)
    assert run(first("flex_attention")).outcome == FAILED


def test_packed_rows_without_masks_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_of = gpu_attention.logits_of

    def unmasked(network: Any, rectangle: dict[str, Tensor]) -> Tensor:
        one = {n: t.clamp(max=0) if "documents" in n else t for n, t in rectangle.items()}
        return logits_of(network, one)

    monkeypatch.setattr(gpu_attention, "logits_of", unmasked)
    assert run(first("packed_step")).outcome == FAILED


def test_an_optimizer_that_is_not_fused_is_not_engaged(monkeypatch: pytest.MonkeyPatch) -> None:
    build = gpu_numerics.adamw
    monkeypatch.setattr(gpu_numerics, "adamw", lambda network, fused: build(network, fused=False))
    assert run(first("fused_adamw")).outcome == NOT_ENGAGED


def test_a_lever_that_does_nothing_is_not_engaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_network, "with_levers", lambda network, **_: network)
    assert run(first("checkpointing")).outcome == NOT_ENGAGED


def test_gradients_that_are_nought_beside_others_count_as_rounding() -> None:
    exact = {"loss": torch.ones(()), "a": torch.ones(4), "b": torch.zeros(4)}
    found = {"loss": torch.ones(()), "a": torch.ones(4) + 1e-3, "b": torch.full((4,), 1e-8)}
    errors = relative_errors(found, exact)
    assert errors["a"] == pytest.approx(1e-3, rel=1e-3)
    assert errors["b"] == pytest.approx(1e-3, rel=1e-3)
    ratio, tensor = error_ratio({**found, "b": torch.full((4,), 1e-7)}, found, exact)
    assert (round(ratio), tensor) == (10, "b")


# --- the run of all


def test_what_goes_wrong_is_its_own_rows() -> None:
    found = result(
        IN_TRUTH,
        Found(2.0, 1.0, "times", True, "seen"),
        Found(float("nan"), 1.0, "times", True, "seen"),
        Found(0.0, 1.0, "times", False, "seen"),
        Found(0.0, 1.0, "times", True, "seen", fault="compiled anew"),
        CannotJudge("not the same twice"),
        torch.OutOfMemoryError("a long text"),
        RuntimeError("no\nkernel"),
        IN_TRUTH,
    )
    outcomes = [OK, FAILED, FAILED, NOT_ENGAGED, FAILED, NOT_RUN, NOT_RUN, FAILED, OK]
    assert [row.outcome for row in found.rows] == outcomes
    assert [row.why for row in found.rows][4:8] == [
        "compiled anew",
        "not the same twice",
        "this GPU has too little memory for it",
        "RuntimeError: no kernel",
    ]
    json.loads(json.dumps(found.to_dict(), allow_nan=False))


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ([IN_TRUTH], 0),
        ([IN_TRUTH, CannotJudge("x")], 10),
        ([IN_TRUTH, CannotJudge("x"), ValueError("x")], 11),
        ([IN_TRUTH, Found(0.0, 1.0, "times", False, "seen")], 12),
    ],
)
def test_the_exit_status_is_that_of_the_worst_row(found: list[Any], status: int) -> None:
    assert exit_status(result(*found).verdict) == status


def test_time_is_kept_though_what_is_raised_is_swallowed() -> None:
    swallowed = []

    def endless(device: torch.device, *, tiny: bool = False) -> Found:
        while len(swallowed) < 2:
            try:
                time.sleep(30)
            except BaseException as error:
                swallowed.append(error)
        time.sleep(30)
        return IN_TRUTH

    started = time.monotonic()
    found = run_checks([made_up(endless), made_up(endless)], CPU, 0.3)
    assert time.monotonic() - started < 20
    assert [row.outcome for row in found.rows] == [NOT_RUN, NOT_RUN]
    assert [row.why for row in found.rows] == ["cut off after 0 s: the 0.3 s are spent", "no time was left of 0.3 s"]
    assert len(swallowed) == 2


def test_without_time_nothing_is_run() -> None:
    with pytest.raises(ValueError, match="budget is 0 s"):
        run_checks([made_up(None)], CPU, 0)


def test_every_row_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(IN_TRUTH, CannotJudge("not the same twice")))
    printed = capsys.readouterr().out
    assert "0 times (at most 1)" in printed
    assert "not run: not the same twice" in printed
    assert "INCONCLUSIVE: 1 ok, 1 not run" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^gpu-check needs a GPU, and PyTorch finds none here$"):
        gpu_check(tmp_path / "gpu.json")
    assert list(tmp_path.iterdir()) == []
