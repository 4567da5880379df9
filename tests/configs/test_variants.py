"""Files of variants: what each comes to, and every fault with file and line."""

from pathlib import Path

import pytest

from dubsar.configs.base import ConfigError, place_of
from dubsar.configs.variants import load_variants

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "debug" / "classify.yaml"


def put(folder: Path, text: str) -> Path:
    (folder / "base.yaml").write_text(DEBUG.read_text(encoding="utf-8"), encoding="utf-8")
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_variant_is_stronger_than_the_command_line_and_that_than_the_file(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "base: base.yaml\nsettings: [trainer.max_steps=9, model.mixup=0.1]\n"
        'variants:\n  full: []\n  mixup: [model.mixup=0.5]\n  ema: ["efficiency.ema={decay: 0.9}"]\n',
    )
    found = load_variants(path, "classify", ("model.mixup=0.2", "optim.lr=1e-2"))
    assert list(found) == ["full", "mixup", "ema"]
    assert {c.trainer.max_steps for c in found.values()} == {9}
    assert [c.model.mixup for c in found.values()] == [0.2, 0.5, 0.2]  # type: ignore[union-attr]
    assert found["ema"].efficiency.ema is not None
    assert found["full"].optim.lr == 1e-2


def test_faults_of_all_variants_are_told_with_their_lines(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "base: base.yaml\nvariants:\n  full: []\n  wrong: [model.mixpu=0.5]\n  again: [model.mixup=0.0]\n"
        "  both:\n    - model.mixup=much\n",
    )
    with pytest.raises(ConfigError) as error:
        load_variants(path, "classify")
    lines = str(error.value).split("\n")
    assert lines[0] == f"{path}:4: variant 'wrong': unknown key 'model.mixpu' (did you mean 'mixup'?)"
    assert lines[1] == f"{path}:5: variant 'again' is the same as 'full'; change a setting, or leave it out"
    assert lines[2].startswith(f"{path}:6: variant 'both': 'model.mixup' is 'much': ")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "base: nowhere.yaml\nvariants: {a: [], b: [model.mixup=0.1]}\n",
            ":1: 'base' is 'nowhere.yaml', but there",
        ),
        ("base: base.yaml\nvariants: {a: []}\n", ":2: 'variants' is .*at least 2 items"),
        ("base: base.yaml\nvariant: {a: []}\n", r":2: unknown key 'variant' \(did you mean 'variants'\?\)"),
        ("base: base.yaml\nvariants: {a: [], ../b: [model.mixup=0.1]}\n", ":2: 'variants.*../b"),
        ("base: base.yaml\nsettings: [model.mixpu=1]\nvariants: {a: [], b: []}\n", ":2: unknown key 'model.mixpu'"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_variants(put(tmp_path, text), "classify")


def test_what_the_command_line_says_wrong_is_its_own_fault(tmp_path: Path) -> None:
    path = put(tmp_path, "base: base.yaml\nvariants: {a: [], b: [model.mixup=0.1]}\n")
    with pytest.raises(ConfigError, match=r"^command line: unknown key 'optim\.rl'"):
        load_variants(path, "classify", ("optim.rl=1",))


def test_a_key_is_found_where_it_stands_or_where_its_parent_does(tmp_path: Path) -> None:
    path = put(tmp_path, "a: 1\nb:\n  c: 2\n  d:\n    - 3\n    - 4\n")
    assert [place_of(path, *keys) for keys in (("a",), ("b", "c"), ("b", "d", 1), ("b", "x"), ("x",))] == [
        f"{path}:{line}" for line in (1, 3, 6, 2, 1)
    ]
