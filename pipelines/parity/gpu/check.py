"""What only a GPU can show of the levers, in one run of a few minutes: ``dubsar parity --preset gpu-check``.

`CHECKS` run in their order, the quick ones first, until the time is up; what does not fit is listed as not run, with
the reason. Each builds a network of the size that is trained on a GPU, compares what it computes with the lever and
without, looks whether the lever acts, and times both interleaved. With ``tiny`` the same path runs in seconds on a CPU,
where what needs a GPU is seen not to act.
"""

import gc
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from dubsar.datasets.sources import require_outside_data
from dubsar.models.checkpoint import write_atomically
from dubsar.pipelines.bench.result import Machine, seconds
from dubsar.pipelines.console import print_table
from dubsar.pipelines.parity.gpu.attention import flash_attention, flex_attention, packed_step
from dubsar.pipelines.parity.gpu.figures import CannotJudge, Check, Found
from dubsar.pipelines.parity.gpu.network import channels_last, checkpointing, cuda_graphs, max_autotune
from dubsar.pipelines.parity.gpu.numerics import float16_step, float32_island, fused_adamw
from dubsar.pipelines.parity.statistics import Verdict, worst

CHECKS = (
    Check("precision bf16", "boxes and loss of a P2 detector at 640 px, decoded from bf16 maps", float32_island),
    Check("precision fp16", "a step of detect with a loss scale", partial(float16_step, stage="detect")),
    Check("precision fp16", "a step of classify with a loss scale", partial(float16_step, stage="classify")),
    Check("fused_optimizer", "fused AdamW against foreach, a ViT-S, 50 steps", fused_adamw),
    Check("attention flash", "flash kernel against math, a ViT-S of 1,029 tokens in bf16", flash_attention),
    Check("checkpointing selective", "gradients and memory, a ViT-S of 1,029 tokens", checkpointing),
    Check("checkpointing full", "gradients and memory, a ViT-S of 1,029 tokens", partial(checkpointing, how="full")),
    Check("channels_last", "ResNet-50 in bf16", channels_last),
    Check("channels_last", "YOLO11s-P2 in bf16", partial(channels_last, of="yolo")),
    Check("cuda_graphs", "detection of one tile, YOLO11s-P2", cuda_graphs),
    Check("attention flex", "FlexAttention against dense masks, packed rows of 1,024 + 1,024 ids", flex_attention),
    Check("packing", "a step of a ByT5-small, packed against buckets", packed_step),
    Check("compile_mode max-autotune", "a block of a ViT-S in bf16, against mode default", max_autotune),
)
SCHEMA_VERSION = 1
OK, FAILED, NOT_ENGAGED, NOT_RUN = "ok", "failed", "not engaged", "not run"
_AGAIN_S = 3.0
_VERDICTS = {
    OK: Verdict.EQUIVALENT,
    FAILED: Verdict.INFERIOR,
    NOT_ENGAGED: Verdict.NOT_ENGAGED,
    NOT_RUN: Verdict.INCONCLUSIVE,
}


class _OutOfTimeError(BaseException):
    """The budget is spent; no ``except Exception`` on the way may swallow it."""


@dataclass(frozen=True)
class Row:
    """What became of one check.

    Attributes:
        lever: that is checked.
        checked: what is compared with what.
        outcome: `OK`, `FAILED`, `NOT_ENGAGED` or `NOT_RUN`.
        found: the figures; None where there are none.
        why: the reason where it failed by an error, or was not run.
        seconds: that it took.
    """

    lever: str
    checked: str
    outcome: str
    found: Found | None = None
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class GpuCheck:
    """All checks of one GPU, and whether they settle that its levers act and compute what they should."""

    rows: tuple[Row, ...]
    machine: Machine
    budget_s: float
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst of all rows, for `dubsar.pipelines.parity.result.exit_status`; what was not run proves nothing."""
        return worst([_VERDICTS[row.outcome] for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the schema's version and the verdict."""
        data = {"schema_version": SCHEMA_VERSION, "verdict": str(self.verdict), **asdict(self)}
        for row in data["rows"]:
            if row["found"] and not math.isfinite(figure := row["found"]["figure"]):
                row["found"]["figure"] = str(figure)  # JSON knows no such number
        return data


def gpu_check(out: Path | None, *, budget_s: float = 480) -> GpuCheck:
    """Run all checks on the first GPU and print them.

    Args:
        out: a JSON file for the result; None writes none.
        budget_s: seconds after which a check is cut off and no other begins.

    Raises:
        ValueError: there is no GPU, no time, or ``out`` lies in the data folder.
    """
    if not torch.cuda.is_available():
        raise ValueError("gpu-check needs a GPU, and PyTorch finds none here")
    if out is not None:
        require_outside_data(out, "--out")
    result = run_checks(CHECKS, torch.device("cuda", 0), budget_s)
    show(result)
    if out is not None:
        text = json.dumps(result.to_dict(), ensure_ascii=False, indent=1) + "\n"
        write_atomically(out, lambda file: file.write(text.encode()))
    return result


def run_checks(checks: Sequence[Check], device: torch.device, budget_s: float = 480, *, tiny: bool = False) -> GpuCheck:
    """Run checks one after the other while there is time.

    Args:
        checks: in this order.
        device: to compute on.
        budget_s: seconds for all of them.
        tiny: networks and inputs so small that only the path is proved.

    Raises:
        ValueError: no time is given.
    """
    if not budget_s > 0:
        raise ValueError(f"the budget is {budget_s:g} s, expected more than 0")
    started = time.monotonic()
    rows = []
    for check in checks:
        left = budget_s - (time.monotonic() - started)
        rows.append(_run(check, device, left, budget_s, tiny=tiny))
    return GpuCheck(tuple(rows), Machine.here(), budget_s, time.monotonic() - started)


def _run(check: Check, device: torch.device, left: float, budget_s: float, *, tiny: bool) -> Row:
    """Run one check; whatever goes wrong in it is its own row's, so that the others still run."""
    if left <= 0:
        return Row(check.lever, check.checked, NOT_RUN, why=f"no time was left of {budget_s:g} s")
    started, found, outcome, why = time.monotonic(), None, NOT_RUN, ""
    _forget(device)
    try:
        with _limited_to(left):
            found = check.call(device, tiny=tiny)
        outcome, why = _outcome(found), found.fault
    except _OutOfTimeError:
        why = f"cut off after {left:.0f} s: the {budget_s:g} s are spent"
    except torch.OutOfMemoryError:
        why = "this GPU has too little memory for it"
    except CannotJudge as error:
        why = str(error)
    except Exception as error:
        outcome, why = FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Row(check.lever, check.checked, outcome, found, why, time.monotonic() - started)


def _outcome(found: Found) -> str:
    if found.fault or not found.figure <= found.at_most:  # NaN fails
        return FAILED
    return OK if found.engaged else NOT_ENGAGED


def _forget(device: torch.device) -> None:
    """Let no check inherit compiled code, random states or memory of the one before."""
    torch.compiler.reset()
    torch.manual_seed(0)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _limited_to(left: float) -> Iterator[None]:
    """Raise `_OutOfTimeError` in the block after so many seconds; only the main thread can be interrupted.

    It is raised again and again until the block ends, since Dynamo swallows what is raised while it traces.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    within, expired = True, False

    def stop(*_: object) -> None:
        nonlocal expired
        expired = True
        if within:
            raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, left, _AGAIN_S)
    try:
        yield
        within = False
        if expired:
            raise _OutOfTimeError
    finally:
        within = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show(result: GpuCheck) -> None:
    """Print the table, the machine and the verdict."""
    table = Table(
        "lever",
        "checked",
        "error",
        "seen",
        "times as fast (95 %)",
        "medians",
        "s",
        "verdict",
        title=f"gpu-check: {result.seconds:.0f} of {result.budget_s:g} s",
    )
    for row in result.rows:
        verdict = ": ".join(filter(None, (row.outcome, row.why)))
        table.add_row(row.lever, row.checked, *_figures(row.found), f"{row.seconds:.0f}", verdict)
    print_table(table)
    counts = ", ".join(
        f"{count} {outcome}"
        for outcome in (OK, FAILED, NOT_ENGAGED, NOT_RUN)
        if (count := sum(row.outcome == outcome for row in result.rows))
    )
    machine = result.machine
    print(f"{result.verdict}: {counts}; {machine.hardware}, torch {machine.versions['torch']}, commit {machine.commit}")


def _figures(found: Found | None) -> tuple[str, str, str, str]:
    if found is None:
        return "", "", "", ""
    error = f"{found.figure:.3g} {found.unit} (at most {found.at_most:g})"
    if (speed := found.speed) is None:
        return error, found.seen, "", ""
    ratio = speed.ratio
    return (
        error,
        found.seen,
        f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g})",
        f"{speed.baseline} {seconds(speed.baseline_s)}, {speed.lever} {seconds(speed.lever_s)} per {speed.unit}",
    )
