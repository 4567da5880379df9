"""What the commands `train` and `synth` do: start a run, describe one without starting it, render tablets."""

import importlib
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from dubsar.configs.base import dump
from dubsar.configs.schema import StageConfig
from dubsar.datasets.lines import COLLECTIONS, read_line_pairs
from dubsar.datasets.sources import data_root, require_data, require_outside_data
from dubsar.datasets.synthetic.glyphs import assyrian_table, available_fonts
from dubsar.datasets.synthetic.scene import write_tablets
from dubsar.pipelines.console import print_table
from dubsar.pipelines.levers.resolve import resolve_config
from dubsar.pipelines.reading.progress import watched
from dubsar.pipelines.run_report import lever_table, read_levers, write_run_report
from dubsar.pipelines.training import check_run, is_first_rank, seed_everything

_BYTES_PER_PARAMETER = 16  # float32 weight, gradient and AdamW's two moments


def stage_module(stage: str) -> Any:
    """Import a stage's module."""
    return importlib.import_module(f"dubsar.pipelines.stages.{stage}")


def launch(config: StageConfig, folder: Path, *, resume: bool = False, overwrite: bool = False) -> dict[str, float]:
    """Train a stage in its run folder and print the scores of its kept weights on dev.

    A run that is there already is deleted or written to only when the stage is built and its data are read. Of several
    processes only the first one scores; the others return nothing.
    """
    require_outside_data(folder, "--run")
    if config.stage == "classify" and config.data.root:
        require_outside_data(folder, "--run", Path(config.data.root))
    levers = resolve_config(config)
    _require_inputs(config)
    check_run(folder, config, resume=resume, overwrite=overwrite)
    seed_everything(config.trainer)
    print_levers(levers.to_list())
    scores: dict[str, float] = stage_module(config.stage).run(config, folder, resume=resume, overwrite=overwrite)
    if is_first_rank(config.trainer):
        print_levers(read_levers(folder))
        write_run_report(folder, scores)
        print(f"{folder}: kept weights on dev  " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    return scores


def describe(config: StageConfig) -> None:
    """Print config, levers, size, memory, what the training set holds and the first batch's shapes; write nothing."""
    levers = resolve_config(config)
    _require_inputs(config)
    print(dump(config))
    print_levers(levers.to_list())
    seed_everything(config.trainer)
    system, stream = stage_module(config.stage).build(config, levers)
    parameters = sum(p.numel() for p in system.parameters())
    mebibytes = parameters * _BYTES_PER_PARAMETER / 2**20
    print(
        f"parameters: {parameters:,}; weights, gradients and optimizer: {mebibytes:.0f} MiB "
        "(activations, which grow with the batch, come on top)"
    )
    print("training set: " + ", ".join(f"{name} {count:,}" for name, count in stream.counts().items()))
    batch = stream.batch(0)
    for part in batch if isinstance(batch, list) else [batch]:
        shapes = [f"{name} {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in part.items()]
        print("first batch: " + "  ".join(shapes))


def _require_inputs(config: StageConfig) -> None:
    """Refuse a run whose data are not there, before anything is written."""
    if config.stage == "transliterate":
        folders = [COLLECTIONS[source].folder for source in config.data.sources]
    elif config.stage == "pretrain" and config.data.folders and not config.data.labelled:
        folders = []
    elif config.stage == "classify" and config.data.root:
        if not Path(config.data.root).is_dir():
            raise FileNotFoundError(f"{config.data.root}: no such folder; give the data set's folder as data.root")
        folders = []
    else:
        folders = ["tablet-signs"]
    for folder in folders:
        require_data(data_root(), folder)


def print_levers(rows: list[dict[str, Any]]) -> None:
    """Print the rows of ``levers.json``: of each lever that was asked for what it became, and what was seen of it."""
    head, body = lever_table(rows)
    table = Table(*head, title="efficiency levers (all others off)")
    for row in body:
        table.add_row(*row)
    if body:
        print_table(table)


def render_tablets(count: int, out: Path, *, seed: int, fonts: list[Path], text: str | None) -> None:
    """Render tablets into a folder, with text from a line table where one is named.

    Raises:
        FontError: no font is found.
        ValueError: no such line table, or the folder lies in the data folder.
    """
    require_outside_data(out, "--out")
    lines = None
    if text is not None:
        if text not in {"oracc", "hittite"}:
            raise ValueError(f"--text is {text!r}, expected oracc or hittite")
        pairs = read_line_pairs(data_root(), text, "train")  # type: ignore[arg-type]
        lines = [(p.signs, p.translit) for p in pairs if p.signs]
    glyph_table = assyrian_table(data_root())
    if not glyph_table.exists():
        print(
            f"{glyph_table} is not there, so the font Assyrian cannot be used: shapes are monumental (set DUBSAR_DATA)"
        )
    started = time.process_time()
    found = available_fonts(glyph_table if glyph_table.exists() else None, extra=fonts)
    write_tablets(count, out, seed, found, lines, watch=lambda numbers: watched(numbers, "rendering"))
    print(f"{out}: {count} tablets, {count / (time.process_time() - started):.1f} per second of CPU time")
