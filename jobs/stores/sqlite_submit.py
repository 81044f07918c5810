"""Submission: a group of jobs in a handful of statements, each key once."""

from collections.abc import Sequence
from datetime import timedelta

from jobs.clock import to_micros
from jobs.errors import IdempotencyMismatch
from jobs.records import Job, NewJob, Submitted
from jobs.stores import submission
from jobs.stores.rows import Row
from jobs.stores.sqlite_counts import insert_events
from jobs.stores.sqlite_rows import JOB_JSON, job_of
from jobs.stores.sqlite_statements import GroupSql, Statements, insert_sql
from jobs.stores.submission import Key

_OF_KEYS = GroupSql(
    "tenant key",
    f"""SELECT json_group_array(json_array(j.tenant, j.idempotency_key, hex(j.fingerprint), {JOB_JSON}))
    FROM {{rows}} CROSS JOIN jobs j ON j.tenant = d.tenant AND j.idempotency_key = d.key""",
)

_INSERT_JOBS = insert_sql("jobs", submission.JOB_COLUMNS)
_INSERT_CHUNKS = insert_sql("chunks", submission.CHUNK_COLUMNS)
_INSERT_PAYLOADS = insert_sql("payloads", submission.PAYLOAD_COLUMNS)


def submit(db: Statements, jobs: Sequence[NewJob], publish_lease: timedelta) -> list[Submitted | IdempotencyMismatch]:
    """Nobody else writes between the look at the keys and the insertion."""
    known = _known(db, jobs)
    firsts = submission.first_ones(jobs, known)
    if firsts:
        new = [jobs[at] for at in firsts]
        rows = submission.rows_beside(new, db.at, publish_lease, to_micros)
        db.change(_INSERT_JOBS, submission.job_rows(new, db.at, to_micros))
        insert_chunks(db, rows.chunks, rows.payloads)
        if rows.events:
            db.change(insert_events, rows.events)
    return submission.answers(jobs, set(firsts), known, db.at)


def _known(db: Statements, jobs: Sequence[NewJob]) -> dict[Key, tuple[bytes, Job]]:
    keys = submission.keys_of(jobs)
    if not keys:
        return {}
    return {
        (tenant, key): (bytes.fromhex(fingerprint), job_of(row))
        for tenant, key, fingerprint, row in db.select(_OF_KEYS, list(keys))
    }


def insert_chunks(db: Statements, chunks: Sequence[Row], payloads: Sequence[Row]) -> None:
    if chunks:
        db.change(_INSERT_CHUNKS, chunks)
        db.change(_INSERT_PAYLOADS, payloads)
