"""The API over a real ledger and store, with a scripted worker behind it, and how a test asks it."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from api.admin import create_admin_app
from api.app import App, create_app
from api.services import Services
from jobs import frames
from jobs.blobs.directory import DirectoryBlobs
from jobs.caches.memory import MemoryCache
from jobs.clock import Clock, system_clock
from jobs.errors import Unavailable
from jobs.fleet import ModelStats, WorkerInfo
from jobs.models.catalog import Catalog, ModelVersion, VersionState
from jobs.models.spec import BatchSettings, ModelSpec, Tensor
from jobs.records import ApiKey, NewJob
from jobs.settings import Settings
from jobs.store import Transaction, WorkerRow
from jobs.stores.sqlite import SqliteStore
from tests.contracts.store_kit import empty_sqlite
from tests.integration.scripted_worker import WORKER, ScriptedWorker

KEY = "bysk_test"
OTHER_KEY = "bysk_other"
ADMIN_KEY = "bysk_admin"
READER_KEY = "bysk_reader"
AUTH = {"authorization": f"Bearer {KEY}"}
ECHO = {"model": "echo", "input": {"id": 17, "value": 3}}
FAILED = frames.ResultError("handler_error", "RuntimeError: boom", False, "predict")


def spec(name: str, kind: str = "json", version: str = "1", **fields: Any) -> ModelSpec:
    return ModelSpec(
        name, version, Path("/models") / name, "python", kind, fields.pop("default_version", "1"), **fields
    )


def models() -> list[ModelVersion]:
    x, y = Tensor("x", "FP32", (4,)), Tensor("y", "FP32", (2,))
    big = BatchSettings(max_size=64)
    ready = VersionState.READY
    return [
        ModelVersion(spec("echo", batch=big), ready, described=True),
        ModelVersion(spec("echo", version="2", batch=big), ready, described=True),
        ModelVersion(spec("mlp", "tensors", inputs=(x,), outputs=(y,), batch=big), ready, described=True),
        ModelVersion(spec("cold"), VersionState.LOADING),
    ]


@dataclass
class FakePublisher:
    """Admits everything; keeps what it was told."""

    admitted: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)

    def admit(self, job: NewJob) -> NewJob:
        self.admitted.append(job.id)
        return replace(job, publish_now=False)

    def withdraw(self, job: NewJob) -> None:
        self.withdrawn.append(job.id)


@dataclass
class FakeFleet:
    is_ready: bool = True
    reloads: int = 0

    def stats(self, model: str, version: str) -> ModelStats:
        return ModelStats(batches=2, batch_items=8, engine_seconds=0.4, closed={"idle": 2})

    def live_workers(self, model: str, version: str) -> int:
        return 1

    def workers(self) -> tuple[WorkerInfo, ...]:
        return (WorkerInfo(WORKER, "local", 4711, system_clock(), ("echo@1",), (4712,), 0),)

    def ready(self) -> bool:
        return self.is_ready

    def reload(self) -> Mapping[str, str]:
        self.reloads += 1
        return {"echo@1": "ready"}


class FullLedger:
    """Refuses every submission."""

    last_progress = time.monotonic()

    def submit(self, job: NewJob, sink: object) -> None:
        raise Unavailable("10000 submissions wait for the ledger already", timedelta(seconds=2))

    def post(self, change: object) -> Any:
        raise Unavailable("the ledger is stopping")


class Kit(ScriptedWorker):
    """The API with two tenants, their keys and the models of `models`."""

    def __init__(self, folder: Path, clock: Clock = system_clock, settings: Settings | None = None) -> None:
        path = folder / "ledger.db"
        path.write_bytes(empty_sqlite())
        self.clock = clock
        self.store = SqliteStore(path, clock)
        super().__init__(self.store, DirectoryBlobs(folder / "blobs", b"secret", clock))
        self.catalog = Catalog()
        self.catalog.replace_all(models())
        self.fleet = FakeFleet()
        self.publisher = FakePublisher()
        self.cache = MemoryCache(clock=clock)
        self.draining = False
        with self.store.begin() as tx:
            for tenant, secret, scopes in (
                ("acme", KEY, {"jobs:read", "jobs:write"}),
                ("globex", OTHER_KEY, {"jobs:read", "jobs:write"}),
                ("acme", READER_KEY, {"jobs:read"}),
            ):
                tx.ensure_tenant(tenant)
                self.add_key(tx, tenant, secret, scopes)
            tx.register_worker(WorkerRow(WORKER, "local", 4711, clock(), clock() + timedelta(days=3650)))
        self.ledger.start()
        self.services = Services(
            ledger=self.ledger,
            publisher=self.publisher,
            store=self.store,
            blobs=self.blobs,
            cache=self.cache,
            notifier=self.notifier,
            catalog=self.catalog,
            fleet=self.fleet,
            settings=settings or Settings(data=folder),
            admin_key_digest=hashlib.sha256(ADMIN_KEY.encode()).digest(),
            clock=clock,
            draining=lambda: self.draining,
        )
        self.app: App = create_app(self.services)
        self.admin = create_admin_app(self.services)

    def add_key(
        self, tx: Transaction, tenant: str, secret: str, scopes: set[str], expires_at: datetime | None = None
    ) -> None:
        digest = hashlib.sha256(secret.encode()).digest()
        tx.add_key(ApiKey(f"key_{secret}", tenant, frozenset(scopes), expires_at), digest)

    def close(self) -> None:
        self.app.front.stop()
        self.ledger.stop()
        self.store.close()

    def client(self, key: str | None = KEY, app: Any = None) -> httpx.AsyncClient:
        """Asks the API, or another `app` in its place."""
        transport = httpx.ASGITransport(app or self.app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, timeout=30)

    async def until_committed(self, count: int = 1) -> None:
        await until(lambda: len(self.committed) >= count)


# -- asking


def run(kit: Kit, test: Callable[[httpx.AsyncClient], Awaitable[None]], **client: Any) -> None:
    """Runs a test that asks by a client of the kit."""

    async def main() -> None:
        async with asyncio.timeout(60), kit.client(**client) as made:
            await test(made)

    asyncio.run(main())


async def submit(client: httpx.AsyncClient, count: int, **fields: Any) -> str:
    """A job of `count` items; gives its address."""
    items = [{"id": f"doc-{at}", "input": {"id": at}} for at in range(count)]
    answer = await client.post("/v1/jobs", json={"model": "echo", "items": items, **fields})
    assert answer.status_code == 202
    path: str = answer.headers["location"]
    return path


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Result lines."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/jsonl"
    return [json.loads(line) for line in answer.text.splitlines()]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)
