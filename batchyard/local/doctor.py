"""`batchyard doctor`: is this machine ready for a local stack, and if one runs, is it well? Changes nothing."""

import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from batchyard.client import Client
from batchyard.errors import BatchyardError
from batchyard.local.data import owner
from batchyard.target import read_env
from jobs.errors import ModelError
from jobs.models.repository import read_repository

PACKAGES = (
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "sqlalchemy",
    "alembic",
    "msgspec",
    "orjson",
    "numpy",
    "ml-dtypes",
    "pyyaml",
)
PYTHON = (3, 11)
SLOW_SYNC = 0.020  # seconds; a commit costs one
SYNCS = 20
FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``to_do`` says what to do about a bad one."""

    name: str
    good: bool
    detail: str
    to_do: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(*, port: int, admin_port: int, data: Path, models: Path | None) -> list[Finding]:
    """Every check there is; none of them raises."""
    pid = owner(data)
    found = [python_version(), *packages(), data_folder(data, pid), disk_speed(data), disk_space(data)]
    if pid is None:
        found += [port_free("API", port, "--port"), port_free("admin API", admin_port, "--admin-port")]
    else:
        found.append(running_stack(data))
    return [*found, *repository(models)]


def python_version() -> Finding:
    text = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= PYTHON
    return Finding("Python", good, text, None if good else "use Python 3.11 or newer")


def packages() -> Iterator[Finding]:
    missing = [name for name in PACKAGES if _version(name) is None]
    yield Finding(
        "server packages",
        not missing,
        f"missing: {', '.join(missing)}" if missing else f"all {len(PACKAGES)} are installed",
        "pip install -e '.[server]'" if missing else None,
    )
    onnx = _version("onnxruntime")
    yield Finding(
        "engine onnxruntime",
        onnx is not None,
        onnx or "not installed: ONNX models cannot be served",
        None if onnx else "pip install -e '.[server,onnxruntime]'",
    )


def data_folder(data: Path, pid: int | None) -> Finding:
    if pid is not None:
        return Finding("data folder", True, f"{data} is in use by the stack that runs now (pid {pid or 'unknown'})")
    at = _existing(data)
    if not os.access(at, os.W_OK | os.X_OK):
        return Finding("data folder", False, f"{at} cannot be written by this user", "give another folder with --data")
    return Finding("data folder", True, f"{data} {'is free' if at == data else 'will be made'}")


def disk_speed(data: Path) -> Finding:
    """How long the disk takes to make a write durable: the least time of a commit."""
    try:
        with tempfile.TemporaryFile(dir=_existing(data)) as file:
            took = []
            for _ in range(SYNCS):
                began = time.perf_counter()
                os.pwrite(file.fileno(), b"x" * 4096, 0)
                os.fdatasync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        return Finding(
            "disk speed", False, f"cannot write in {data}: {error.strerror}", "give another folder with --data"
        )
    median = statistics.median(took)
    good = median <= SLOW_SYNC
    to_do = None if good else "put the data folder on a faster disk (--data): every commit waits for this"
    return Finding("disk speed", good, f"a durable write takes {median * 1000:.2f} ms", to_do)


def disk_space(data: Path) -> Finding:
    free = shutil.disk_usage(_existing(data)).free
    good = free >= FREE_BYTES
    return Finding("disk space", good, f"{free / 2**30:.1f} GiB free", None if good else "make room, or use --data")


def port_free(name: str, port: int, option: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            to_do = f"give another with {option} (0 = any that is free)"
            return Finding(f"port of the {name}", False, f"{port}: {error.strerror}", to_do)
    return Finding(f"port of the {name}", True, f"{port} is free")


def running_stack(data: Path) -> Finding:
    """Does the stack on this data answer, and take the key it wrote?"""
    env = read_env(data / "env")
    url, key = env.get("BATCHYARD_URL"), env.get("BATCHYARD_API_KEY")
    if not url or not key:
        return Finding("running stack", False, "it has not written its env file yet", "wait until it says ready")
    try:
        with Client(url, key, timeout=5, retry_for=0) as client:
            served = client.models()
    except BatchyardError as error:
        return Finding("running stack", False, str(error), "look at its log; stop it and start it again")
    ready = sum(model.ready for model in served)
    return Finding("running stack", True, f"{url} answers and takes the key; {ready} of {len(served)} models are ready")


def repository(models: Path | None) -> Iterator[Finding]:
    if models is None:
        yield Finding("models", True, "no model repository named, and no ./models here")
        return
    if not models.is_dir():
        yield Finding("models", False, f"{models} is no folder", "give the model repository with --models")
        return
    try:
        found = read_repository(models)
    except ModelError as error:
        yield Finding("models", False, str(error), "give the model repository with --models")
        return
    for where, wrong in found.errors:
        yield Finding(f"model {where}", False, wrong, "mend it; `batchyard models run NAME` tries it out")
    yield Finding("models", True, f"{len(found.versions)} versions can be read in {models}")


def _existing(folder: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    return next(f for f in (folder.absolute(), *folder.absolute().parents) if f.is_dir())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
