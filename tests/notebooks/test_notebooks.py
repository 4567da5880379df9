"""The notebooks: each runs as a script, in a minute, and is what `make notebooks` generates from it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SCRIPTS = sorted((FOLDER / "src").glob("*.py"))
NO_DATA = {"01_read": "obverse", "02_data": "0 photographs", "03_train": "stages to train: []"}
WITH_DATA = {
    "02_data": ("MZL 839 · HZL 364/365 · ABZ 579", "HZL 335 is 𒄭 HI", "'error'", "KBo 4.9"),
    "03_train": ("classify: kept weights on dev", "detect: kept weights on dev", "transliterate: kept weights on dev"),
    "04_evaluate": ("sign_recall50", "classify on dev", "read on dev, 1 photographs", "transliterate on dev"),
}


def run_script(name: str, folder: Path, data: Path) -> tuple[str, float]:
    """Run a notebook's script in an empty folder; returns what it printed, and the CPU time it took, s."""
    environment = {**os.environ, "MPLBACKEND": "Agg", "DUBSAR_DATA": str(data), "PYTHONSAFEPATH": "1", "COLUMNS": "200"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-W", "error::UserWarning:matplotlib", str(FOLDER / "src" / f"{name}.py")]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_there_is_a_script_for_each_notebook_and_none_more() -> None:
    assert [p.stem for p in SCRIPTS] == sorted(p.stem for p in FOLDER.glob("*.ipynb")) == sorted(NO_DATA | WITH_DATA)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_a_notebook_is_what_its_script_generates(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("jupytext", reason="jupytext generates the notebooks (pip install -e '.[dev]')")
    subprocess.run([sys.executable, str(FOLDER / "generate.py"), str(tmp_path)], check=True)
    generated = (tmp_path / f"{script.stem}.ipynb").read_text(encoding="utf-8")
    assert generated == (FOLDER / f"{script.stem}.ipynb").read_text(encoding="utf-8"), "run `make notebooks`"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_a_notebook_is_text_and_code_in_turn(script: Path) -> None:
    cells = json.loads((FOLDER / f"{script.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2)
    assert cells[0]["source"][0].startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NO_DATA))
def test_a_notebook_runs_where_there_are_no_data(name: str, tmp_path: Path) -> None:
    printed, seconds = run_script(name, tmp_path, tmp_path / "nowhere")
    assert NO_DATA[name] in printed
    assert seconds < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", sorted(WITH_DATA))
def test_a_notebook_runs_on_the_data(name: str, tmp_path: Path, data_root: Path) -> None:
    printed, seconds = run_script(name, tmp_path, data_root)
    for text in WITH_DATA[name]:
        assert text in printed
    assert seconds < 60
    made = {p.name for p in tmp_path.iterdir()}
    assert made == ({"runs"} if name == "03_train" else set())
