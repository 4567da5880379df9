"""The command that lets trained classifiers vote: `dubsar ensemble`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Voting(StrEnum):
    """What can vote."""

    classify = "classify"


def ensemble(
    stage: Annotated[Voting, typer.Argument(help="What can vote.", show_default=False)],
    runs: Annotated[list[Path], typer.Argument(help="Run folders or weights, two or more.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the one file.", show_default=False)],
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N; auto is the GPU where there is one.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace an ensemble that is there.")] = False,
) -> None:
    """Let trained classifiers vote, by weights and temperatures that are found on dev, and write them as one file.

    That file is used like any other weights. Whether it gains on test: `dubsar evaluate classify --weights FOLDER
    --split test`.

    Examples:

        dubsar ensemble classify runs/classify/convnext runs/classify/vit runs/classify/small -o runs/classify/three

        dubsar ship classify --run runs/classify/three
    """
    from dubsar.pipelines.ensembling import ensemble as let_vote

    let_vote(runs, out, device=device, overwrite=overwrite)
