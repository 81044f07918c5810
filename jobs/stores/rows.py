"""Between rows of the ledger and records, for every SQL store: one list of columns and one reader for each kind.

A store's own form of a time (microseconds, datetime) is told to the readers as the function that makes a datetime of
it, and to the writers as the one that makes it of a datetime. NULL never reaches either.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobs.records import BlobRef, ChunkMessage, Counts, Job, NewChunk, NewJob, Ranges, Usage
from jobs.states import JobState, Priority

Row = tuple[Any, ...]

ReadTime = Callable[[Any], datetime]
WriteTime = Callable[[datetime], Any]

_MICROSECOND = timedelta(microseconds=1)

MESSAGE_COLUMNS = """c.job, c.seq, c.fence, c.tenant, c.model, c.version, j.priority, c.count, c.alone, c.attempts,
    j.max_attempts, j.run_timeout_us, j.created_at, c.queue_deadline_at, j.deadline_at, j.traceparent,
    p.data, p.blob_key, p.blob_bytes, p.blob_sha256"""
"""A chunk as it travels, of aliases c (chunks), j (jobs), p (payloads), as `message_of` reads it."""

_ranges = msgspec.json.Decoder(Ranges)
_encode = msgspec.json.encode


def duration_micros(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // _MICROSECOND


def json_text(value: object) -> str:
    return _encode(value).decode()


def ranges_of(text: str) -> Ranges:
    return _ranges.decode(text)


def job_of(row: Sequence[Any], time: ReadTime) -> Job:
    """Of id, tenant, kind, model, version, priority, state, the counts in the order of their record, sealed … as
    below; `error` and `metadata` as JSON text."""
    (id_, tenant, kind, model, version, priority, state) = row[:7]
    counts = Counts(*row[7:13])  # in the order of its fields
    (sealed, paused, single, created, started, finished, deadline, expire, not_before, stop_as, error) = row[13:24]
    (parent, metadata, engine_us, input_bytes, output_bytes) = row[24:]
    return Job(
        id=id_,
        tenant=tenant,
        kind=kind,
        model=model,
        version=version,
        priority=Priority(priority),
        state=JobState(state),
        counts=counts,
        sealed=bool(sealed),
        paused=bool(paused),
        single=bool(single),
        created_at=time(created),
        started_at=None if started is None else time(started),
        finished_at=None if finished is None else time(finished),
        deadline_at=None if deadline is None else time(deadline),
        results_expire_at=None if expire is None else time(expire),
        not_before=None if not_before is None else time(not_before),
        stop_as=None if stop_as is None else JobState(stop_as),
        error=None if error is None else msgspec.json.decode(error),
        parent_job=parent,
        metadata={} if metadata == "{}" else msgspec.json.decode(metadata),
        usage=Usage(engine_us / 1_000_000, input_bytes, output_bytes),
    )


def new_job_of(new: NewJob, now: datetime) -> Job:
    """A job as it is right after its insertion; one without items is final at once."""
    total = new.total
    return Job(
        id=new.id,
        tenant=new.tenant,
        kind="inline",
        model=new.model,
        version=new.version,
        priority=new.priority,
        state=JobState.QUEUED if total else JobState.SUCCEEDED,
        counts=Counts(total),
        sealed=True,
        paused=False,
        single=new.single,
        created_at=new.created_at,
        started_at=None,
        finished_at=None if total else now,
        deadline_at=new.deadline_at,
        results_expire_at=None if total or new.results_kept is None else now + new.results_kept,
        not_before=new.not_before,
        stop_as=None,
        error=None,
        parent_job=None,
        metadata=new.metadata,
        usage=Usage(0.0, new.input_bytes, 0),
    )


def message_of(row: Sequence[Any], time: ReadTime) -> ChunkMessage:
    """Of MESSAGE_COLUMNS, `data` as bytes."""
    (job, seq, fence, tenant, model, version, priority, count, alone, attempts) = row[:10]
    (max_attempts, run_timeout_us, created, queue_deadline, deadline, traceparent) = row[10:16]
    (data, blob_key, blob_bytes, blob_sha256) = row[16:]
    return ChunkMessage(
        job=job,
        seq=seq,
        fence=fence,
        tenant=tenant,
        model=model,
        version=version,
        priority=Priority(priority),
        count=count,
        alone=bool(alone),
        attempts=attempts,
        max_attempts=max_attempts,
        run_timeout=run_timeout_us * _MICROSECOND,
        created_at=time(created),
        queue_deadline_at=None if queue_deadline is None else time(queue_deadline),
        deadline_at=None if deadline is None else time(deadline),
        traceparent=traceparent,
        payload=BlobRef(blob_key, blob_bytes, blob_sha256) if data is None else data,
    )


def chunk_columns(chunk: NewChunk) -> Row:
    """items, first_item, end_item, count, parent, alone, attempts"""
    return (
        json_text(chunk.items),
        chunk.items[0][0],
        chunk.items[-1][1],
        chunk.count,
        chunk.parent,
        chunk.alone,
        chunk.attempts,
    )


def payload_row(job: str, seq: int, chunk: NewChunk) -> Row:
    """job, seq, data, blob_key, blob_bytes, blob_sha256, ids"""
    payload = chunk.payload
    if isinstance(payload, BlobRef):
        ids = None if chunk.ids is None else json_text(chunk.ids)
        return (job, seq, None, payload.key, payload.bytes, payload.sha256, ids)
    return (job, seq, payload, None, None, None, None)
