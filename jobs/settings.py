"""One validated value with everything that can be set. The only reader of the environment on the server's side."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from jobs.crash import CrashPoints


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that a request, chunk or result may have."""

    request_bytes: int = 16 * 1024 * 1024
    items: int = 1000
    inline_bytes: int = 256 * 1024  # of one item or one chunk's payload; larger goes to a blob
    parameters_bytes: int = 64 * 1024
    findings: int = 100


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    data: Path = Path(".batchyard")
    models: Path | None = None
    pool: str = "default"
    worker_name: str = "local"
    lease: timedelta = timedelta(seconds=30)
    publish_lease: timedelta = timedelta(seconds=15)
    cancel_grace: timedelta = timedelta(seconds=5)
    link_life: timedelta = timedelta(hours=1)
    results_kept: timedelta = timedelta(days=7)
    queue_timeout: timedelta | None = None
    total_timeout: timedelta | None = None
    drain: timedelta = timedelta(seconds=30)
    limits: Limits = field(default_factory=Limits)
    crash: CrashPoints = field(default_factory=CrashPoints)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **given: object) -> "Settings":
        """`given` (from the command line) wins over the environment. ValueError names the variable."""
        env = os.environ if environ is None else environ
        crash = CrashPoints.parse(env.get("BATCHYARD_CRASH"))
        return cls(crash=crash, **given)  # type: ignore[arg-type]
