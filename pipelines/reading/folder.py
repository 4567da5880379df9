"""Read one photograph or a folder of them: progress, results in files, and a table of what failed and why."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dubsar.configs.schema import ReadConfig
from dubsar.datasets.images import ImageError, find_images
from dubsar.datasets.sources import require_outside_data
from dubsar.pipelines.reading.export import to_text, write_annotated, write_csv, write_json, write_text
from dubsar.pipelines.reading.progress import watched
from dubsar.pipelines.reading.read import Reading, load_engine, read_photograph
from dubsar.pipelines.reading.report import write_report


@dataclass
class Outcome:
    """Photographs that were read, and those that were not with the reason."""

    done: list[Path] = field(default_factory=list)
    failed: list[tuple[Path, str]] = field(default_factory=list)


def read_photographs(source: Path, out: Path | None, config: ReadConfig, *, overwrite: bool = False) -> Outcome:
    """Read a photograph, or all below a folder, and go on past those that cannot be read.

    Args:
        source: a picture file, or a folder.
        out: where results go: for one photograph into this folder, for a folder one folder each, named like the file.
        config: how to read.
        overwrite: let results of a photograph replace those of another one.

    Raises:
        FileNotFoundError: there is no such file or folder.
        FileExistsError: ``out`` holds the results of another photograph.
        ImageError: the only photograph is not usable, or the folder holds none.
        ValueError: ``out`` lies in the data folder, or the config's device is not there.
    """
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such photograph or folder")
    if out is not None and out.resolve() == source.resolve():
        raise ImageError(f"{out}: results cannot go where the photographs are; name another folder with -o")
    paths = find_images(source) if source.is_dir() else [source]
    if out is not None and out.resolve().is_relative_to(source.resolve()):  # results are no photographs
        paths = [p for p in paths if not p.resolve().is_relative_to(out.resolve())]
    if not paths:
        raise ImageError(f"{source}: no pictures in this folder; expected JPEG, PNG, TIFF, BMP, WebP or GIF")
    if out is not None:
        require_outside_data(out, "--out")
        if not source.is_dir() and not overwrite:
            _require_own(out, source)
    engine = load_engine(config)
    outcome = Outcome()
    for path in watched(paths, "reading"):
        try:
            reading = read_photograph(path, engine, config)
        except (ImageError, OSError, MemoryError, RuntimeError) as error:
            # a fault of this file, or too large for the GPU (torch's own error): the others go on
            of_this_file = not isinstance(error, RuntimeError) or type(error).__name__ == "OutOfMemoryError"
            if not source.is_dir() or not of_this_file:
                raise
            outcome.failed.append((path, str(error) or type(error).__name__))
        else:
            if out is not None:
                write_results(reading, out / path.relative_to(source) if source.is_dir() else out)
            outcome.done.append(path)
            _print(reading, titled=len(paths) > 1)
    if outcome.failed:
        _print_failures(outcome, source, Console(stderr=True))
    if out is not None and outcome.done:
        print(f"written to {out}")
    return outcome


def _require_own(out: Path, photograph: Path) -> None:
    """Refuse a folder that holds the results of a photograph of another name."""
    path = out / "tablet.json"
    if not path.exists():
        return
    try:
        other = json.loads(path.read_bytes())["image"]
    except (ValueError, KeyError, TypeError):
        other = "something else"
    if other != photograph.name:
        raise FileExistsError(
            f"{path}: holds the results of {other}, not of {photograph.name}; "
            "name another folder with -o, or replace them with --overwrite"
        )


def write_results(reading: Reading, folder: Path) -> None:
    """Write report, JSON, text, CSV and the annotated picture of one reading."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(reading.tablet, folder / "tablet.json")
    write_text(reading.tablet, folder / "tablet.txt")
    write_csv(reading.tablet, folder / "signs.csv", reading.inventory)
    write_annotated(reading.image, reading.tablet, folder / "annotated.jpg")
    write_report(reading.image, reading.tablet, folder / "report.html", reading.inventory)


def _print(reading: Reading, *, titled: bool) -> None:
    if titled:
        print(f"# {reading.tablet.image}")
    print("\n".join([to_text(reading.tablet).rstrip(), *reading.tablet.notes]))
    signs = sum(s.box is not None for s in reading.tablet.signs())
    total = sum(reading.seconds.values())
    shares = ", ".join(f"{step} {s / total:.0%}" for step, s in reading.seconds.items())
    Console(stderr=True, soft_wrap=True).print(f"{signs} signs in {total:.1f} s ({shares})", style="dim")


def _print_failures(outcome: Outcome, source: Path, console: Console) -> None:
    table = Table(
        "photograph", "why", title=f"{len(outcome.failed)} of {len(outcome.failed) + len(outcome.done)} were not read"
    )
    for path, why in outcome.failed:
        table.add_row(escape(str(path.relative_to(source))), escape(why.removeprefix(f"{path}: ")))
    console.print(table)
