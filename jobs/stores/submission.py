"""What a group of submissions comes to, for every SQL store: twins folded, replays answered, rows to insert."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jobs.errors import IdempotencyMismatch
from jobs.records import Job, NewJob, Submitted
from jobs.states import ChunkState, JobState
from jobs.stores.rows import Row, WriteTime, chunk_columns, duration_micros, json_text, new_job_of, payload_row

PUBLISH_LEASE = timedelta(seconds=15)
"""How long the one who commits a chunk has to publish it before the relay does."""

Key = tuple[str, str]
"""Tenant and idempotency key."""

Known = Mapping[Key, tuple[bytes, Job]]
"""Fingerprint and job by key."""

JOB_COLUMNS = (
    "id tenant model version priority state total sealed single created_at finished_at not_before deadline_at "
    "results_kept_us results_expire_at run_timeout_us max_attempts metadata idempotency_key fingerprint traceparent "
    "input_bytes"
)
CHUNK_COLUMNS = (
    "job seq tenant model version items first_item end_item count parent alone attempts state not_before publish_at "
    "queue_deadline_at outcomes reason"
)
PAYLOAD_COLUMNS = "job seq data blob_key blob_bytes blob_sha256 ids"
EVENT_COLUMNS = "job seq type terminal at"

_Answer = Submitted | IdempotencyMismatch


class NewRows(NamedTuple):
    """To insert beside jobs, of the columns above."""

    chunks: list[Row]
    payloads: list[Row]
    events: list[Row]


def key_of(job: NewJob) -> Key | None:
    return None if job.idempotency_key is None else (job.tenant, job.idempotency_key)


def keys_of(jobs: Iterable[NewJob]) -> set[Key]:
    return {key for job in jobs if (key := key_of(job)) is not None}


def first_ones(jobs: Sequence[NewJob], known: Container[Key] = ()) -> list[int]:
    """Positions of those to insert: all that have no key, and the first of each key that is not known yet."""
    seen: set[Key] = set()
    firsts: list[int] = []
    for at, job in enumerate(jobs):
        key = key_of(job)
        if key is not None:
            if key in seen or key in known:
                continue
            seen.add(key)
        firsts.append(at)
    return firsts


def answers(jobs: Sequence[NewJob], inserted: Collection[int], known: Known, now: datetime) -> list[_Answer]:
    """`inserted` are the positions of those that are in the ledger now; `known` has the keys of all others but of
    their twins."""
    firsts = dict(known)
    told: list[_Answer] = []
    for at, job in enumerate(jobs):
        key = key_of(job)
        if at in inserted:
            answer = Submitted(new_job_of(job, now))
            if key is not None:
                firsts[key] = (job.fingerprint or b"", answer.job)
            told.append(answer)
        else:
            assert key is not None
            told.append(_replay(job, key[1], *firsts[key]))
    return told


def _replay(job: NewJob, key: str, fingerprint: bytes, first: Job) -> _Answer:
    if fingerprint == (job.fingerprint or b""):
        return Submitted(first, replayed=True)
    return IdempotencyMismatch(
        f"idempotency key {key!r} was used for job {first.id} with another request; use a new key"
    )


def job_rows(jobs: Iterable[NewJob], now: datetime, time: WriteTime) -> list[Row]:
    return [_job_row(job, now, time(now), time) for job in jobs]


def rows_beside(jobs: Sequence[NewJob], now: datetime, publish_lease: timedelta, time: WriteTime) -> NewRows:
    """What is inserted beside these jobs."""
    at_once, leased = time(now), time(now + publish_lease)
    chunks: list[Row] = []
    payloads: list[Row] = []
    for job in jobs:
        publish_at = leased if job.publish_now else at_once
        place = (job.tenant, job.model, job.version)
        queue_deadline = None if job.queue_deadline_at is None else time(job.queue_deadline_at)
        for chunk in job.chunks:
            start = chunk.not_before or job.not_before
            not_before = None if start is None else time(start)
            at = publish_at if start is None or start <= now else not_before
            state = (ChunkState.QUEUED.value, not_before, at, queue_deadline, None, None)
            chunks.append((job.id, chunk.seq, *place, *chunk_columns(chunk), *state))
            payloads.append(payload_row(job.id, chunk.seq, chunk))
    events = [(job.id, 1, f"job.{JobState.SUCCEEDED}", True, at_once) for job in jobs if not job.chunks]
    return NewRows(chunks, payloads, events)


def _job_row(job: NewJob, now: datetime, now_value: Any, time: WriteTime) -> Row:
    total = job.total
    ended = not total
    return (
        job.id,
        job.tenant,
        job.model,
        job.version,
        job.priority.value,
        (JobState.SUCCEEDED if ended else JobState.QUEUED).value,
        total,
        True,
        job.single,
        time(job.created_at),
        now_value if ended else None,
        None if job.not_before is None else time(job.not_before),
        None if job.deadline_at is None else time(job.deadline_at),
        duration_micros(job.results_kept),
        time(now + job.results_kept) if ended and job.results_kept is not None else None,
        duration_micros(job.run_timeout),
        job.max_attempts,
        json_text(job.metadata) if job.metadata else "{}",
        job.idempotency_key,
        job.fingerprint if job.idempotency_key is None else job.fingerprint or b"",
        job.traceparent,
        job.input_bytes,
    )
