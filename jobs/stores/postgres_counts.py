"""The one statement that changes a job's counts and, when they are complete, makes it final."""

from collections.abc import Iterable, Mapping

from jobs.records import Job
from jobs.states import FINAL
from jobs.stores.counting import Delta, final_case, sums
from jobs.stores.postgres_rows import JOB_COLUMNS, job_of
from jobs.stores.postgres_statements import GroupSql, InsertSql, Statements, expect
from jobs.stores.submission import EVENT_COLUMNS

_SUCCEEDED, _FAILED, _CANCELLED, _EXPIRED = sums("j")
_COMPLETE = f"j.sealed AND {_SUCCEEDED} + {_FAILED} + {_CANCELLED} + {_EXPIRED} = j.total"

_COUNT = GroupSql(
    "job:text succeeded:bigint failed:bigint cancelled:bigint expired:bigint engine_us:bigint output_bytes:bigint "
    "now:timestamptz",
    f"""UPDATE jobs AS j SET
        succeeded = {_SUCCEEDED}, failed = {_FAILED}, cancelled = {_CANCELLED}, expired = {_EXPIRED},
        engine_us = j.engine_us + d.engine_us, output_bytes = j.output_bytes + d.output_bytes,
        state = CASE WHEN {_COMPLETE}
            THEN {final_case(_SUCCEEDED, _FAILED, _CANCELLED, _EXPIRED, "j.stop_as", "j.error")}
            ELSE j.state END,
        finished_at = CASE WHEN {_COMPLETE} THEN d.now END,
        results_expire_at = CASE WHEN {_COMPLETE} THEN d.now + j.results_kept_us * INTERVAL '1 microsecond' END
    FROM {{rows}} WHERE j.id = d.job AND j.finished_at IS NULL RETURNING {JOB_COLUMNS}""",
)

_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs j WHERE j.id = ANY(%s::text[])"

_TERMINAL_EVENTS = GroupSql(
    "job:text type:text at:timestamptz",
    """INSERT INTO events (job, seq, type, terminal, at)
    SELECT d.job, (SELECT coalesce(max(e.seq), 0) + 1 FROM events e WHERE e.job = d.job), d.type, TRUE, d.at
    FROM {rows}""",
)

INSERT_EVENTS = InsertSql("events", EVENT_COLUMNS)


def count(db: Statements, deltas: Mapping[str, Delta]) -> tuple[Job, ...]:
    """Adds the deltas (of rows really changed) and gives the jobs as they now are, final ones with their event.

    The jobs are locked by whoever calls this.
    """
    rows = [(job, *delta.row, db.at) for job, delta in deltas.items()]
    jobs = tuple(job_of(row) for row in db.select(_COUNT, rows))
    expect(len(jobs), len(rows), "counts of jobs that are not final")
    db.change(_TERMINAL_EVENTS, [(job.id, f"job.{job.state}", db.at) for job in jobs if job.state in FINAL])
    return jobs


def read_jobs(db: Statements, ids: Iterable[str]) -> tuple[Job, ...]:
    return tuple(job_of(row) for row in db.rows(_JOBS, (list(ids),)))
