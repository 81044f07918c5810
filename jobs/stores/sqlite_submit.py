"""Submission: a group of jobs in a handful of statements, each key once."""

from collections.abc import Sequence
from datetime import timedelta

from jobs.errors import IdempotencyMismatch
from jobs.records import BlobRef, Job, NewChunk, NewJob, Submitted
from jobs.states import ChunkState, JobState
from jobs.stores.sqlite_counts import insert_events
from jobs.stores.sqlite_rows import JOB_JSON, duration_micros, job_of, json_text, micros, new_job_of
from jobs.stores.sqlite_statements import GroupSql, Row, Statements, insert_sql

_OF_KEYS = GroupSql(
    "tenant key",
    f"""SELECT json_group_array(json_array(j.tenant, j.idempotency_key, hex(j.fingerprint), {JOB_JSON}))
    FROM {{rows}} CROSS JOIN jobs j ON j.tenant = d.tenant AND j.idempotency_key = d.key""",
)

_INSERT_JOBS = insert_sql(
    "jobs",
    "id tenant model version priority state total sealed single created_at finished_at not_before deadline_at "
    "results_kept_us results_expire_at run_timeout_us max_attempts metadata idempotency_key fingerprint traceparent "
    "input_bytes",
)

_INSERT_CHUNKS = insert_sql(
    "chunks",
    "job seq tenant model version items first_item end_item count parent alone attempts state not_before publish_at "
    "queue_deadline_at outcomes reason",
)

_INSERT_PAYLOADS = insert_sql("payloads", "job seq data blob_key blob_bytes blob_sha256 ids")

_Key = tuple[str, str]
_Known = dict[_Key, tuple[bytes, Job]]


def submit(db: Statements, jobs: Sequence[NewJob], publish_lease: timedelta) -> list[Submitted | IdempotencyMismatch]:
    known = _known_keys(db, jobs)
    answers: list[Submitted | IdempotencyMismatch] = []
    new: list[NewJob] = []
    for job in jobs:
        key = _key(job)
        if key is None or key not in known:
            answer = Submitted(new_job_of(job, db.at))
            new.append(job)
            if key is not None:
                known[key] = (job.fingerprint or b"", answer.job)
            answers.append(answer)
        else:
            fingerprint, first = known[key]
            if fingerprint == (job.fingerprint or b""):
                answers.append(Submitted(first, replayed=True))
            else:
                answers.append(
                    IdempotencyMismatch(
                        f"idempotency key {key[1]!r} was used for job {first.id} with another request; use a new key"
                    )
                )
    if new:
        _insert(db, new, duration_micros(publish_lease) or 0)
    return answers


def _key(job: NewJob) -> _Key | None:
    return None if job.idempotency_key is None else (job.tenant, job.idempotency_key)


def _known_keys(db: Statements, jobs: Sequence[NewJob]) -> _Known:
    keys = {key for job in jobs if (key := _key(job)) is not None}
    if not keys:
        return {}
    return {
        (tenant, key): (bytes.fromhex(fingerprint), job_of(row))
        for tenant, key, fingerprint, row in db.select(_OF_KEYS, list(keys))
    }


def _insert(db: Statements, jobs: Sequence[NewJob], lease_us: int) -> None:
    db.change(_INSERT_JOBS, [_job_row(job, db.now) for job in jobs])
    chunks: list[Row] = []
    payloads: list[Row] = []
    for job in jobs:
        publish_at = db.now + lease_us if job.publish_now else db.now
        for chunk in job.chunks:
            not_before = micros(chunk.not_before or job.not_before)
            at = publish_at if not_before is None or not_before <= db.now else not_before
            chunks.append(
                (
                    job.id,
                    chunk.seq,
                    job.tenant,
                    job.model,
                    job.version,
                    *chunk_columns(chunk),
                    ChunkState.QUEUED.value,
                    not_before,
                    at,
                    micros(job.queue_deadline_at),
                    None,
                    None,
                )
            )
            payloads.append(payload_row(job.id, chunk.seq, chunk))
    if chunks:
        db.change(_INSERT_CHUNKS, chunks)
        db.change(_INSERT_PAYLOADS, payloads)
    empty = [(job.id, 1, f"job.{JobState.SUCCEEDED}", 1, db.now) for job in jobs if not job.chunks]
    if empty:
        db.change(insert_events, empty)


def _job_row(job: NewJob, now: int) -> Row:
    total = job.total
    kept = duration_micros(job.results_kept)
    return (
        job.id,
        job.tenant,
        job.model,
        job.version,
        job.priority.value,
        (JobState.QUEUED if total else JobState.SUCCEEDED).value,
        total,
        1,
        int(job.single),
        micros(job.created_at),
        None if total else now,
        micros(job.not_before),
        micros(job.deadline_at),
        kept,
        None if total or kept is None else now + kept,
        duration_micros(job.run_timeout),
        job.max_attempts,
        json_text(job.metadata) if job.metadata else "{}",
        job.idempotency_key,
        job.fingerprint if job.idempotency_key is None else job.fingerprint or b"",
        job.traceparent,
        job.input_bytes,
    )


def chunk_columns(chunk: NewChunk) -> Row:
    """items, first_item, end_item, count, parent, alone, attempts"""
    return (
        json_text(chunk.items),
        chunk.items[0][0],
        chunk.items[-1][1],
        chunk.count,
        chunk.parent,
        int(chunk.alone),
        chunk.attempts,
    )


def payload_row(job: str, seq: int, chunk: NewChunk) -> Row:
    payload = chunk.payload
    if isinstance(payload, BlobRef):
        ids = None if chunk.ids is None else json_text(chunk.ids)
        return (job, seq, None, payload.key, payload.bytes, payload.sha256, ids)
    return (job, seq, payload, None, None, None, None)


def insert_chunks(db: Statements, chunks: Sequence[Row], payloads: Sequence[Row]) -> None:
    """Rows as of `_INSERT_CHUNKS` and `payload_row`; for child chunks."""
    db.change(_INSERT_CHUNKS, chunks)
    db.change(_INSERT_PAYLOADS, payloads)
