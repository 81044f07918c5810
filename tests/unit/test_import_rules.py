"""Rules of the house that no list of modules can forget a new one for: read from the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jobs.errors import ModelError
from jobs.models import repository
from tests.unit.repositories import onnx_model
from workers.engines.onnxruntime import OnnxRuntimeEngine

ROOT = Path(__file__).parents[2]
PACKAGES = ("jobs", "batcher", "workers", "api", "batchyard", "migrations")
ADAPTERS = ("jobs.stores", "jobs.streams", "jobs.blobs", "jobs.caches", "jobs.notifiers")
DRIVERS = {
    "sqlalchemy": ("jobs.stores", "migrations"),
    "sqlite3": ("jobs.stores", "migrations"),
    "alembic": ("migrations",),
    "onnxruntime": ("workers.engines",),
    "onnx": ("workers.engines",),
    "fastapi": ("api",),
    "starlette": ("api",),
    "httpx": ("batchyard",),
}
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "multiprocessing"}
UNSAFE_CALLS = {
    "eval",
    "exec",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "np.load",
    "numpy.load",
    "np.fromfile",
}

CODE = {"workers.child.handlers calls exec"}  # a model's own handler.py, which is code


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text())


MODULES = dict(modules())


def imported(tree: ast.Module) -> set[str]:
    """Every module that is imported anywhere in it; of ``from a import b`` both ``a`` and ``a.b``. What is named to a
    function that imports counts as well."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            found |= {
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            }
    return found


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_there_is_something_to_read() -> None:
    assert len(MODULES) > 80
    assert {name.split(".")[0] for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_is_imported_by_its_folder_alone(driver: str) -> None:
    users = {name for name, tree in MODULES.items() if any(within(used, (driver,)) for used in imported(tree))}
    assert users, f"nobody uses {driver}"
    assert {name for name in users if not within(name, DRIVERS[driver])} == set()


def test_only_a_bootstrap_module_wires_adapters_to_ports() -> None:
    outside = {
        (name, used)
        for name, tree in MODULES.items()
        for used in imported(tree)
        if within(used, ADAPTERS) and not (within(name, (*ADAPTERS, "migrations")) or name.endswith(".bootstrap"))
    }
    assert outside == set()


def test_only_the_local_stack_of_the_user_s_side_imports_the_server() -> None:
    server = ("jobs", "batcher", "workers", "api", "migrations")
    users = {
        name
        for name, tree in MODULES.items()
        if within(name, ("batchyard",)) and any(within(used, server) for used in imported(tree))
    }
    assert users
    assert {name for name in users if not within(name, ("batchyard.local",))} == set()


def test_the_local_stack_is_loaded_only_when_it_is_called_for() -> None:
    """By name, in the command that needs it, so that the client needs no server package."""
    loaded = {
        name
        for name, tree in MODULES.items()
        if not within(name, ("batchyard.local",)) and any(within(used, ("batchyard.local",)) for used in imported(tree))
    }
    assert loaded == set()


def test_s4_nothing_turns_data_into_code() -> None:
    found: list[str] = []
    for name, tree in MODULES.items():
        found += [f"{name} imports {used}" for used in imported(tree) if used.split(".")[0] in UNSAFE_MODULES]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                allowed = any(keyword.arg == "allow_pickle" for keyword in node.keywords)
                if called in UNSAFE_CALLS or allowed:
                    found.append(f"{name} calls {called}")
    assert set(found) == CODE


@pytest.mark.parametrize("name", ["model.onnx", "model.npy"])
def test_s4_an_npy_of_objects_runs_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (canary,))  # type: ignore[return-value]

    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    trap = (tmp_path / "trap.npy").read_bytes()
    assert b"touch" in trap
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(tmp_path / "trap.npy")
    folder = onnx_model(tmp_path / "models", "m", trap)
    (folder / "1" / "model.onnx").rename(folder / "1" / name)
    (folder / "model.yaml").write_text((folder / "model.yaml").read_text().replace("model.onnx", name))
    with pytest.raises(ModelError, match="cannot be loaded"):
        OnnxRuntimeEngine(repository.read_version(tmp_path / "models", "m"), 1)
    assert not canary.exists()
    np.load(tmp_path / "trap.npy", allow_pickle=True)
    assert canary.exists(), "the trap would not have sprung"
