"""Between rows of the ledger and records: one list of columns and one reader for each kind."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobs.clock import from_micros, to_micros
from jobs.records import BlobRef, ChunkMessage, Counts, Job, NewJob, Ranges, Usage
from jobs.states import JobState, Priority

_MICROSECOND = timedelta(microseconds=1)

JOB_JSON = """json_array(j.id, j.tenant, j.kind, j.model, j.version, j.priority, j.state,
    j.total, j.succeeded, j.failed, j.cancelled, j.expired,
    CASE WHEN j.finished_at IS NULL
        THEN (SELECT coalesce(sum(c.count), 0) FROM chunks c INDEXED BY chunks_running
            WHERE c.job = j.id AND c.state = 'running') ELSE 0 END,
    j.sealed, j.paused, j.single, j.created_at, j.started_at, j.finished_at, j.deadline_at, j.results_expire_at,
    j.not_before, j.stop_as, j.error, j.parent_job, j.metadata, j.engine_us, j.input_bytes, j.output_bytes)"""
"""A job of table alias j, as `job_of` reads it; counts.running is the items of its running chunks."""

MESSAGE_COLUMNS = """c.job, c.seq, c.fence, c.tenant, c.model, c.version, j.priority, c.count, c.alone, c.attempts,
    j.max_attempts, j.run_timeout_us, j.created_at, c.queue_deadline_at, j.deadline_at, j.traceparent,
    p.data, p.blob_key, p.blob_bytes, p.blob_sha256"""
"""A chunk as it travels, of aliases c (chunks), j (jobs), p (payloads), as `message_of` reads it."""

_ranges = msgspec.json.Decoder(Ranges)
_encode = msgspec.json.encode


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def duration_micros(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // _MICROSECOND


def json_text(value: object) -> str:
    return _encode(value).decode()


def ranges_of(text: str) -> Ranges:
    return _ranges.decode(text)


def job_of(row: Sequence[Any]) -> Job:
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
        created_at=from_micros(created),
        started_at=moment(started),
        finished_at=moment(finished),
        deadline_at=moment(deadline),
        results_expire_at=moment(expire),
        not_before=moment(not_before),
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


def message_of(row: Sequence[Any]) -> ChunkMessage:
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
        created_at=from_micros(created),
        queue_deadline_at=moment(queue_deadline),
        deadline_at=moment(deadline),
        traceparent=traceparent,
        payload=BlobRef(blob_key, blob_bytes, blob_sha256) if data is None else data,
    )
