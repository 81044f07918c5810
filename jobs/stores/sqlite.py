"""The ledger in one SQLite file: one process owns it, one connection writes, any thread reads.

``SqliteStore`` implements `jobs.store.Store`; what its transactions do is in the sibling ``sqlite_*`` modules.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy.dialects.sqlite import insert

from jobs.clock import Clock, system_clock
from jobs.errors import IdempotencyMismatch, Unavailable
from jobs.records import ApiKey, ChunkMessage, ChunkRef, Finish, Job, NewJob, Submitted
from jobs.states import JobState
from jobs.store import Backlog, Finished, JobFilter, JobPage, ResultChunk, Stopped, WorkerRow
from jobs.stores import reading, sqlite_due, sqlite_reads, sqlite_stop, sqlite_submit, sqlite_work
from jobs.stores.portable import PortableChanges
from jobs.stores.sqlite_connection import ReadConnections, WriteConnection
from jobs.stores.sqlite_statements import Statements
from jobs.stores.submission import PUBLISH_LEASE


class SqliteTransaction(PortableChanges):
    """`jobs.store.Transaction` on one open write transaction."""

    def __init__(self, statements: Statements, publish_lease: timedelta) -> None:
        super().__init__(statements, insert)
        self._db = statements
        self._publish_lease = publish_lease
        self._depth = 0

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | IdempotencyMismatch]:
        return sqlite_submit.submit(self._db, jobs, self._publish_lease)

    def claim(self, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
        return sqlite_work.claim(self._db, refs, incarnation)

    def finish(self, finishes: Sequence[Finish], incarnation: str) -> Finished:
        return sqlite_work.finish(self._db, finishes, incarnation, self._publish_lease)

    def mark_alone(self, refs: Sequence[ChunkRef]) -> list[bool]:
        return sqlite_work.mark_alone(self._db, refs)

    def hand_back(self, refs: Sequence[ChunkRef]) -> int:
        return sqlite_work.hand_back(self._db, refs)

    def take_due(self, limit: int, lease: timedelta, skip: Collection[tuple[str, str]] = ()) -> list[ChunkMessage]:
        return sqlite_due.take_due(self._db, limit, lease, skip)

    def release(self, refs: Sequence[ChunkRef]) -> int:
        return sqlite_due.release(self._db, refs)

    def republish_all(self) -> int:
        return sqlite_due.republish_all(self._db)

    def stop(self, tenant: str | None, job: str, stop_as: JobState, reason: str | None, force: bool) -> Stopped | None:
        return sqlite_stop.stop(self._db, tenant, job, stop_as, reason, force)

    def expire_due(self, limit: int) -> tuple[Job, ...]:
        return sqlite_stop.expire_due(self._db, limit)

    def force_stopped(self, grace: timedelta) -> tuple[Job, ...]:
        return sqlite_stop.force_stopped(self._db, grace)

    def rescue(self, grace: timedelta) -> int:
        return sqlite_stop.rescue(self._db, grace)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        if not self._db.alive:
            raise Unavailable("the ledger's transaction was undone by an error inside it; try again")
        self._depth += 1
        name = f"s{self._depth}"
        self._db.run(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if self._db.alive:  # else there is nothing left to undo, and leaving the transaction says so
                self._db.run(f"ROLLBACK TO {name}")
                self._db.run(f"RELEASE {name}")
            raise
        else:
            self._db.run(f"RELEASE {name}")
        finally:
            self._depth -= 1


class SqliteStore:
    """`path` must hold the tables already (migrations.run.upgrade)."""

    def __init__(self, path: Path | str, clock: Clock = system_clock, publish_lease: timedelta = PUBLISH_LEASE) -> None:
        self._clock = clock
        self._publish_lease = publish_lease
        self._writer = WriteConnection(Path(path))
        self._readers = ReadConnections(Path(path))

    @contextmanager
    def begin(self) -> Iterator[SqliteTransaction]:
        with self._writer.begin() as connection:
            yield SqliteTransaction(Statements(connection, self._clock()), self._publish_lease)

    def now(self) -> datetime:
        return self._clock()

    def job(self, tenant: str, job: str) -> Job | None:
        with self._readers.use() as connection:
            return sqlite_reads.read_job(connection, tenant, job)

    def jobs_by_id(self, ids: Sequence[str]) -> dict[str, Job]:
        with self._readers.use() as connection:
            return sqlite_reads.jobs_by_id(connection, ids)

    def list_jobs(self, tenant: str, where: JobFilter, after: str | None, limit: int) -> JobPage:
        with self._readers.use() as connection:
            return sqlite_reads.list_jobs(connection, tenant, where, after, limit)

    def results(self, job: str, from_index: int, limit: int) -> list[ResultChunk]:
        with self._readers.use() as connection:
            return sqlite_reads.read_results(connection, job, from_index, limit)

    def results_of(self, jobs: Sequence[str]) -> dict[str, list[ResultChunk]]:
        with self._readers.use() as connection:
            return sqlite_reads.results_of(connection, jobs)

    def job_of_key(self, tenant: str, idempotency_key: str) -> Job | None:
        with self._readers.use() as connection:
            return sqlite_reads.job_of_key(connection, tenant, idempotency_key)

    def api_key(self, digest: bytes) -> ApiKey | None:
        with self._readers.use() as connection:
            return reading.read_key(connection, digest)

    def backlog(self) -> list[Backlog]:
        with self._readers.use() as connection:
            return reading.read_backlog(connection)

    def workers(self) -> list[WorkerRow]:
        with self._readers.use() as connection:
            return reading.read_workers(connection)

    def close(self) -> None:
        self._readers.close()
        self._writer.close()
