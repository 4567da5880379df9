"""Levers that cannot act together are refused with file and line, and the table says the same."""

import pkgutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dubsar.configs.base import ConfigError, load
from dubsar.configs.blocks import Efficiency
from dubsar.configs.schema import STAGES
from dubsar.pipelines.levers.resolve import resolve
from dubsar.pipelines.levers.table import LEVERS

DEBUG = Path(__file__).resolve().parents[3] / "configs" / "debug"
ON: dict[str, Any] = {
    "precision": "bf16",
    "compile": "per_block",
    "compile_mode": "max-autotune",
    "attention": "sdpa",
    "fused_optimizer": True,
    "packing": "pack",
    "ema": {"decay": 0.9},
    "swa": {"from_fraction": 0.5},
    "dora": {"rank": 4},
    "checkpointing": "selective",
    "cuda_graphs": True,
    "channels_last": True,
    "liger": True,
}


def refused(**asked: Any) -> bool:
    try:
        Efficiency.model_validate(asked, strict=False)
    except ValidationError:
        return True
    return False


def test_config_and_table_agree_on_every_pair() -> None:
    rows = {lever.name: lever for lever in LEVERS}
    for one, first in ON.items():
        assert refused(**{one: first}) == bool(rows[one].requires), one
        for two, second in ON.items():
            lacks = set(rows[one].requires + rows[two].requires) - {one, two}
            rivals = two in rows[one].conflicts or one in rows[two].conflicts
            if one != two:
                assert refused(**{one: first, two: second}) == bool(lacks or rivals), (one, two)


@pytest.mark.parametrize(
    ("stage", "lines", "at", "says"),
    [
        ("classify", ["ema: {decay: 0.9}", "swa: {from_fraction: 0.5}"], 2, "'efficiency.swa' is .*conflicts with ema"),
        (
            "classify",
            ["precision: bf16", "compile_mode: max-autotune"],
            2,
            "'efficiency.compile_mode' is .*needs compile",
        ),
    ],
)
def test_a_conflict_is_a_config_error_with_file_and_line(
    stage: str, lines: list[str], at: int, says: str, tmp_path: Path
) -> None:
    text = (DEBUG / f"{stage}.yaml").read_text(encoding="utf-8").split("\nefficiency:")[0].rstrip("\n")
    path = tmp_path / "bad.yaml"
    path.write_text("\n".join([text, "efficiency:", *(f"  {line}" for line in lines)]) + "\n", encoding="utf-8")
    line = len(text.splitlines()) + 1 + at
    with pytest.raises(ConfigError, match=rf"bad\.yaml:{line}: {says}"):
        load(path, STAGES[stage])


def test_a_block_that_was_not_loaded_falls_back_with_the_reason() -> None:
    """As the leave-one-out of a parity check makes them, from a block that was valid."""
    bundle = Efficiency.model_validate({"compile": "full", "compile_mode": "max-autotune"}, strict=False)
    rest = resolve(bundle.model_copy(update={"compile": "off"}), "classify", cuda=True)
    assert rest["compile_mode"] == "default"
    assert next(r.why for r in rest.rows if r.lever == "compile_mode").startswith("compile is off")
    both = Efficiency(ema=None).model_copy(update={"ema": {"decay": 0.9}, "swa": {"lr": 1e-4}})
    assert resolve(both, "classify", cuda=False)["swa"] is None


def test_cuda_graphs_want_one_shape() -> None:
    for packing, able in (("off", False), ("bucket", False), ("auto", False), ("pack", True)):
        block = Efficiency(packing=packing, cuda_graphs=True)  # type: ignore[arg-type]
        assert resolve(block, "transliterate", cuda=True)["cuda_graphs"] is able
    assert resolve(Efficiency(cuda_graphs=True), "detect", cuda=True)["cuda_graphs"] is True
    with pytest.raises(ConfigError, match="cuda_graphs needs one side for all crops"):
        load(DEBUG / "classify.yaml", STAGES["classify"], ("efficiency.cuda_graphs=true", "data.first_px=24"))
    assert resolve(Efficiency(cuda_graphs=True), "detect", cuda=False)["cuda_graphs"] is False


def test_rows_name_levers_and_places_that_are_there() -> None:
    names = {lever.name for lever in LEVERS}
    for lever in LEVERS:
        assert {*lever.requires, *lever.conflicts, *lever.invalidates} <= names
        assert bool(lever.apply) != bool(lever.unavailable)
        assert not lever.apply or pkgutil.resolve_name(lever.apply)
        assert set(lever.exactness.split("+")) <= set("BAPSM")
        assert (lever.tolerance is None) == bool(set(lever.exactness) <= set("BMS") or lever.unavailable)
        assert all(lever.name in other.conflicts for other in LEVERS if other.name in lever.conflicts)
