"""The configs that ship: each loads, and a reference is its bundle's twin with all levers off."""

from pathlib import Path

import pytest

from dubsar.configs.base import load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import STAGES, ReadConfig
from dubsar.configs.variants import load_variants
from dubsar.pipelines.levers.resolve import resolve

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(p.relative_to(CONFIGS).as_posix() for p in CONFIGS.rglob("*.yaml") if "recipes" not in p.parts)
RECIPES = sorted((CONFIGS / "recipes").rglob("*.yaml"))


@pytest.mark.parametrize("file", FILES)
def test_a_shipped_config_loads_and_its_header_names_a_command(file: str) -> None:
    path = CONFIGS / file
    stage = path.stem.split("_")[0]  # classify_hittite is a config of classify
    load(path, ReadConfig if stage == "read" else STAGES[stage])
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_variant_of_a_shipped_recipe_loads_and_its_header_names_a_command(path: Path) -> None:
    assert len(load_variants(path, path.stem)) > 2
    assert path.read_text(encoding="utf-8").startswith(
        f"# dubsar recipes {path.stem} configs/{path.relative_to(CONFIGS)}"
    )


@pytest.mark.parametrize("stage", STAGES)
def test_the_reference_is_the_bundle_with_all_levers_off(stage: str) -> None:
    bundle, reference = (load(CONFIGS / folder / f"{stage}.yaml", STAGES[stage]) for folder in ("a100", "reference"))
    assert reference.efficiency == Efficiency()
    assert bundle.model_copy(update={"efficiency": Efficiency(), "name": "reference"}) == reference


@pytest.mark.parametrize("stage", STAGES)
def test_every_lever_of_the_bundle_acts_on_a_gpu(stage: str) -> None:
    bundle = load(CONFIGS / "a100" / f"{stage}.yaml", STAGES[stage]).efficiency
    rows = resolve(bundle.model_copy(update={"precision": "fp32"}), stage, cuda=True).rows
    assert [(row.lever, row.why) for row in rows if row.why] == []
    assert bundle.precision == "bf16"  # which the GPU itself has to confirm
