"""The API over a real ledger and store, with a scripted worker in place of the engines."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from jobs.ledger import Ledger
from jobs.models.catalog import Catalog, ModelVersion, VersionState
from jobs.models.spec import BatchSettings, ModelSpec, Tensor
from jobs.notifier import Ping
from jobs.notifiers.process import ProcessNotifier
from jobs.records import ApiKey, BlobRef, ChunkRef, Finish, NewChunk, NewJob
from jobs.settings import Settings
from jobs.states import Outcome
from jobs.store import Transaction, WorkerRow
from jobs.stores.sqlite import SqliteStore
from tests.contracts.store_kit import empty_sqlite

KEY = "bysk_test"
OTHER_KEY = "bysk_other"
ADMIN_KEY = "bysk_admin"
READER_KEY = "bysk_reader"
AUTH = {"authorization": f"Bearer {KEY}"}
WORKER = "wrk_script"
RESULT_OF_ITEM = Callable[[int, bytes], bytes | frames.ResultError]


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


def echo(index: int, part: bytes) -> bytes | frames.ResultError:
    return part


class Kit:
    """`work` runs everything queued; with `automatic` the ledger's commits do so by themselves."""

    def __init__(self, folder: Path, clock: Clock = system_clock, settings: Settings | None = None) -> None:
        path = folder / "ledger.db"
        path.write_bytes(empty_sqlite())
        self.clock = clock
        self.store = SqliteStore(path, clock)
        self.blobs = DirectoryBlobs(folder / "blobs", b"secret", clock)
        self.catalog = Catalog()
        self.catalog.replace_all(models())
        self.fleet = FakeFleet()
        self.publisher = FakePublisher()
        self.notifier = ProcessNotifier()
        self.committed: list[NewJob] = []
        self.on_commit: Callable[[Sequence[NewJob]], None] = lambda jobs: None
        self.ledger = Ledger(self.store, on_committed=self._committed)
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

    def _committed(self, jobs: Sequence[NewJob]) -> None:
        self.committed.extend(jobs)
        self.on_commit(jobs)

    def close(self) -> None:
        self.app.front.stop()
        self.ledger.stop()
        self.store.close()

    def client(self, key: str | None = KEY, admin: bool = False) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.admin if admin else self.app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers, timeout=30)

    # -- the scripted worker

    def chunks_of(self, job: NewJob, answer: RESULT_OF_ITEM = echo, only: Sequence[int] | None = None) -> list[Finish]:
        """Claims (some of) the chunks of a fresh job and gives the finishes that end them."""
        chunks = [chunk for chunk in job.chunks if only is None or chunk.seq in only]
        refs = [ChunkRef(job.id, chunk.seq, 0) for chunk in chunks]
        fences = self.ledger.call(lambda tx: tx.claim(refs, WORKER))
        assert None not in fences
        return [
            self._finish(ChunkRef(job.id, chunk.seq, fence or 0), chunk, answer)
            for chunk, fence in zip(chunks, fences, strict=True)
        ]

    def _finish(self, ref: ChunkRef, chunk: NewChunk, answer: RESULT_OF_ITEM) -> Finish:
        payload = self.blobs.get(chunk.payload.key) if isinstance(chunk.payload, BlobRef) else chunk.payload
        header, parts = frames.unpack_payload(payload)
        indexes = [index for start, stop in header.items for index in range(start, stop)]
        if header.kind != "json":
            return Finish(ref, bytes([Outcome.SUCCEEDED]) * chunk.count, tensor_results(header, parts))
        results, outcomes = b"", []
        for position, (index, part) in enumerate(zip(indexes, parts, strict=True)):
            made = answer(index, bytes(part))
            ids = None if header.ids is None else (header.ids[position],)
            items = ((index, index + 1),)
            if isinstance(made, bytes):
                results += frames.pack(frames.ResultHeader("json", items, ids=ids), [made])
                outcomes.append(Outcome.SUCCEEDED)
            else:
                results += frames.pack(frames.ResultHeader("none", items, "failed", ids, errors=(made,)), [])
                outcomes.append(Outcome.FAILED)
        return Finish(ref, bytes(outcomes), results, engine_seconds=0.01)

    def finish(self, finishes: Sequence[Finish], ping: bool = True, carry: bool = True) -> None:
        """Writes them and tells the notifier, as the completer does."""
        done = self.ledger.call(lambda tx: tx.finish(finishes, WORKER))
        assert all(done.accepted)
        if ping:
            finals = tuple(job for job in done.jobs if job.final) if carry else ()
            self.notifier.ping(Ping(tuple(job.id for job in done.jobs), finals))

    def work(self, answer: RESULT_OF_ITEM = echo, **telling: bool) -> None:
        """Runs every job committed so far."""
        jobs, self.committed[:] = list(self.committed), []
        for job in jobs:
            self.finish(self.chunks_of(job, answer), **telling)

    async def until_committed(self, count: int = 1) -> None:
        await until(lambda: len(self.committed) >= count)

    @contextlib.asynccontextmanager
    async def working(self, answer: RESULT_OF_ITEM = echo) -> AsyncIterator[None]:
        """A worker that runs what comes for as long as the context lasts."""
        stop = False

        def run() -> None:
            while not stop:
                if self.committed:
                    self.work(answer)
                time.sleep(0.001)

        running = asyncio.get_running_loop().run_in_executor(None, run)
        try:
            yield
        finally:
            stop = True
            await running


def tensor_results(header: frames.PayloadHeader, parts: Sequence[memoryview]) -> bytes:
    """y = the first two of x, for `rows` payloads of one FP32 [4] column."""
    rows = bytes(parts[0])
    data = b"".join(rows[at : at + 8] for at in range(0, len(rows), 16))
    return frames.pack(
        frames.ResultHeader("rows", header.items, ids=header.ids, columns=(frames.Column("y", "FP32", (2,)),)), [data]
    )


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


class FullLedger:
    """Refuses every submission."""

    last_progress = time.monotonic()

    def submit(self, job: NewJob, sink: object) -> None:
        raise Unavailable("10000 submissions wait for the ledger already", timedelta(seconds=2))

    def post(self, change: object) -> Any:
        raise Unavailable("the ledger is stopping")
