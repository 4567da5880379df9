"""What `dubsar doctor` prints: what this machine can do, and what is missing for the rest."""

import os
import platform
import shutil
from importlib.metadata import version
from typing import Any

import torch
from rich.table import Table

from dubsar.configs.blocks import Dora, Efficiency, Ema, Swa
from dubsar.datasets.sources import data_root
from dubsar.datasets.synthetic.glyphs import FontError, assyrian_table, available_fonts
from dubsar.models.checkpoint import CheckpointError, load_model, shipped
from dubsar.pipelines.console import print_table
from dubsar.pipelines.levers.resolve import Resolution, resolve
from dubsar.pipelines.levers.table import BY_NAME, LEVERS, STAGES
from dubsar.pipelines.training import hardware

# what each lever is asked for where no config says it
EACH_ON: dict[str, Any] = {
    "precision": "bf16",
    "compile": "per_block",
    "compile_mode": "max-autotune",
    "attention": "flash",
    "fused_optimizer": True,
    "packing": "auto",
    "ema": Ema().model_dump(),
    "swa": Swa().model_dump(),
    "dora": Dora().model_dump(),
    "checkpointing": "selective",
    "cuda_graphs": True,
    "channels_last": True,
    "liger": True,
}


def examine() -> None:
    """Print machine, fonts, data, weights and levers."""
    table = Table("what", "found", show_header=False)
    table.add_row("dubsar", version("dubsar"))
    table.add_row("Python, torch", f"{platform.python_version()}, {torch.__version__}")
    table.add_row("computes on", hardware())
    table.add_row("bf16 on CPU", _bf16())
    table.add_row("memory", _memory())
    table.add_row("free disk here", f"{shutil.disk_usage('.').free / 2**30:.0f} GiB")
    table.add_row("fonts", _fonts())
    table.add_row("data", _data())
    for stage in sorted(STAGES):
        table.add_row(f"weights, {stage}", _weights(stage))
    print_table(table)
    levers = Table("lever", *sorted(STAGES), title="if asked for, each lever becomes")
    for lever in LEVERS:
        cells = [resolve_alone(lever.name, stage) for stage in sorted(STAGES)]
        levers.add_row(lever.name, *(f"{c.resolved}" + (f" ({c.why})" if c.why else "") for c in cells))
    print_table(levers)


def resolve_alone(lever: str, stage: str) -> Resolution:
    """Resolve a lever that is asked for alone: beside ema, for one, swa would be refused."""
    needed = BY_NAME[lever].requires
    block = Efficiency.model_validate({name: EACH_ON[name] for name in (*needed, lever)}, strict=False)
    return next(row for row in resolve(block, stage).rows if row.lever == lever)


def _bf16() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    try:
        native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # torch builds without oneDNN, as on Apple silicon
        native = False
    return f"{capability}, " + ("native bf16 kernels" if native else "no native bf16: slower than fp32")


def _memory() -> str:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * page / 2**30:.0f} GiB"


def _fonts() -> str:
    table = assyrian_table(data_root())
    try:
        return ", ".join(f.name for f in available_fonts(table if table.exists() else None))
    except FontError as error:
        return f"none: {error}"


def _data() -> str:
    root = data_root()
    return (
        str(root)
        if root.is_dir()
        else f"{root} is not there; set DUBSAR_DATA (needed to train and evaluate, not to read)"
    )


def _weights(stage: str) -> str:
    try:
        card = load_model(shipped(stage), stage).card
    except (FileNotFoundError, CheckpointError) as error:
        return f"not usable: {error}"
    return f"{card['config']['name']}, {card['parameters']:,} parameters, {card['licence'].split('.')[0]}"
