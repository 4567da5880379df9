"""The ``dubsar`` command. Commands only: bodies live below, and nothing heavy is imported before a command needs it.

Exit status: 0 done; 1 some inputs failed, or a benchmark misses what is required; 2 wrong use or bad input; 3 all
inputs failed; 4 nothing could be written (disk full); 5 the training diverged. Of `parity`: 0 only where parity is
proved; 10 inconclusive, 11 inferior, 12 a lever did nothing, 13 this machine does not repeat itself.
"""

import errno
import io
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dubsar.pipelines.cli_data import data
from dubsar.pipelines.cli_ensemble import ensemble
from dubsar.pipelines.cli_features import features, similar
from dubsar.pipelines.cli_options import SOME_FAILED, Overrides, Split, Stage, read_config, stage_config
from dubsar.pipelines.cli_proof import bench, compare, curve, parity, recipes

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else PyTorch's profiler writes to the terminal
WRONG_USE, ALL_FAILED, NOT_WRITTEN, DIVERGED = 2, 3, 4, 5

app = typer.Typer(
    help="Read cuneiform tablets, and train every model that this takes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data, name="data")
app.command()(parity)
app.command()(bench)
app.command()(compare)
app.command()(curve)
app.command()(recipes)
app.command()(ensemble)
app.command()(features)
app.command()(similar)


class Exported(StrEnum):
    """What can be exported for use in other programs."""

    detect = "detect"


class Evaluated(StrEnum):
    """What can be evaluated."""

    pretrain = "pretrain"
    classify = "classify"
    detect = "detect"
    transliterate = "transliterate"
    read = "read"


Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; auto is the GPU where there is one.")]


@app.command()
def read(  # noqa: PLR0917 - typer passes all by name
    source: Annotated[Path, typer.Argument(help="A photograph, or a folder of them.", show_default=False)],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for report, JSON, CSV, text, picture.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML like configs/read.yaml.")] = None,
    language: Annotated[str | None, typer.Option(help="akk, hit or xhu.")] = None,
    max_megapixels: Annotated[float | None, typer.Option(help="Refuse larger pictures.")] = None,
    device: Device = None,
    overwrite: Annotated[bool, typer.Option(help="Replace another photograph's results in the folder.")] = False,
) -> None:
    """Transliterate a photograph, or a folder of photographs.

    Examples:

        dubsar read tablet.jpg

        dubsar read photographs/ -o out/ --language hit

        dubsar read tablet.jpg -o out/ detect_threshold=0.4 beams=4

        dubsar read tablet.jpg classifier=runs/classify/mine
    """
    from dubsar.pipelines.reading.folder import read_photographs

    given = {"language": language, "max_megapixels": max_megapixels, "device": device}
    settings = [*(overrides or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    outcome = read_photographs(source, out, read_config(config, settings), overwrite=overwrite)
    if outcome.failed:
        raise typer.Exit(SOME_FAILED if outcome.done else ALL_FAILED)


@app.command()
def train(  # noqa: PLR0917 - typer passes all by name
    stage: Stage,
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(help="A YAML; without it the stage's own, which ships.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; without it runs/<stage>/<name>.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Start anew in a folder that is not empty.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print what would run, and write nothing.")] = False,
) -> None:
    """Train a stage end to end.

    Examples:

        dubsar train classify

        dubsar train transliterate --config configs/debug/transliterate.yaml --overwrite

        dubsar train detect trainer.max_steps=3000 --dry-run
    """
    resolved = stage_config(stage.value, config, overrides)
    from dubsar.pipelines.launch import describe, launch

    if dry_run:
        describe(resolved)
        return
    launch(resolved, run or Path("runs") / stage.value / resolved.name, resume=resume, overwrite=overwrite)


@app.command()
def evaluate(  # noqa: PLR0913, PLR0917 - options of a command, which typer passes by name
    what: Evaluated,
    overrides: Overrides = None,
    split: Annotated[Split, typer.Option(help="Tune on dev; test is for the final number.")] = Split.dev,
    weights: Annotated[Path | None, typer.Option(help="Weights; without it those that ship.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many photographs or lines; 0: all.")] = 0,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also write the scores as JSON.")] = None,
    device: Device = None,
    report: Annotated[Path | None, typer.Option(help="Of classify: folder for a page with pictures.")] = None,
    relight: Annotated[int, typer.Option(min=0, help="Of classify: also average over so many exposures.")] = 0,
) -> None:
    """Score a stage, or reading from photograph to text.

    Examples:

        dubsar evaluate classify --split test

        dubsar evaluate classify --split test --report report/

        dubsar evaluate read --split test -o scores.json
    """
    from dubsar.pipelines.evaluation import evaluate_read, evaluate_stage

    if weights is not None and what is Evaluated.read:
        raise ValueError("--weights: reading uses three networks; give them as detector=, classifier=, transliterator=")
    if overrides and what is not Evaluated.read:
        raise ValueError(
            f"{overrides[0]!r}: weights are scored as they were trained; only `evaluate read` takes settings"
        )
    if what is Evaluated.read and (report or relight):
        raise ValueError("--report, --relight: only `evaluate classify` has them, not read; leave them out")
    if what is Evaluated.read:
        settings = [*(overrides or []), *([f"device={device}"] if device else [])]
        evaluate_read(read_config(None, settings), split.value, limit=limit, out=out)
    else:
        place = device or "auto"
        evaluate_stage(
            what.value, weights, split.value, limit=limit, out=out, device=place, report=report, relight=relight
        )


@app.command()
def synth(
    count: Annotated[int, typer.Argument(min=1, help="How many tablets.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new or empty folder.", show_default=False)],
    font: Annotated[list[Path] | None, typer.Option(help="Your own font; may be given several times.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same tablets.")] = 0,
    text: Annotated[str | None, typer.Option(help="Draw text from a line table: oracc or hittite.")] = None,
) -> None:
    """Render synthetic tablets with exact boxes and text.

    No font here has Hittite sign shapes: Noto's are monumental, Assyrian's Neo-Assyrian. Bring your own with --font.

    Examples:

        dubsar synth 20 -o synthetic/

        dubsar synth 20 -o synthetic/ --font MyHittite.ttf --text hittite
    """
    from dubsar.pipelines.launch import render_tablets

    render_tablets(count, out, seed=seed, fonts=font or [], text=text)


@app.command("config")
def show_config(
    stage: Annotated[str, typer.Argument(help="classify, detect, transliterate or read.")], overrides: Overrides = None
) -> None:
    """Print a stage's config as it would run, ready to be saved and changed.

    Example:

        dubsar config classify optim.lr=1e-3 > mine.yaml
    """
    from dubsar.configs.base import dump

    resolved = read_config(None, overrides or []) if stage == "read" else stage_config(stage, None, overrides)
    typer.echo(dump(resolved), nl=False)


@app.command()
def ship(
    stage: Stage,
    run: Annotated[Path | None, typer.Option(help="Run folder; without it runs/<stage>/small.")] = None,
) -> None:
    """Make a run's weights those that ship: rounded to float16, scored again on dev, with a model card.

    Example:

        dubsar ship classify
    """
    from dubsar.pipelines.ship import ship as ship_run

    ship_run(stage.value, run or Path("runs") / stage.value / "small")


@app.command()
def export(
    what: Annotated[Exported, typer.Argument(help="The detector is what others can use.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write, *.pt.", show_default=False)],
    weights: Annotated[Path | None, typer.Option(help="Weights; without it those that ship.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
) -> None:
    """Write the detector as a .pt for use in Ultralytics (`YOLO("detector.pt")`).

    That format is a pickle, which can run code when it is loaded. Ultralytics needs it; dubsar itself never loads one.

    Examples:

        dubsar export detect -o detector.pt

        dubsar export detect -o mine.pt --weights runs/detect/mine --overwrite
    """
    from dubsar.pipelines.export_detector import export_detector

    export_detector(weights, out, overwrite=overwrite)


@app.command()
def doctor() -> None:
    """Say what this machine can do: devices, memory, fonts, data, shipped weights, and which levers can act.

    Example:

        dubsar doctor
    """
    from dubsar.pipelines.doctor import examine

    examine()


def main() -> None:
    """Run the command line; turn expected faults into one line and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name in another encoding must not end the command
            stream.reconfigure(errors="replace")
    try:
        app()
    except (
        ValueError,
        FileNotFoundError,
        FileExistsError,
        NotADirectoryError,
        IsADirectoryError,
        PermissionError,
    ) as error:
        _fail(error, WRONG_USE)
    except OSError as error:
        _fail(error, NOT_WRITTEN if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS} else WRONG_USE)
    except RuntimeError as error:
        if type(error).__name__ != "DivergedError":
            raise
        _fail(error, DIVERGED)


def _fail(error: Exception, status: int) -> None:
    if os.environ.get("DUBSAR_DEBUG"):
        raise error
    print(f"dubsar: {error}", file=sys.stderr)
    sys.exit(status)
