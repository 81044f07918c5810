"""Submission: a group of jobs in a handful of statements, each key once, whoever else submits it at the same time."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from jobs.errors import IdempotencyMismatch, Undone
from jobs.records import Job, NewJob, Submitted
from jobs.stores import submission
from jobs.stores.postgres_counts import INSERT_EVENTS
from jobs.stores.postgres_rows import JOB_COLUMNS, as_it_is, job_of
from jobs.stores.postgres_statements import GroupSql, InsertSql, Statements
from jobs.stores.rows import Row
from jobs.stores.submission import Key

# The conflict is named: an id that exists already is an error, not a replay. Another transaction that has inserted the
# same key is waited for.
_INSERT_JOBS = InsertSql(
    "jobs",
    submission.JOB_COLUMNS,
    "ON CONFLICT (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING id",
)
_INSERT_CHUNKS = InsertSql("chunks", submission.CHUNK_COLUMNS)
_INSERT_PAYLOADS = InsertSql("payloads", submission.PAYLOAD_COLUMNS)

_OF_KEYS = GroupSql(
    "tenant:text key:text",
    f"""SELECT j.idempotency_key, j.fingerprint, {JOB_COLUMNS}
    FROM {{rows}} JOIN jobs j ON j.tenant = d.tenant AND j.idempotency_key = d.key""",
)


def submit(db: Statements, jobs: Sequence[NewJob], publish_lease: timedelta) -> list[Submitted | IdempotencyMismatch]:
    # In the order of their keys, so that two groups which share several of them do not wait for each other.
    firsts = sorted(submission.first_ones(jobs), key=lambda at: submission.key_of(jobs[at]) or ("", ""))
    inserted = _insert(db, [jobs[at] for at in firsts], publish_lease)
    fresh = {at for at in firsts if jobs[at].id in inserted}
    known = _known(db, submission.keys_of(jobs[at] for at in firsts if at not in fresh))
    return submission.answers(jobs, fresh, known, db.at)


def _insert(db: Statements, jobs: Sequence[NewJob], publish_lease: timedelta) -> set[str]:
    """Gives the ids of those whose key nobody had."""
    inserted = {id_ for (id_,) in db.select(_INSERT_JOBS, submission.job_rows(jobs, db.at, as_it_is))}
    new = [job for job in jobs if job.id in inserted]
    rows = submission.rows_beside(new, db.at, publish_lease, as_it_is)
    insert_chunks(db, rows.chunks, rows.payloads)
    db.change(INSERT_EVENTS, rows.events)
    return inserted


def _known(db: Statements, keys: Collection[Key]) -> dict[Key, tuple[bytes, Job]]:
    """What the winners wrote: committed by now, or the insertion would still wait for them."""
    rows = db.select(_OF_KEYS, list(keys))
    known = {(row[3], row[0]): (row[1], job_of(row[2:])) for row in rows}
    if len(known) != len(keys):
        raise Undone("a job was removed while its idempotency key was submitted again")
    return known


def insert_chunks(db: Statements, chunks: Sequence[Row], payloads: Sequence[Row]) -> None:
    db.change(_INSERT_CHUNKS, chunks)
    db.change(_INSERT_PAYLOADS, payloads)
