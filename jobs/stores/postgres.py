"""The ledger in Postgres: any number of processes write and read it.

``PostgresStore`` implements `jobs.store.Store`; what its transactions do is in the sibling ``postgres_*`` modules.
Every change locks jobs by id and then chunks by (job, seq). Two groups of several changes may still want what the other
has locked: the server ends one of them, which raises `jobs.errors.Undone` and is made again.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy.dialects.postgresql import insert

from jobs.clock import Clock
from jobs.errors import IdempotencyMismatch, Unavailable
from jobs.records import ApiKey, ChunkMessage, ChunkRef, Finish, Job, NewJob, Submitted
from jobs.states import JobState
from jobs.store import Backlog, Finished, JobFilter, JobPage, ResultChunk, Stopped, WorkerRow
from jobs.stores import postgres_due, postgres_reads, postgres_stop, postgres_submit, postgres_work, reading
from jobs.stores.portable import PortableChanges
from jobs.stores.postgres_connection import PostgresLimits, ReadConnections, WriteConnections
from jobs.stores.postgres_rows import storable
from jobs.stores.postgres_statements import Statements
from jobs.stores.submission import PUBLISH_LEASE


class PostgresTransaction(PortableChanges):
    """`jobs.store.Transaction` on one open transaction."""

    def __init__(self, statements: Statements, publish_lease: timedelta) -> None:
        super().__init__(statements, insert)
        self._db = statements
        self._publish_lease = publish_lease
        self._depth = 0

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | IdempotencyMismatch]:
        return postgres_submit.submit(self._db, jobs, self._publish_lease)

    def claim(self, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
        return postgres_work.claim(self._db, refs, incarnation)

    def finish(self, finishes: Sequence[Finish], incarnation: str) -> Finished:
        return postgres_work.finish(self._db, finishes, incarnation, self._publish_lease)

    def mark_alone(self, refs: Sequence[ChunkRef]) -> list[bool]:
        return postgres_work.mark_alone(self._db, refs)

    def hand_back(self, refs: Sequence[ChunkRef]) -> int:
        return postgres_work.hand_back(self._db, refs)

    def take_due(self, limit: int, lease: timedelta, skip: Collection[tuple[str, str]] = ()) -> list[ChunkMessage]:
        return postgres_due.take_due(self._db, limit, lease, skip)

    def release(self, refs: Sequence[ChunkRef]) -> int:
        return postgres_due.release(self._db, refs)

    def republish_all(self) -> int:
        return postgres_due.republish_all(self._db)

    def stop(self, tenant: str | None, job: str, stop_as: JobState, reason: str | None, force: bool) -> Stopped | None:
        return postgres_stop.stop(self._db, tenant, job, stop_as, reason, force)

    def expire_due(self, limit: int) -> tuple[Job, ...]:
        return postgres_stop.expire_due(self._db, limit)

    def force_stopped(self, grace: timedelta) -> tuple[Job, ...]:
        return postgres_stop.force_stopped(self._db, grace)

    def rescue(self, grace: timedelta) -> int:
        return postgres_stop.rescue(self._db, grace)

    def keep_bad_record(self, topic: str, partition: int, offset: int, reason: str, value: bytes) -> None:
        super().keep_bad_record(topic, partition, offset, storable(reason), value)

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
            if self._db.connected:
                self._db.run(f"ROLLBACK TO {name}; RELEASE {name}")
            raise
        else:
            self._db.run(f"RELEASE {name}")
        finally:
            self._depth -= 1


class PostgresStore:
    """`url` names a database that holds the tables already (migrations.run.upgrade). `clock` None: the database's own,
    the only one that several processes share; a test gives another."""

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        publish_lease: timedelta = PUBLISH_LEASE,
        limits: PostgresLimits | None = None,
    ) -> None:
        limits = limits or PostgresLimits()
        self._clock = clock
        self._publish_lease = publish_lease
        self._writers = WriteConnections(url, limits)
        self._readers = ReadConnections(url, limits)

    @contextmanager
    def begin(self) -> Iterator[PostgresTransaction]:
        with self._writers.begin() as (connection, at):
            statements = Statements(connection, at if self._clock is None else self._clock())
            yield PostgresTransaction(statements, self._publish_lease)

    def now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        with self._readers.use() as connection:
            at: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
            return at

    def job(self, tenant: str, job: str) -> Job | None:
        with self._readers.use() as connection:
            return postgres_reads.read_job(connection, tenant, job)

    def jobs_by_id(self, ids: Sequence[str]) -> dict[str, Job]:
        with self._readers.use() as connection:
            return postgres_reads.jobs_by_id(connection, ids)

    def list_jobs(self, tenant: str, where: JobFilter, after: str | None, limit: int) -> JobPage:
        with self._readers.use() as connection:
            return postgres_reads.list_jobs(connection, tenant, where, after, limit)

    def results(self, job: str, from_index: int, limit: int) -> list[ResultChunk]:
        with self._readers.use() as connection:
            return postgres_reads.read_results(connection, job, from_index, limit)

    def results_of(self, jobs: Sequence[str]) -> dict[str, list[ResultChunk]]:
        with self._readers.use() as connection:
            return postgres_reads.results_of(connection, jobs)

    def job_of_key(self, tenant: str, idempotency_key: str) -> Job | None:
        with self._readers.use() as connection:
            return postgres_reads.job_of_key(connection, tenant, idempotency_key)

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
        self._writers.close()
