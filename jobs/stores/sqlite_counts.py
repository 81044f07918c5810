"""The one statement that changes a job's counts and, when they are complete, makes it final."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.records import Job
from jobs.states import FINAL, Outcome
from jobs.stores.sqlite_rows import JOB_JSON, job_of
from jobs.stores.sqlite_statements import GroupSql, Statements, expect, insert_sql


def final_case(succeeded: str, failed: str, cancelled: str, expired: str, stop_as: str, error: str) -> str:
    """jobs.states.final_state in SQL, over these expressions."""
    return f"""CASE
        WHEN {error} IS NOT NULL THEN 'failed'
        WHEN {stop_as} = 'cancelled' AND {cancelled} > 0 THEN 'cancelled'
        WHEN {stop_as} = 'expired' AND {expired} > 0 THEN 'expired'
        WHEN {failed} = 0 AND {expired} = 0 THEN 'succeeded'
        WHEN {expired} > 0 AND {succeeded} = 0 AND {failed} = 0 THEN 'expired'
        WHEN {succeeded} = 0 THEN 'failed'
        ELSE 'partially_failed' END"""


_SUCCEEDED, _FAILED, _CANCELLED, _EXPIRED = (
    f"(jobs.{name} + d.{name})" for name in ("succeeded", "failed", "cancelled", "expired")
)
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

insert_events = insert_sql("events", "job seq type terminal at")


@dataclass(slots=True)
class Delta:
    """What is to be added to one job's counts and usage."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    engine_us: int = 0
    output_bytes: int = 0

    def add(self, outcome: Outcome, count: int) -> None:
        """MOVED items stay undecided: their child chunk counts them."""
        if outcome is Outcome.SUCCEEDED:
            self.succeeded += count
        elif outcome is Outcome.FAILED:
            self.failed += count
        elif outcome is Outcome.CANCELLED:
            self.cancelled += count
        elif outcome is Outcome.EXPIRED:
            self.expired += count

    def add_all(self, outcomes: bytes) -> None:
        """One outcome a byte."""
        self.succeeded += outcomes.count(1)
        self.failed += outcomes.count(2)
        self.cancelled += outcomes.count(3)
        self.expired += outcomes.count(4)


def count(db: Statements, deltas: dict[str, Delta]) -> tuple[Job, ...]:
    """Adds the deltas (of rows really changed) and gives the jobs as they now are, final ones with their event."""
    if not deltas:
        return ()
    rows = [
        (job, d.succeeded, d.failed, d.cancelled, d.expired, d.engine_us, d.output_bytes, db.now)
        for job, d in deltas.items()
    ]
    expect(db.change(_COUNT, rows), len(rows), "counts of jobs that are not final")
    jobs = read_jobs(db, deltas)
    ended = [(job.id, f"job.{job.state}", db.now) for job in jobs if job.state in FINAL]
    if ended:
        db.change(_TERMINAL_EVENTS, ended)
    return jobs


def read_jobs(db: Statements, ids: Iterable[str]) -> tuple[Job, ...]:
    return tuple(job_of(row) for row in db.select(_JOBS, [(id_,) for id_ in ids]))
