"""The commands that describe signs and find look-alikes: `dubsar features` and `dubsar similar`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dubsar.pipelines.cli_options import Overrides

SOME_FAILED, ALL_FAILED = 1, 3


class Described(StrEnum):
    """What a row of features stands for."""

    signs = "signs"
    photographs = "photographs"


Weights = Annotated[Path | None, typer.Option(help="Of classify or pretrain; without it the classifier that ships.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; auto is the GPU where there is one.")]
MaxMegapixels = Annotated[float | None, typer.Option(help="Refuse larger pictures.")]


def features(
    folder: Annotated[Path, typer.Argument(help="A folder of photographs.", show_default=False)],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write, *.npz.", show_default=False)],
    weights: Weights = None,
    of: Annotated[Described, typer.Option(help="One row per sign, or per photograph.")] = Described.signs,
    max_megapixels: MaxMegapixels = None,
    device: Device = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
) -> None:
    """Write what a network sees in each sign of a folder of photographs, as rows of numbers.

    The .npz holds features, boxes, file names and guesses, and no pickle: `np.load(path)["features"]`.

    Examples:

        dubsar features photographs/ -o signs.npz

        dubsar features photographs/ -o signs.npz --weights runs/pretrain/mine detect_threshold=0.4
    """
    from dubsar.configs.base import load
    from dubsar.configs.schema import ReadConfig, shipped_config
    from dubsar.pipelines.look_alikes import write_features

    given = {"max_megapixels": max_megapixels, "device": device}
    settings = [*(overrides or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    config = load(shipped_config("read"), ReadConfig, tuple(settings))
    outcome = write_features(folder, out, config, weights=weights, of=of.value, overwrite=overwrite)
    if outcome.failed:
        raise typer.Exit(SOME_FAILED if outcome.done else ALL_FAILED)


def similar(  # noqa: PLR0917 - typer passes all by name
    crop: Annotated[str, typer.Argument(help="A picture of a sign, or photo.jpg#x0,y0,x1,y1.", show_default=False)],
    among: Annotated[Path, typer.Option(help="What `dubsar features` wrote.", show_default=False)],
    count: Annotated[int, typer.Option("-k", "--count", min=1, max=1000, help="Most look-alikes.")] = 20,
    out: Annotated[Path, typer.Option("-o", "--out", help="The picture to write, .png or .jpg.")] = Path("similar.png"),
    weights: Annotated[Path | None, typer.Option(help="Where those that made the features are now.")] = None,
    photographs: Annotated[Path | None, typer.Option(help="Where the folder of photographs is now.")] = None,
    max_megapixels: MaxMegapixels = None,
    device: Device = None,
) -> None:
    """Find the signs that look most like a given one, and write a picture of them side by side.

    A box is in px of the photograph's own pixels, as `dubsar read` writes them. The sign itself is left out.

    Examples:

        dubsar similar sign.png --among signs.npz

        dubsar similar photo.jpg#310,422,371,480 --among signs.npz -k 40 -o similar.png
    """
    from dubsar.datasets.images import MAX_MEGAPIXELS
    from dubsar.pipelines.look_alikes import find_look_alikes

    outcome = find_look_alikes(
        crop,
        among,
        out,
        count=count,
        weights=weights,
        photographs=photographs,
        max_megapixels=max_megapixels or MAX_MEGAPIXELS,
        device=device or "auto",
    )
    if outcome.failed:
        raise typer.Exit(SOME_FAILED if outcome.done else ALL_FAILED)
