"""One validated value with everything that can be set. The only reader of the environment on the server's side."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from jobs import settings_reader
from jobs.connections import KafkaSettings, S3Settings
from jobs.crash import CrashPoints

FILE = "batchyard.toml"


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
    postgres_url: str | None = None  # the services of a deployment over many machines; the local stack uses none
    redis_url: str | None = None
    kafka: KafkaSettings | None = None
    s3: S3Settings | None = None
    crash: CrashPoints = field(default_factory=CrashPoints)

    def __post_init__(self) -> None:
        if self.kafka is not None and self.kafka.delivery_seconds >= self.publish_lease.total_seconds():
            raise settings_reader.SettingsError(
                "kafka.delivery_seconds must be less than publish_lease: else the relay publishes again what is still"
                " on its way"
            )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, file: Path | None = None, **given: object
    ) -> "Settings":
        """`given` (from the command line) wins over the environment, and that over the file. SettingsError names
        everything that is wrong."""
        env = os.environ if environ is None else environ
        values = settings_reader.read(cls, env, file, given, frozenset({"crash"}))
        return cls(crash=CrashPoints.parse(env.get("BATCHYARD_CRASH")), **values)
