"""What the contract of the store is tested with: every adapter, a clock moved by hand, and short ways to say things.

A test module takes part by ``kit = store_kit.kit``; an adapter by an entry in ADAPTERS.
"""

import functools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from jobs import frames
from jobs.ids import new_id
from jobs.records import ChunkMessage, ChunkRef, Finish, Job, NewChunk, NewJob, Ranges, Submitted
from jobs.states import JobState, Outcome, Priority
from jobs.store import Finished, Stopped, Store, WorkerRow
from jobs.stores.sqlite import SqliteStore
from migrations.run import upgrade
from tests.contracts.clock import START as START
from tests.contracts.clock import ManualClock as ManualClock
from tests.contracts.postgres_kit import PostgresAdapter

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


class Adapter(Protocol):
    """How a kind of store is opened on a place of its own, and looked into behind its back."""

    def open(self, clock: ManualClock) -> Store: ...

    def sql(self, statement: str) -> list[tuple[Any, ...]]: ...


@functools.cache
def empty_sqlite() -> bytes:
    """A migrated file; made once, since each test needs one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


class SqliteAdapter:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.path.write_bytes(empty_sqlite())

    def open(self, clock: ManualClock) -> Store:
        return SqliteStore(self.path, clock)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


ADAPTERS: dict[str, Callable[[Path], Adapter]] = {"sqlite": SqliteAdapter, "postgres": lambda _: PostgresAdapter()}


def payload(items: Ranges, ids: tuple[str, ...] | None = None) -> bytes:
    """A json payload frame whose parts say which item they are."""
    parts = [b'{"id":%d}' % index for start, stop in items for index in range(start, stop)]
    return frames.pack(frames.PayloadHeader("json", items, ids), parts)


def lines(items: Ranges, state: str = "succeeded") -> bytes:
    """A result frame for these items."""
    parts = [b'{"id":%d}' % index for start, stop in items for index in range(start, stop)]
    if state == "succeeded":
        return frames.pack(frames.ResultHeader("json", items), parts)
    error = frames.ResultError("handler_error", "boom", False, "predict")
    return frames.pack(frames.ResultHeader("none", items, state, errors=(error,) * len(parts)), [])


def new_job(*sizes: int, **fields: Any) -> NewJob:
    """A job of chunks of these sizes (one of one item by default)."""
    chunks: list[NewChunk] = []
    start = 0
    for seq, size in enumerate(sizes):
        items = ((start, start + size),)
        chunks.append(NewChunk(seq, items, payload(items)))
        start += size
    given: dict[str, Any] = {
        "id": new_id("job"),
        "tenant": "acme",
        "model": "echo",
        "version": "1",
        "priority": Priority.NORMAL,
        "single": False,
        "chunks": tuple(chunks),
        "created_at": START,
        "run_timeout": timedelta(seconds=30),
        "max_attempts": 3,
        "input_bytes": sum(len(chunk.payload) for chunk in chunks if isinstance(chunk.payload, bytes)),
    }
    return NewJob(**(given | fields))


@dataclass
class Kit:
    adapter: Adapter
    clock: ManualClock
    store: Store
    worker: str = "wrk_1"

    def reopen(self) -> None:
        """As after a restart of the process."""
        self.store.close()
        self.store = self.adapter.open(self.clock)

    def register(self, incarnation: str, name: str = "local", lease: timedelta = timedelta(days=365)) -> None:
        with self.store.begin() as tx:
            tx.register_worker(WorkerRow(incarnation, name, 4711, self.clock(), self.clock() + lease))

    def submit(self, *jobs: NewJob) -> list[Submitted]:
        with self.store.begin() as tx:
            answers = tx.submit(jobs)
        assert all(isinstance(answer, Submitted) for answer in answers)
        return [answer for answer in answers if isinstance(answer, Submitted)]

    def submitted(self, *sizes: int, **fields: Any) -> NewJob:
        job = new_job(*sizes, **fields)
        self.submit(job)
        return job

    def claim(self, *refs: ChunkRef, worker: str | None = None) -> list[int | None]:
        with self.store.begin() as tx:
            return tx.claim(refs, worker or self.worker)

    def claimed(self, job: NewJob, *seqs: int) -> list[ChunkRef]:
        """The chunks of a fresh job (all by default), claimed."""
        refs = [ChunkRef(job.id, seq, 0) for seq in seqs or range(len(job.chunks))]
        assert self.claim(*refs) == [1] * len(refs)
        return [replace(ref, fence=1) for ref in refs]

    def finish(self, *finishes: Finish, worker: str | None = None) -> Finished:
        with self.store.begin() as tx:
            return tx.finish(finishes, worker or self.worker)

    def stop(self, job: NewJob, stop_as: JobState = JobState.CANCELLED, *, force: bool = False) -> Stopped:
        with self.store.begin() as tx:
            stopped = tx.stop(job.tenant, job.id, stop_as, None, force)
        assert stopped is not None
        return stopped

    def due(self, limit: int = 1000, lease: timedelta = LEASE, **fields: Any) -> list[ChunkMessage]:
        with self.store.begin() as tx:
            return tx.take_due(limit, lease, **fields)

    def job(self, job: NewJob) -> Job:
        found = self.store.job(job.tenant, job.id)
        assert found is not None
        return found

    def events(self, job: NewJob) -> list[str]:
        rows = self.adapter.sql(f"SELECT type FROM events WHERE job = '{job.id}' AND terminal ORDER BY seq")
        return [type_ for (type_,) in rows]


def done(ref: ChunkRef, count: int = 1, outcome: Outcome = Outcome.SUCCEEDED, **fields: Any) -> Finish:
    """A finish of a chunk whose items all ended alike."""
    return Finish(ref, bytes([outcome]) * count, fields.pop("results", b""), **fields)


def refs_of(messages: Sequence[ChunkMessage]) -> list[ChunkRef]:
    return [message.ref for message in messages]


@pytest.fixture(params=sorted(ADAPTERS))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """An empty store with two tenants and one live worker."""
    made = make_kit(request.param, tmp_path)
    yield made
    made.store.close()


def make_kit(adapter_name: str, folder: Path) -> Kit:
    clock = ManualClock()
    adapter = ADAPTERS[adapter_name](folder)
    made = Kit(adapter, clock, adapter.open(clock))
    with made.store.begin() as tx:
        tx.ensure_tenant("acme")
        tx.ensure_tenant("globex")
    made.register(made.worker)
    return made
