"""Port of the ledger: the tables that say what every job is and where it stands. The truth.

Changes happen inside a Transaction, by named transitions whose statements themselves check state, fence and
incarnation. A transition never raises because a row has moved on: it reports what it changed. Each takes lists, so
that a group costs a handful of statements, never one an item. Lock order everywhere: jobs by id, then chunks.

Times are compared by the store's own clock (`Store.now`): the database's, or the injected one where the database
has none of its own.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from jobs.errors import IdempotencyMismatch
from jobs.records import ApiKey, ChunkMessage, ChunkRef, Finish, Job, NewJob, Ranges, Submitted
from jobs.states import JobState


class Finished(msgspec.Struct, frozen=True, gc=False):
    """What a group of finishes changed."""

    accepted: tuple[bool, ...]  # one an entry; False: the fence had moved on, nothing was written
    jobs: tuple[Job, ...]  # every job whose counts changed, as it now is
    children: tuple[ChunkMessage, ...]  # child chunks that may be published at once (their not_before is past)


class Stopped(msgspec.Struct, frozen=True, gc=False):
    """``job`` as it now is; ``running`` are the chunks still claimed, to be told to their workers."""

    job: Job
    changed: bool  # False: it was final already
    running: tuple[ChunkRef, ...] = ()


class ResultChunk(msgspec.Struct, frozen=True, gc=False):
    """One done (or not yet done) chunk of a job for reading. ``outcomes`` is all PENDING while it is not done."""

    seq: int
    items: Ranges
    outcomes: bytes
    results: bytes | None  # result frames
    reason: str | None  # error code for items that a stop or a queue timeout ended without a result line
    ids: tuple[str, ...] | None  # given only where `results` has no line for some item
    attempts: int = 0  # charged tries of its items before it


@dataclass(frozen=True, slots=True)
class JobFilter:
    state: JobState | None = None
    model: str | None = None
    created_after: datetime | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: tuple[Job, ...]
    next: str | None  # cursor of the next page


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queued items of one model version (not yet claimed)."""

    model: str
    version: str
    items: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    incarnation: str
    name: str
    pid: int
    started_at: datetime
    until: datetime


class Transaction(Protocol):
    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | IdempotencyMismatch]:
        """Inserts jobs with their chunks and payloads. Equal (tenant, key) pairs inside the group fold into the first;
        a key that exists already gives that job (`replayed`) or IdempotencyMismatch for another fingerprint."""

    def claim(self, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
        """queued -> running at this fence, fence + 1, for jobs not paused, not stopped, not past a deadline or
        not_before, and a live incarnation. Gives the new fence, or None where refused."""

    def finish(self, finishes: Sequence[Finish], incarnation: str) -> Finished:
        """running -> done at this fence: results, attempts, children, counts and, when they reach the total of a sealed
        job, its final state with its one terminal event."""

    def mark_alone(self, refs: Sequence[ChunkRef]) -> list[bool]:
        """Stored before suspects run again: their items run one by one, by whoever holds or next claims the chunk."""

    def hand_back(self, refs: Sequence[ChunkRef]) -> int:
        """running -> queued at this fence, fence + 1, uncharged, due at once. Gives how many."""

    def take_due(self, limit: int, lease: timedelta, skip: Collection[tuple[str, str]] = ()) -> list[ChunkMessage]:
        """Queued chunks due for publishing (publish_at and not_before past; not paused, not stopped), oldest first;
        moves their publish_at on by the lease. ``skip`` names (tenant, model) pairs whose window is full: their
        chunks stay as they are."""

    def release(self, refs: Sequence[ChunkRef]) -> int:
        """Due at once, for chunks that still wait at this fence: they were fetched and will not be claimed there."""

    def republish_all(self) -> int:
        """Makes every queued chunk due now (the stream is new or was wiped)."""

    def stop(self, tenant: str | None, job: str, stop_as: JobState, reason: str | None, force: bool) -> Stopped | None:
        """Ends the queued chunks of a job and counts them; with `force` the running ones too (fence + 1). `reason` is
        the error code of expired items. None: no such job for this tenant (None = any)."""

    def expire_due(self, limit: int) -> tuple[Job, ...]:
        """Ends queued chunks past their queue deadline (queue_timeout) and jobs past their deadline
        (deadline_exceeded, forced). Gives the jobs changed."""

    def force_stopped(self, grace: timedelta) -> tuple[Job, ...]:
        """Ends running chunks of jobs that were asked to stop longer than `grace` ago."""

    def rescue(self, grace: timedelta) -> int:
        """running -> queued, fence + 1, lapses + 1, for chunks of incarnations that are unknown or whose lease ended
        longer than `grace` ago; removes those incarnations. Gives the number of chunks."""

    def register_worker(self, worker: WorkerRow) -> None: ...

    def heartbeat(self, incarnation: str, lease: timedelta) -> bool:
        """Extends the lease; False: this incarnation was removed, its claims are void."""

    def remove_worker(self, incarnation: str) -> None: ...

    def ensure_tenant(self, tenant: str) -> None: ...

    def add_key(self, key: ApiKey, digest: bytes) -> None:
        """`digest` is the SHA-256 of the secret; the secret itself is never stored."""

    def keep_bad_record(self, topic: str, partition: int, offset: int, reason: str, value: bytes) -> None:
        """A stream record that could not be decoded: kept for the operator, and passed."""

    def savepoint(self) -> AbstractContextManager[None]:
        """An exception inside undoes what was done inside and goes on; the transaction stays usable."""


class Store(Protocol):
    def begin(self) -> AbstractContextManager[Transaction]:
        """A write transaction: committed on leaving, rolled back on an exception (drivers' errors wrapped)."""

    def now(self) -> datetime: ...

    def job(self, tenant: str, job: str) -> Job | None:
        """With counts.running filled in."""

    def jobs_by_id(self, ids: Sequence[str]) -> dict[str, Job]:
        """Of any tenant; for waiters that were checked before."""

    def list_jobs(self, tenant: str, where: JobFilter, after: str | None, limit: int) -> JobPage: ...

    def results(self, job: str, from_index: int, limit: int) -> list[ResultChunk]:
        """Chunks (children included) that hold any of the items [from_index, from_index + limit)."""

    def results_of(self, jobs: Sequence[str]) -> dict[str, list[ResultChunk]]:
        """All chunks of several small jobs at once; for waiters."""

    def job_of_key(self, tenant: str, idempotency_key: str) -> Job | None: ...

    def api_key(self, digest: bytes) -> ApiKey | None: ...

    def backlog(self) -> list[Backlog]: ...

    def workers(self) -> list[WorkerRow]: ...

    def close(self) -> None: ...
