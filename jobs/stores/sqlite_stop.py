"""Ending work before it is done, and giving it back: stop, deadlines, forced ends, lapsed workers."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from jobs.records import ChunkRef, Job
from jobs.states import ErrorCode, JobState, Outcome
from jobs.store import Stopped
from jobs.stores.counting import OUTCOME_OF_STOP, Delta
from jobs.stores.sqlite_counts import count, read_jobs
from jobs.stores.sqlite_rows import micros_of
from jobs.stores.sqlite_statements import GroupSql, Statements, expect

_END = GroupSql(
    "job seq outcomes reason",
    """UPDATE chunks SET state = 'done', fence = chunks.fence + 1, outcomes = d.outcomes, reason = d.reason
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state <> 'done'""",
)

_REQUEUE = GroupSql(
    "job seq now lapse",
    """UPDATE chunks SET state = 'queued', fence = chunks.fence + 1, worker = NULL, publish_at = d.now,
        lapses = chunks.lapses + d.lapse
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state = 'running'""",
)

_STOPPING = GroupSql(
    "job",
    """SELECT json_group_array(json_array(j.id, j.stop_as, j.stop_reason))
    FROM {rows} CROSS JOIN jobs j ON j.id = d.job WHERE j.stop_asked_at IS NOT NULL""",
)

_ASK = """UPDATE jobs SET stop_asked_at = ?, stop_as = ?, stop_reason = ?
    WHERE id = ? AND finished_at IS NULL AND stop_asked_at IS NULL"""

_LATE_CHUNKS = """SELECT job, seq, count FROM chunks
    WHERE state = 'queued' AND queue_deadline_at IS NOT NULL AND queue_deadline_at <= ?
    ORDER BY queue_deadline_at LIMIT ?"""

_LATE_JOBS = """SELECT id FROM jobs
    WHERE finished_at IS NULL AND deadline_at IS NOT NULL AND deadline_at <= ? ORDER BY deadline_at LIMIT ?"""

_OVERDUE_STOPS = """SELECT id FROM jobs
    WHERE finished_at IS NULL AND stop_asked_at IS NOT NULL AND stop_asked_at < ?"""

_LAPSED_CHUNKS = """SELECT c.job, c.seq, c.count FROM chunks c WHERE c.state = 'running' AND NOT EXISTS
    (SELECT 1 FROM workers w WHERE w.incarnation = c.worker AND w.until >= ?)"""

_Chunks = Mapping[tuple[str, int], int]
"""Numbers of items by (job, seq)."""


def stop(
    db: Statements, tenant: str | None, job: str, stop_as: JobState, reason: str | None, force: bool
) -> Stopped | None:
    found = db.rows("SELECT tenant, finished_at FROM jobs WHERE id = ?", (job,))
    if not found or (tenant is not None and found[0][0] != tenant):
        return None
    if found[0][1] is not None:
        return Stopped(read_jobs(db, (job,))[0], changed=False)
    # The first stop decides what becomes of the items; a later one can only be more forceful.
    db.run(_ASK, (db.now, stop_as.value, reason, job))
    changed = end_stopped(db, (job,), running=force)
    running = db.rows("SELECT seq, fence FROM chunks WHERE job = ? AND state = 'running' ORDER BY seq", (job,))
    return Stopped(
        job=changed[0] if changed else read_jobs(db, (job,))[0],
        changed=True,
        running=tuple(ChunkRef(job, seq, fence) for seq, fence in running),
    )


def end_stopped(db: Statements, jobs: Iterable[str], *, running: bool) -> tuple[Job, ...]:
    """Ends the queued chunks (and the running ones) of jobs that were asked to stop; gives the jobs changed."""
    states = "('queued', 'running')" if running else "('queued')"
    ends: dict[tuple[str, int], int] = {}
    for job in jobs:
        rows = db.rows(f"SELECT seq, count FROM chunks WHERE job = ? AND state IN {states}", (job,))
        ends.update({(job, seq): size for seq, size in rows})
    return _end_as_asked(db, ends)


def _end_as_asked(db: Statements, ends: _Chunks) -> tuple[Job, ...]:
    asked = _stopping(db, {job for job, _ in ends})
    rows = []
    deltas: dict[str, Delta] = {}
    for (job, seq), size in ends.items():
        outcome, reason = asked[job]
        rows.append((job, seq, bytes([outcome]) * size, reason))
        deltas.setdefault(job, Delta()).add(outcome, size)
    expect(db.change(_END, rows), len(rows), "end")
    return count(db, deltas)


def _stopping(db: Statements, jobs: Iterable[str]) -> dict[str, tuple[Outcome, str | None]]:
    rows: list[Any] = db.select(_STOPPING, [(job,) for job in jobs])
    return {job: (OUTCOME_OF_STOP[JobState(stop_as)], reason) for job, stop_as, reason in rows}


def expire_due(db: Statements, limit: int) -> tuple[Job, ...]:
    late = {(job, seq): size for job, seq, size in db.rows(_LATE_CHUNKS, (db.now, limit))}
    deltas: dict[str, Delta] = {}
    for (job, _), size in late.items():
        deltas.setdefault(job, Delta()).add(Outcome.EXPIRED, size)
    rows = [(*key, bytes([Outcome.EXPIRED]) * size, ErrorCode.QUEUE_TIMEOUT.value) for key, size in late.items()]
    expect(db.change(_END, rows), len(rows), "queue timeout")
    changed = {job.id: job for job in count(db, deltas)}
    past = [job for (job,) in db.rows(_LATE_JOBS, (db.now, limit))]
    for job in past:
        db.run(_ASK, (db.now, JobState.EXPIRED.value, ErrorCode.DEADLINE_EXCEEDED.value, job))
    changed.update({job.id: job for job in end_stopped(db, past, running=True)})
    return tuple(changed.values())


def force_stopped(db: Statements, grace: timedelta) -> tuple[Job, ...]:
    overdue = db.rows(_OVERDUE_STOPS, (db.now - micros_of(grace),))
    return end_stopped(db, [job for (job,) in overdue], running=True)


def rescue(db: Statements, grace: timedelta) -> int:
    live_since = db.now - micros_of(grace)
    lapsed = {(job, seq): size for job, seq, size in db.rows(_LAPSED_CHUNKS, (live_since,))}
    rescued = requeue(db, lapsed, lapsed=True)
    db.run("DELETE FROM workers WHERE until < ?", (live_since,))
    return rescued


def requeue(db: Statements, chunks: _Chunks, *, lapsed: bool) -> int:
    """running -> queued, due at once; chunks of a job that was asked to stop end instead of waiting again."""
    if not chunks:
        return 0
    stopping = _stopping(db, {job for job, _ in chunks})
    rows = [(job, seq, db.now, int(lapsed)) for job, seq in chunks if job not in stopping]
    expect(db.change(_REQUEUE, rows), len(rows), "hand back")
    _end_as_asked(db, {key: size for key, size in chunks.items() if key[0] in stopping})
    return len(chunks)
