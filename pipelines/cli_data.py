"""The commands that look after data sets: `dubsar data`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dubsar.pipelines.cli_options import SOME_FAILED, Overrides, Split, read_config

data = typer.Typer(help="Look after data sets.", no_args_is_help=True)


class LabelSource(StrEnum):
    """Layouts of data sets whose classes are labels."""

    folders = "folders"
    coco = "coco"


class Catalogue(StrEnum):
    """What labels can be."""

    none = "none"
    glyph = "glyph"
    name = "name"
    hzl = "HZL"
    mzl = "MZL"
    abz = "ABZ"


@data.command("check")
def check(
    root: Annotated[Path | None, typer.Argument(help="Data folder; without it DUBSAR_DATA or ../shared/data.")] = None,
) -> None:
    """Report every defect of a data set with file and line, and leaks between splits; exit status 1 for errors.

    Examples:

        dubsar data check

        dubsar data check /data/cuneiform
    """
    from dubsar.pipelines.data_report import report_defects

    if report_defects(root):
        raise typer.Exit(SOME_FAILED)


@data.command("labels")
def labels(
    root: Annotated[Path | None, typer.Option(help="Also look through a data set of labels: its folder.")] = None,
    source: Annotated[LabelSource, typer.Option(help="How that data set is laid out.")] = LabelSource.folders,
    catalogue: Annotated[Catalogue, typer.Option(help="What its labels are.")] = Catalogue.hzl,
    tablet_pattern: Annotated[str, typer.Option(help="As data.tablet_pattern of classify.")] = "",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the map as a table with tabs.")] = None,
) -> None:
    """Map HZL numbers to MZL, ABZ and Unicode, and count what has no code point, there and in a data set of labels.

    Examples:

        dubsar data labels

        dubsar data labels -o hzl.tsv

        dubsar data labels --root my-crops --source folders --catalogue HZL
    """
    from dubsar.pipelines.label_report import report_data_set, report_map

    report_map(out)
    if root is not None:
        report_data_set(root, source.value, catalogue.value, tablet_pattern)


@data.command("align")
def align(
    overrides: Overrides = None,
    split: Annotated[Split, typer.Option(help="Whose photographs; a table is of train.")] = Split.train,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the new labels of train as a table.")] = None,
) -> None:
    """Label signs that nobody has boxed by the transliteration of their tablet, and say how often that is right.

    Settings are those of `dubsar read`, such as detect_threshold or weights.

    Examples:

        dubsar data align --split dev

        dubsar data align -o more.tsv && dubsar train classify data.more_signs=more.tsv
    """
    from dubsar.pipelines.text_labels import label_from_text

    label_from_text(split.value, out, read_config(None, overrides or []))


@data.command("list")
def list_public() -> None:
    """List public sources that can be fetched by hand, with address and licence.

    Example:

        dubsar data list
    """
    from dubsar.pipelines.data_report import list_sources

    list_sources()
