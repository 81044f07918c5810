"""The records all sides share: frozen, without behaviour beyond what is derivable from their fields.

Structs, not dataclasses: some dozen are made for every item, and a frozen dataclass costs ten times as much to make.
``gc=False`` where none can come to refer to itself: the collector need not look at those of thousands of queued items.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobs.states import FINAL, JobState, Priority

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint half-open ranges of item indexes: ((0, 64),) or ((3, 4), (17, 18))."""


class Counts(msgspec.Struct, frozen=True, gc=False):
    total: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    running: int = 0

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def queued(self) -> int:
        return self.total - self.done - self.running


class Usage(msgspec.Struct, frozen=True, gc=False):
    engine_seconds: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0


class Job(msgspec.Struct, frozen=True, gc=False):
    id: str
    tenant: str
    kind: str  # inline | bulk
    model: str
    version: str
    priority: Priority
    state: JobState
    counts: Counts
    sealed: bool
    paused: bool
    single: bool  # submitted in the `input` form: one item, read back as one JSON object
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    results_expire_at: datetime | None
    not_before: datetime | None
    stop_as: JobState | None
    error: dict[str, Any] | None
    parent_job: str | None
    metadata: dict[str, str]
    usage: Usage

    @property
    def final(self) -> bool:
        return self.state in FINAL


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """Where bytes too large for a row or a stream record lie."""

    key: str
    bytes: int
    sha256: str


class NewChunk(msgspec.Struct, frozen=True, gc=False):
    seq: int
    items: Ranges
    payload: bytes | BlobRef  # a payload frame (jobs/frames.py), or the blob that holds it
    alone: bool = False  # run each item by itself
    attempts: int = 0  # charged tries of these items so far
    parent: int | None = None
    not_before: datetime | None = None
    ids: tuple[str, ...] | None = None  # item ids, needed only with a BlobRef (a frame has its own); children inherit

    @property
    def count(self) -> int:
        return sum(stop - start for start, stop in self.items)


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A validated submission, ready to be written. Chunks already cut; nothing about it can be refused any more
    except for its idempotency key."""

    id: str
    tenant: str
    model: str
    version: str
    priority: Priority
    single: bool
    chunks: tuple[NewChunk, ...]
    created_at: datetime
    run_timeout: timedelta
    max_attempts: int
    input_bytes: int
    not_before: datetime | None = None
    queue_deadline_at: datetime | None = None
    deadline_at: datetime | None = None
    results_kept: timedelta | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    idempotency_key: str | None = None
    fingerprint: bytes | None = None  # of the parsed request; compared on replay
    traceparent: str | None = None
    publish_now: bool = True  # published right after its commit (publish_at = now + lease); False: the relay's (now)

    @property
    def total(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Submitted(msgspec.Struct, frozen=True, gc=False):
    job: Job
    replayed: bool = False


class ChunkRef(msgspec.Struct, frozen=True, gc=False):
    """Names a chunk as of one fence; every write of a worker carries it."""

    job: str
    seq: int
    fence: int


class ChunkMessage(msgspec.Struct, frozen=True, gc=False):
    """A chunk as it travels through the stream: all that a worker needs to run it without asking the ledger."""

    job: str
    seq: int
    fence: int
    tenant: str
    model: str
    version: str
    priority: Priority
    count: int
    alone: bool
    attempts: int
    max_attempts: int
    run_timeout: timedelta
    created_at: datetime
    queue_deadline_at: datetime | None
    deadline_at: datetime | None
    traceparent: str | None
    payload: bytes | BlobRef

    @property
    def ref(self) -> ChunkRef:
        return ChunkRef(self.job, self.seq, self.fence)

    @property
    def weight_bytes(self) -> int:
        return len(self.payload) if isinstance(self.payload, bytes) else 256


class ItemError(msgspec.Struct, frozen=True, gc=False):
    code: str  # jobs.states.ErrorCode
    message: str
    permanent: bool
    stage: str  # decode | queue | preprocess | predict | run | postprocess


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A charged or suspected try of an item that did not simply succeed; kept for the operator."""

    item: int
    number: int
    worker: str
    version: str
    error: ItemError
    traceback: str | None
    at: datetime


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a whole chunk, written once. ``ref.fence`` is the fence of the claim."""

    ref: ChunkRef
    outcomes: bytes  # one jobs.states.Outcome per item of the chunk, in order, none PENDING
    results: bytes  # result frames, one after another (jobs/frames.py); empty when no item left a line
    children: tuple[NewChunk, ...] = ()  # for MOVED items; `seq` is given by the store
    attempts: tuple[Attempt, ...] = ()
    engine_seconds: float = 0.0
    output_bytes: int = 0


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    id: str
    tenant: str
    scopes: frozenset[str]
    expires_at: datetime | None
