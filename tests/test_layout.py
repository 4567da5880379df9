"""The house rules that no linter knows: links, import directions, sizes, names, and what a wheel holds."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("configs", "datasets", "models", "pipelines")
LEAVES = ("configs", "datasets", "models")
MAX_LINES, MAX_FUNCTION, MAX_PARAMETERS, MAX_OPTIONS = 400, 60, 8, 14
TORCHLESS = (
    *("images", "text", "inventory", "tablet", "tiles", "formats", "synthetic"),
    *("foreground", "views", "unlabelled"),
)


def sources(*folders: str) -> list[Path]:
    return sorted(p for f in folders for p in (ROOT / f).rglob("*.py") if "__pycache__" not in p.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path, *, module_level: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import; with ``module_level`` only of those that run when the module is imported."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if module_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if module_level and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            yield from walk(child)

    for node in walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import; write from dubsar.… import …"
            yield node.lineno, node.module or ""


def run_python(code: str, cwd: Path, *, safe: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    if safe:
        environment["PYTHONSAFEPATH"] = "1"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_relative_link_maps_each_folder_into_the_package(folder: str) -> None:
    link = ROOT / "src" / "dubsar" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{folder}"
    assert link.resolve() == ROOT / folder


def test_the_package_holds_nothing_but_links_and_the_type_marker() -> None:
    assert sorted(p.name for p in (ROOT / "src" / "dubsar").iterdir() if p.name != "__pycache__") == [
        *FOLDERS,
        "py.typed",
    ]


def test_no_folder_is_a_regular_package_and_no_conftest_stands_at_the_root() -> None:
    assert [name_of(p) for f in FOLDERS for p in (ROOT / f).rglob("__init__.py")] == []
    assert not (ROOT / "conftest.py").exists()
    assert not (ROOT / "__init__.py").exists()


def test_the_repository_root_is_never_importable() -> None:
    assert str(ROOT) not in [str(Path(p).resolve()) for p in sys.path if p]
    code = "import sys, os; print(os.getcwd() in [os.path.realpath(p) for p in sys.path if p], '' in sys.path)"
    assert run_python(code, ROOT).stdout.split() == ["False", "False"]


def test_datasets_and_models_do_not_resolve_to_ours() -> None:
    code = (
        "import importlib.util as u\n"
        "for name in ('datasets', 'models', 'configs', 'pipelines'):\n"
        "    spec = u.find_spec(name)\n"
        "    print(name, spec and list(spec.submodule_search_locations or [spec.origin]))"
    )
    found = run_python(code, ROOT).stdout
    assert "datasets" in found
    assert str(ROOT) not in found
    # the trap that this guards against is real: without the safe path our folder is taken
    assert str(ROOT / "datasets") in run_python(code, ROOT, safe=False).stdout


def test_transformers_does_not_take_our_datasets_for_hugging_faces() -> None:
    code = (
        "from transformers.utils import is_datasets_available as there\n"
        "import importlib.util as u\n"
        "spec = u.find_spec('datasets')\n"
        "print(there(), spec and list(spec.submodule_search_locations))"
    )
    done = run_python(code, ROOT)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout
    assert done.stdout.startswith("False") or "site-packages" in done.stdout


def test_imports_point_downwards_only() -> None:
    faults = []
    for path in sources(*LEAVES):
        own = f"dubsar.{path.relative_to(ROOT).parts[0]}"
        for line, module in imports(path):
            if module.split(".")[0] == "dubsar" and module != own and not module.startswith(f"{own}."):
                faults.append(f"{name_of(path)}:{line}: a leaf imports {module}")
            if module.split(".")[0] in {"lightning", "pytorch_lightning"}:
                faults.append(f"{name_of(path)}:{line}: only pipelines may know Lightning")
    for path in sources("pipelines"):
        floor = _floor(f"dubsar.{name_of(path).removesuffix('.py').replace('/', '.')}")
        for line, module in imports(path):
            if module.startswith("dubsar.pipelines.") and _floor(module) > floor:
                faults.append(f"{name_of(path)}:{line}: imports {module}, which stands above it")
    for path in sources(*FOLDERS):
        for line, module in imports(path):
            if module.split(".")[0] in {*FOLDERS, "tests", "notebooks", "src"}:
                faults.append(f"{name_of(path)}:{line}: imports {module}; write dubsar.{module}")
    assert faults == []


def _floor(module: str) -> int:
    """Return the storey of a module of pipelines: levers and metrics, training and reading, stages, launch, cli."""
    rest = module.removeprefix("dubsar.pipelines.")
    if rest == "parity.statistics":  # arithmetic alone: whoever scores may use it
        return 1
    storeys = {
        "levers": 1,
        "metrics": 1,
        "optim": 1,
        "networks": 1,
        "signs": 1,
        "distillation": 1,
        "stream": 1,
        "callbacks": 1,
        "schedules": 1,
        "calibration": 1,
        "resampling": 1,
        "pages": 1,
        "mixing": 1,
        "training": 2,
        "reading": 2,
        "run_report": 2,
        "features": 2,
        "feature_pictures": 2,
        "tile_cache": 2,
        "crop_cache": 2,
    }
    name = rest.split(".")[0]
    if name.startswith("cli"):
        return 6
    return storeys.get(name, {"stages": 3, "bench": 5, "parity": 5, "comparison": 5, "trials": 5}.get(name, 4))


def test_reading_and_its_data_import_no_torch_when_loaded() -> None:
    faults = []
    paths = [p for p in sources("datasets") if p.relative_to(ROOT).parts[1].removesuffix(".py") in TORCHLESS]
    paths += [p for p in sources("pipelines/reading") if p.name != "engine.py"]
    assert len(paths) > 20
    for path in paths:
        for line, module in imports(path, module_level=True):
            if module.split(".")[0] in {"torch", "torchvision", "lightning", "timm", "transformers", "ultralytics"}:
                faults.append(f"{name_of(path)}:{line}: imports {module} at module level")
    assert faults == []


def test_reading_loads_no_torch_through_others() -> None:
    code = "import sys, dubsar.pipelines.reading.read; print([m for m in ('torch', 'lightning') if m in sys.modules])"
    done = run_python(code, ROOT)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['dubsar', '--help']\n"
        "from dubsar.pipelines.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: print('status', stop.code)\n"
        "print([m for m in ('torch', 'lightning', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = run_python(code, ROOT)
    assert done.stdout.strip().endswith("status 0\n[]"), done.stdout + done.stderr


def test_files_functions_and_signatures_stay_small() -> None:
    faults = []
    for path in sources(*FOLDERS, "tests"):
        text = path.read_text(encoding="utf-8")
        if (count := len(text.splitlines())) > MAX_LINES:
            faults.append(f"{name_of(path)}: {count} lines, at most {MAX_LINES}")
        if path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                a = node.args
                names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs) if x.arg not in {"self", "cls"}]
                if length > MAX_FUNCTION:
                    faults.append(
                        f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION}"
                    )
                # the options of a command are written one by one on a command line, not in a call
                is_command = path.name.startswith("cli")
                if len(names) > (MAX_OPTIONS if is_command else MAX_PARAMETERS):
                    faults.append(
                        f"{name_of(path)}:{node.lineno}: {node.name} takes {len(names)}, at most {MAX_PARAMETERS}"
                    )
    assert faults == []


def test_clean_leaves_trainings_alone() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nclean:", 1)[1].split("\n\n", 1)[0]
    assert "rm -rf" in recipe
    assert "runs" not in recipe.split()


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = re.compile(r"(^|_)(utils?|helpers?|common|misc|stuff|tools)(_|$)")
    parts = {part for p in sources(*FOLDERS, "tests") for part in p.relative_to(ROOT).with_suffix("").parts}
    assert [p for p in parts if empty.search(p)] == []


def test_notebooks_hold_no_outputs() -> None:
    faults = []
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            if cell.get("outputs") or cell.get("execution_count"):
                faults.append(f"{name_of(path)}: cell {number} holds an output; strip it")
    assert faults == []


def test_the_version_is_the_installed_one() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{importlib.metadata.version("dubsar")}"' in project


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_nothing_at_top_level(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="setuptools builds the wheel")
    code = (
        "import sys, setuptools.build_meta as backend\n"
        f"print(backend.build_wheel({str(tmp_path / 'out')!r}, {{'--build-option': ['--quiet']}}))"
    )
    source = tmp_path / "source"
    _copy_tracked(source)
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    held = set(zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))).namelist())
    wanted = {f"dubsar/{name_of(p)}" for p in sources(*FOLDERS)}
    wanted |= {f"dubsar/{name_of(p)}" for f in FOLDERS for p in (ROOT / f).rglob("*.yaml")}
    wanted |= {f"dubsar/{name_of(p)}" for p in (ROOT / "models").rglob("*.safetensors")}
    wanted |= {f"dubsar/{name_of(p)}" for p in (ROOT / "models").rglob("*.json")}
    assert wanted - held == set()
    assert "dubsar/py.typed" in held
    tops = {name.split("/")[0] for name in held}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"dubsar"}


def _copy_tracked(to: Path) -> None:
    """Copy what a build needs, links as links, so that no build output lands in the repository."""
    import shutil

    to.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*FOLDERS, "src"):
        shutil.copytree(ROOT / folder, to / folder, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)
        else:
            (to / name).write_text("placeholder\n", encoding="utf-8")
