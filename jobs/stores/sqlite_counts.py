"""The one statement that changes a job's counts and, when they are complete, makes it final."""

from collections.abc import Iterable

from jobs.records import Job
from jobs.states import FINAL
from jobs.stores.counting import Delta, final_case, sums
from jobs.stores.sqlite_rows import JOB_JSON, job_of
from jobs.stores.sqlite_statements import GroupSql, Statements, expect, insert_sql
from jobs.stores.submission import EVENT_COLUMNS

_SUCCEEDED, _FAILED, _CANCELLED, _EXPIRED = sums("jobs")
_COMPLETE = f"jobs.sealed AND {_SUCCEEDED} + {_FAILED} + {_CANCELLED} + {_EXPIRED} = jobs.total"

_COUNT = GroupSql(
    "job succeeded failed cancelled expired engine_us output_bytes now",
    f"""UPDATE jobs SET
        succeeded = {_SUCCEEDED}, failed = {_FAILED}, cancelled = {_CANCELLED}, expired = {_EXPIRED},
        engine_us = jobs.engine_us + d.engine_us, output_bytes = jobs.output_bytes + d.output_bytes,
        state = CASE WHEN {_COMPLETE}
            THEN {final_case(_SUCCEEDED, _FAILED, _CANCELLED, _EXPIRED, "jobs.stop_as", "jobs.error")}
            ELSE jobs.state END,
        finished_at = CASE WHEN {_COMPLETE} THEN d.now END,
        results_expire_at = CASE WHEN {_COMPLETE} THEN d.now + jobs.results_kept_us END
    FROM {{rows}} WHERE jobs.id = d.job AND jobs.finished_at IS NULL""",
)

_JOBS = GroupSql("id", f"SELECT json_group_array({JOB_JSON}) FROM {{rows}} CROSS JOIN jobs j ON j.id = d.id")

_TERMINAL_EVENTS = GroupSql(
    "job type at",
    """INSERT INTO events (job, seq, type, terminal, at)
    SELECT d.job, (SELECT coalesce(max(e.seq), 0) + 1 FROM events e WHERE e.job = d.job), d.type, TRUE, d.at
    FROM {rows} WHERE d.job IS NOT NULL""",
)

insert_events = insert_sql("events", EVENT_COLUMNS)


def count(db: Statements, deltas: dict[str, Delta]) -> tuple[Job, ...]:
    """Adds the deltas (of rows really changed) and gives the jobs as they now are, final ones with their event."""
    if not deltas:
        return ()
    rows = [(job, *delta.row, db.now) for job, delta in deltas.items()]
    expect(db.change(_COUNT, rows), len(rows), "counts of jobs that are not final")
    jobs = read_jobs(db, deltas)
    ended = [(job.id, f"job.{job.state}", db.now) for job in jobs if job.state in FINAL]
    if ended:
        db.change(_TERMINAL_EVENTS, ended)
    return jobs


def read_jobs(db: Statements, ids: Iterable[str]) -> tuple[Job, ...]:
    return tuple(job_of(row) for row in db.select(_JOBS, [(id_,) for id_ in ids]))
