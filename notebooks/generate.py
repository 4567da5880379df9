"""Generate the .ipynb from the percent scripts in ``src/``, without outputs: ``make notebooks``.

The same script gives the same bytes (cells are numbered, not named at random), so that a difference in git is one.
"""

import sys
from pathlib import Path

import jupytext

HERE = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def generate(script: Path) -> str:
    """Return the notebook of one percent script, as JSON text."""
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata = METADATA
    for number, cell in enumerate(notebook.cells, start=1):
        cell["id"], cell["metadata"] = f"cell-{number}", {}
    return jupytext.writes(notebook, fmt="ipynb").rstrip("\n") + "\n"


def main(folder: Path) -> None:
    """Write the notebook of each script into a folder."""
    for script in sorted((HERE / "src").glob("*.py")):
        (folder / f"{script.stem}.ipynb").write_text(generate(script), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
