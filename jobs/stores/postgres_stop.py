"""Ending work before it is done, and giving it back: stop, deadlines, forced ends, lapsed workers.

What is late is looked for without locks; then its jobs are locked by id, its chunks by (job, seq), and looked at again.
"""

from collections.abc import Collection, Mapping
from datetime import timedelta

from jobs.records import ChunkRef, Job
from jobs.states import ChunkState, ErrorCode, JobState, Outcome
from jobs.store import Stopped
from jobs.stores.counting import OUTCOME_OF_STOP, Delta
from jobs.stores.postgres_counts import count, read_jobs
from jobs.stores.postgres_rows import storable
from jobs.stores.postgres_statements import GroupSql, Statements, expect

_END = GroupSql(
    "job:text seq:int outcomes:bytea reason:text",
    """UPDATE chunks SET state = 'done', fence = chunks.fence + 1, outcomes = d.outcomes, reason = d.reason
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state <> 'done'""",
)

_REQUEUE = GroupSql(
    "job:text seq:int now:timestamptz lapse:int",
    """UPDATE chunks SET state = 'queued', fence = chunks.fence + 1, worker = NULL, publish_at = d.now,
        lapses = chunks.lapses + d.lapse
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state = 'running'""",
)

_JOB = "SELECT tenant, finished_at FROM jobs WHERE id = %s"

_STOPPING = "SELECT id, stop_as, stop_reason FROM jobs WHERE id = ANY(%s::text[]) AND stop_asked_at IS NOT NULL"

_ASK = """UPDATE jobs SET stop_asked_at = %s, stop_as = %s, stop_reason = %s
    WHERE id = ANY(%s::text[]) AND finished_at IS NULL AND stop_asked_at IS NULL"""

_OPEN = """SELECT c.job, c.seq, c.count FROM chunks c
    WHERE c.job = ANY(%s::text[]) AND c.state = ANY(%s::text[]) ORDER BY c.job, c.seq FOR NO KEY UPDATE"""

_RUNNING = "SELECT seq, fence FROM chunks WHERE job = %s AND state = 'running' ORDER BY seq"

_LATE_CHUNKS = """SELECT job, seq FROM chunks
    WHERE state = 'queued' AND queue_deadline_at IS NOT NULL AND queue_deadline_at <= %s
    ORDER BY queue_deadline_at LIMIT %s"""

_LATE_JOBS = """SELECT id FROM jobs
    WHERE finished_at IS NULL AND deadline_at IS NOT NULL AND deadline_at <= %s ORDER BY deadline_at LIMIT %s"""

# The chunks named, and all that jobs past their deadline have open: in one statement, for they are locked in one order.
_STILL_LATE = """SELECT c.job, c.seq, c.count, c.state = 'queued' AND coalesce(c.queue_deadline_at <= %s, FALSE)
    FROM (SELECT u.job, u.seq FROM unnest(%s::text[], %s::int[]) AS u(job, seq)
        UNION SELECT o.job, o.seq FROM chunks o WHERE o.job = ANY(%s::text[]) AND o.state <> 'done') AS d
    JOIN chunks c ON c.job = d.job AND c.seq = d.seq
    ORDER BY c.job, c.seq FOR NO KEY UPDATE OF c"""

_OVERDUE_STOPS = """SELECT id FROM jobs
    WHERE finished_at IS NULL AND stop_asked_at IS NOT NULL AND stop_asked_at < %s"""

_LAPSED_WORKERS = "DELETE FROM workers WHERE until < %s"

_LAPSED_CHUNKS = """SELECT c.job, c.seq FROM chunks c WHERE c.state = 'running'
    AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = c.worker)"""

_STILL_LAPSED = GroupSql(
    "job:text seq:int",
    """SELECT c.job, c.seq, c.count FROM {rows} JOIN chunks c ON c.job = d.job AND c.seq = d.seq
    WHERE c.state = 'running' AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = c.worker)
    ORDER BY c.job, c.seq FOR NO KEY UPDATE OF c""",
)

_Chunks = Mapping[tuple[str, int], int]
"""Numbers of items by (job, seq)."""


def stop(
    db: Statements, tenant: str | None, job: str, stop_as: JobState, reason: str | None, force: bool
) -> Stopped | None:
    job = storable(job)
    found = db.rows(_JOB, (job,), locking=(job,))
    if not found or (tenant is not None and found[0][0] != tenant):
        return None
    if found[0][1] is not None:
        return Stopped(read_jobs(db, (job,))[0], changed=False)
    # The first stop decides what becomes of the items; a later one can only be more forceful.
    db.run(_ASK, (db.at, stop_as.value, reason, [job]))
    changed = _end_stopped(db, (job,), running=force)
    running = db.rows(_RUNNING, (job,))
    return Stopped(
        job=changed[0] if changed else read_jobs(db, (job,))[0],
        changed=True,
        running=tuple(ChunkRef(job, seq, fence) for seq, fence in running),
    )


def _end_stopped(db: Statements, jobs: Collection[str], *, running: bool) -> tuple[Job, ...]:
    """Ends the queued chunks (and the running ones) of jobs that were asked to stop and are locked; gives the jobs
    changed."""
    states = [ChunkState.QUEUED.value, ChunkState.RUNNING.value] if running else [ChunkState.QUEUED.value]
    rows = db.rows(_OPEN, (list(jobs), states)) if jobs else ()
    return _end_as_asked(db, {(job, seq): size for job, seq, size in rows})


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


def _stopping(db: Statements, jobs: Collection[str]) -> dict[str, tuple[Outcome, str | None]]:
    rows = db.rows(_STOPPING, (list(jobs),)) if jobs else ()
    return {job: (OUTCOME_OF_STOP[JobState(stop_as)], reason) for job, stop_as, reason in rows}


def expire_due(db: Statements, limit: int) -> tuple[Job, ...]:
    named = db.rows(_LATE_CHUNKS, (db.at, limit))
    past = [job for (job,) in db.rows(_LATE_JOBS, (db.at, limit))]
    if not named and not past:
        return ()
    places = ([job for job, _ in named], [seq for _, seq in named])
    locked = db.rows(_STILL_LATE, (db.at, *places, past), locking={*places[0], *past})
    late = {(job, seq): size for job, seq, size, is_late in locked if is_late}
    deltas: dict[str, Delta] = {}
    for (job, _), size in late.items():
        deltas.setdefault(job, Delta()).add(Outcome.EXPIRED, size)
    rows = [(*key, bytes([Outcome.EXPIRED]) * size, ErrorCode.QUEUE_TIMEOUT.value) for key, size in late.items()]
    expect(db.change(_END, rows), len(rows), "queue timeout")
    changed = {job.id: job for job in count(db, deltas)}
    if past:
        db.run(_ASK, (db.at, JobState.EXPIRED.value, ErrorCode.DEADLINE_EXCEEDED.value, past))
        changed.update({job.id: job for job in _end_stopped(db, past, running=True)})
    return tuple(changed.values())


def force_stopped(db: Statements, grace: timedelta) -> tuple[Job, ...]:
    overdue = [job for (job,) in db.rows(_OVERDUE_STOPS, (db.at - grace,))]
    if not overdue:
        return ()
    locked = db.rows("SELECT id FROM jobs WHERE id = ANY(%s::text[])", (overdue,), locking=overdue)
    return _end_stopped(db, [job for (job,) in locked], running=True)


def rescue(db: Statements, grace: timedelta) -> int:
    # The workers first: one whose heartbeat comes at this moment is either found alive or learns that it is not.
    db.run(_LAPSED_WORKERS, (db.at - grace,))
    lapsed = [(job, seq) for job, seq in db.rows(_LAPSED_CHUNKS)]
    locked = db.select(_STILL_LAPSED, lapsed, locking={job for job, _ in lapsed})
    return requeue(db, {(job, seq): size for job, seq, size in locked}, lapsed=True)


def requeue(db: Statements, chunks: _Chunks, *, lapsed: bool) -> int:
    """running -> queued, due at once; chunks of a job that was asked to stop end instead of waiting again. They and
    their jobs are locked."""
    stopping = _stopping(db, {job for job, _ in chunks})
    rows = [(job, seq, db.at, int(lapsed)) for job, seq in chunks if job not in stopping]
    expect(db.change(_REQUEUE, rows), len(rows), "hand back")
    _end_as_asked(db, {key: size for key, size in chunks.items() if key[0] in stopping})
    return len(chunks)
