"""Arrows point down only: which layer may import which, and who may touch clocks and threads."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tiderl_jax"

MAY_IMPORT = {
    "core": set(),
    "scheduler": {"core"},
    "simulator": {"core", "scheduler", "report"},
    "models": {"core"},
    "decoder": {"core", "models"},
    "learner": {"core", "models"},
    "envs": {"core"},
    "report": {"core"},
    "runtime": {"core", "scheduler", "models", "decoder", "learner", "envs", "report"},
}
PURE = ("core", "scheduler", "simulator")
IMPURE_MODULES = {"jax", "flax", "time", "random", "threading", "asyncio"}
THREADED_MODULES = {"threading", "asyncio", "socket", "queue", "concurrent"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "tiderl_jax":
                names.update(f"tiderl_jax.{alias.name}" for alias in node.names)
    return names


def layer_violations(path: Path, layer: str) -> set[str]:
    layers = {name.split(".")[1] for name in imported(path) if name.startswith("tiderl_jax.")}
    return layers - MAY_IMPORT[layer] - {layer}


def test_every_folder_of_the_package_is_a_declared_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_layers_below_it(layer: str) -> None:
    violations = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in files(PACKAGE / layer)
        if (found := layer_violations(path, layer))
    }
    assert violations == {}


def test_a_wrong_arrow_would_be_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from tiderl_jax.decoder import engine\n")
    assert layer_violations(wrong, "scheduler") == {"decoder"}


@pytest.mark.parametrize("layer", PURE)
def test_pure_layers_know_no_accelerator_clock_thread_or_chance(layer: str) -> None:
    for path in files(PACKAGE / layer):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & IMPURE_MODULES, path


def test_threads_live_in_the_runtime_only() -> None:
    for layer in set(MAY_IMPORT) - {"runtime"}:
        for path in files(PACKAGE / layer):
            roots = {name.split(".")[0] for name in imported(path)}
            assert not roots & THREADED_MODULES, path


def test_nothing_in_the_package_unpickles_or_evaluates() -> None:
    for path in files(PACKAGE) + files(ROOT / "experiments"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                assert name not in FORBIDDEN_CALLS, f"{path}:{node.lineno}"
                unsafe = [keyword.arg for keyword in node.keywords if keyword.arg == "shell"]
                assert not unsafe, f"{path}:{node.lineno}"
