"""The services of one test run: each is started when a test first needs it and stopped when the run ends."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services import kafka, postgres, redis, s3
from tests.services.service import Service, ServiceFailed

STARTERS: dict[str, Callable[[Path], Service]] = {
    "postgres": postgres.start,
    "redis": redis.start,
    "kafka": kafka.start,
    "s3": s3.start,
}


def needed(name: str) -> Service:
    """The running service. Where it cannot be had the test is skipped, and fails if REQUIRE_SERVICES=1."""
    started = _started(name)
    if isinstance(started, Service):
        return started
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"{name}: {started}")
    pytest.skip(f"{name}: {started.splitlines()[0]}")


@functools.cache
def _started(name: str) -> Service | str:
    """Or why it could not be started."""
    try:
        service = STARTERS[name](_folder() / name)
    except (ServiceFailed, OSError) as error:
        return str(error)
    atexit.register(service.stop)
    return service


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="batchyard-services-"))
    folder.chmod(0o755)  # a service that runs as a user of its own must get to its folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # registered first, so it runs last
    return folder
