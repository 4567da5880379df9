"""The commands that prove what settings cost and gain: `dubsar parity`, `bench`, `compare`, `curve`, `recipes`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dubsar.pipelines.cli_options import Overrides, Stage, stage_config

UNMET = 1
OF_FILES = "--reference and --candidate (and --split)"


class Preset(StrEnum):
    """How much a comparison takes."""

    full = "full"
    two_epochs = "two_epochs"
    gpu_check = "gpu-check"


class Bench(StrEnum):
    """Benchmarks."""

    packing = "packing"
    crops = "crops"
    read = "read"
    step = "step"
    optimizer = "optimizer"
    compile = "compile"
    pretrain = "pretrain"
    classify = "classify"


def parity(  # noqa: PLR0913, PLR0917 - options of a command, which typer passes by name
    stage: Annotated[Stage | None, typer.Argument(help="Not needed for gpu-check.", show_default=False)] = None,
    overrides: Overrides = None,
    levers: Annotated[str | None, typer.Option(help="Levers to judge, as a,b; without it the config's bundle.")] = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="All levers that the config turns on (the default).")
    ] = False,
    preset: Annotated[Preset, typer.Option(help="two_epochs: the first two only.")] = Preset.full,
    seeds: Annotated[int, typer.Option(min=1, help="Paired trainings.")] = 3,
    margin: Annotated[list[str] | None, typer.Option(help="Bearable loss, as cer=0.2 (percentage points).")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML; without it the stage's own, which ships.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Without it runs/parity/STAGE-NAME.")] = None,
    fallback: Annotated[str, typer.Option(help="fp32: judge again in float32 where 16 bits are inferior.")] = "",
    runs: Annotated[int, typer.Option(min=0, help="Most comparisons to find a failing bundle's culprit.")] = 25,
    reference: Annotated[Path | None, typer.Option(help="Finished weights, to train nothing; of classify.")] = None,
    candidate: Annotated[Path | None, typer.Option(help="Those that are to be as good.")] = None,
    split: Annotated[str, typer.Option(help="dev or test: whose signs finished weights read.")] = "dev",
) -> None:
    """Prove, or fail to prove, that optimisations cost no accuracy. Finished trainings in the folder are used again.

    With --reference and --candidate two finished files are compared, such as an ensemble and what it taught.

    Examples:

        dubsar parity transliterate --levers packing

        dubsar parity transliterate --bundle --seeds 5 --margin cer=0.5 --margin ser=1

        dubsar parity --preset gpu-check

        dubsar parity classify --reference runs/classify/three --candidate runs/classify/student
          --margin top1=1 --margin top5=1
    """
    from dubsar.pipelines.parity.plan import Plan, choose_levers, parse_margins

    if preset is Preset.gpu_check:
        from dubsar.pipelines.parity.gpu.check import gpu_check
        from dubsar.pipelines.parity.result import exit_status

        raise typer.Exit(exit_status(gpu_check(out).verdict))
    if stage is None:
        raise ValueError(f"STAGE is missing: {', '.join([*Stage][:-1])} or {[*Stage][-1]}")
    if bundle and levers:
        raise ValueError("--bundle and --levers exclude one another")
    margins = parse_margins(margin or [])
    if reference or candidate or split != "dev":
        if overrides or levers or bundle or config or fallback or preset is not Preset.full:
            raise ValueError(
                f"{OF_FILES} compare finished weights; config, levers, preset and fallback are for trainings"
            )
        _conclude(_judge_files(stage, (reference, candidate), margins, split, out))
    from dubsar.pipelines.parity.run import parity as judge_plan

    resolved = stage_config(stage.value, config, overrides)
    asked = choose_levers(resolved, levers.split(",") if levers else [])
    folder = out or Path("runs/parity") / f"{stage.value}-{resolved.name}"
    plan = Plan(resolved, asked, margins, seeds, folder, runs)
    _conclude(judge_plan(plan, preset=preset.value, fallback=fallback))


def _conclude(result: Any) -> NoReturn:
    """Print what was found, and end with the verdict's status."""
    from dubsar.pipelines.console import print_table
    from dubsar.pipelines.parity.report.write import summarise
    from dubsar.pipelines.parity.result import exit_status

    for table in summarise(result):
        print_table(table)
    raise typer.Exit(exit_status(result.verdict))


def _judge_files(
    stage: Stage, files: tuple[Path | None, Path | None], margins: dict[str, float], split: str, out: Path | None
) -> Any:
    """Compare two finished files of weights."""
    reference, candidate = files
    if reference is None or candidate is None:
        raise ValueError(f"{OF_FILES} go together: give both, or neither to compare trainings")
    if stage is not Stage.classify:
        raise ValueError(f"{OF_FILES} are of classify, not of {stage.value}; compare its trainings instead")
    if split not in {"dev", "test"}:
        raise ValueError(f"--split is {split!r}, expected dev or test")
    from dubsar.pipelines.parity.finished import judge_files

    return judge_files(reference, candidate, margins, split, out or Path("runs/parity/classify-files"))


def bench(
    what: Bench,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder for JSON and plot.")] = None,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Of the CPU.")] = 1,
    clock: Annotated[str, typer.Option(help="wall, or cpu: the time that this process computed.")] = "wall",
    stage: Annotated[list[Stage] | None, typer.Option(help="For step, optimizer, compile; without it all.")] = None,
) -> None:
    """Measure what an optimisation gains, interleaved with what it replaces, and say whether what is required is met.

    Examples:

        dubsar bench packing -o bench/

        dubsar bench step --stage classify --clock cpu
    """
    from dubsar.pipelines.bench.run import bench as run_bench

    stages = [s.value for s in stage or []]
    result = run_bench(what.value, out, rounds=rounds, threads=threads, clock=clock, stages=stages)
    raise typer.Exit(0 if result.passed else UNMET)


def compare(  # noqa: PLR0917 - typer passes all by name
    stage: Stage,
    overrides: Overrides = None,
    instead: Annotated[list[str] | None, typer.Option("--with", help="The second's settings, as key=value.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML; without it the stage's own, which ships.")] = None,
    other: Annotated[Path | None, typer.Option(help="The second's YAML, where not only settings differ.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Paired trainings.")] = 3,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Without it runs/compare/STAGE-NAME.")] = None,
) -> None:
    """Train two configs with the same seeds and estimate how much better the second is on dev.

    Examples:

        dubsar compare classify --with model.weights=runs/pretrain/small/pretrain.safetensors

        dubsar compare transliterate --with data.broken_noise=0 --seeds 5
    """
    from dubsar.pipelines.comparison import compare_configs

    if not instead and other is None:
        raise ValueError("nothing differs: give the second's settings by --with key=value, or its YAML by --other")
    shared = list(overrides or [])
    first = stage_config(stage.value, config, shared)
    second = stage_config(stage.value, other or config, [*shared, *(instead or [])])
    compare_configs(first, second, out or Path("runs/compare") / f"{stage.value}-{first.name}", seeds=seeds)


def curve(
    stage: Stage,
    overrides: Overrides = None,
    fractions: Annotated[str, typer.Option(help="Shares of the training labels.")] = "0.1,0.3,1",
    config: Annotated[Path | None, typer.Option(help="A YAML; without it the stage's own, which ships.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each share.")] = 3,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Without it runs/curve/STAGE-NAME.")] = None,
) -> None:
    """Train on shares of the labels and draw what is reached on dev. Finished trainings in the folder are used again.

    Example:

        dubsar curve classify --config configs/vit/classify_few_labels.yaml --fractions 0.1,0.3,1 --seeds 3
    """
    from dubsar.pipelines.trials.curve import learning_curve

    _require_classify(stage, "curve")
    try:
        shares = [float(f) for f in fractions.split(",")]
    except ValueError:
        raise ValueError(f"--fractions is {fractions!r}, expected numbers such as 0.1,0.3,1") from None
    resolved = stage_config(stage.value, config, overrides)
    learning_curve(resolved, shares, out or Path("runs/curve") / f"{stage.value}-{resolved.name}", seeds=seeds)


def recipes(
    stage: Stage,
    file: Annotated[Path, typer.Argument(help="A YAML like configs/recipes/classify.yaml.", show_default=False)],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each variant.")] = 3,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Without it runs/recipes/STAGE-FILE.")] = None,
) -> None:
    """Train named variants of a config and tabulate what each gains over the first on dev.

    Overrides hold for all variants. Finished trainings in the folder are used again.

    Example:

        dubsar recipes classify configs/recipes/classify.yaml trainer.max_steps=300
    """
    from dubsar.configs.variants import load_variants
    from dubsar.pipelines.trials.recipes import try_recipes

    _require_classify(stage, "recipes")
    configs = load_variants(file, stage.value, tuple(overrides or ()))
    try_recipes(configs, out or Path("runs/recipes") / f"{stage.value}-{file.stem}", seeds=seeds)


def _require_classify(stage: Stage, command: str) -> None:
    if stage is not Stage.classify:
        raise ValueError(f"`dubsar {command}` knows classify alone, not {stage.value}; `dubsar compare` takes any")
