"""What workers do to chunks: claim, mark alone, hand back, finish.

Each first selects which of the named chunks still stand as the caller saw them, in one statement, and then changes
exactly these, guarded again. Nobody else writes in between: the transaction holds the only write lock.
"""

from collections.abc import Sequence
from datetime import timedelta

from jobs.clock import to_micros
from jobs.records import ChunkRef, Finish
from jobs.store import Finished
from jobs.stores.finishing import ATTEMPT_COLUMNS, attempt_rows, deltas_of, taken
from jobs.stores.sqlite_children import insert_children
from jobs.stores.sqlite_counts import count
from jobs.stores.sqlite_statements import GroupSql, Statements, expect, insert_sql
from jobs.stores.sqlite_stop import requeue

_STANDING = """FROM {rows} CROSS JOIN chunks c ON c.job = d.job AND c.seq = d.seq AND c.fence = d.fence"""

_CLAIMABLE = GroupSql(
    "job seq fence at now worker",
    f"""SELECT json_group_array(d.at) {_STANDING} AND c.state = 'queued'
    CROSS JOIN jobs j ON j.id = d.job
    WHERE (c.not_before IS NULL OR c.not_before <= d.now)
        AND (c.queue_deadline_at IS NULL OR c.queue_deadline_at > d.now)
        AND NOT j.paused AND j.stop_asked_at IS NULL AND j.finished_at IS NULL
        AND (j.deadline_at IS NULL OR j.deadline_at > d.now)
        AND EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = d.worker AND w.until > d.now)""",
)

_START_JOBS = GroupSql(
    "job now",
    """UPDATE jobs SET state = 'running', started_at = coalesce(jobs.started_at, d.now)
    FROM {rows} WHERE jobs.id = d.job AND jobs.state = 'queued'""",
)

_CLAIM = GroupSql(
    "job seq fence worker",
    """UPDATE chunks SET state = 'running', fence = chunks.fence + 1, worker = d.worker,
        queue_deadline_at = NULL
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'queued'""",
)

_RUNNING = GroupSql(
    "job seq fence at",
    f"SELECT json_group_array(json_array(d.at, c.count, c.worker)) {_STANDING} AND c.state = 'running'",
)

_MARK_ALONE = GroupSql(
    "job seq fence",
    """UPDATE chunks SET alone = TRUE
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'running'""",
)

_FINISH = GroupSql(
    "job seq fence worker outcomes",
    """UPDATE chunks SET state = 'done', outcomes = d.outcomes
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'running' AND chunks.worker = d.worker""",
)

_INSERT_RESULTS = insert_sql("results", "job seq data")

_INSERT_ATTEMPTS = insert_sql("attempts", ATTEMPT_COLUMNS)


def claim(db: Statements, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
    fences: list[int | None] = [None] * len(refs)
    asked = [(ref.job, ref.seq, ref.fence, at, db.now, incarnation) for at, ref in enumerate(refs)]
    granted: dict[tuple[str, int], int] = {}
    for at in db.select(_CLAIMABLE, asked):
        granted.setdefault((refs[at].job, refs[at].seq), at)  # named twice: the first gets it
    if not granted:
        return fences
    db.change(_START_JOBS, [(job, db.now) for job in {job for job, _ in granted}])
    rows = [(job, seq, refs[at].fence, incarnation) for (job, seq), at in granted.items()]
    expect(db.change(_CLAIM, rows), len(rows), "claim")
    for at in granted.values():
        fences[at] = refs[at].fence + 1
    return fences


def mark_alone(db: Statements, refs: Sequence[ChunkRef]) -> list[bool]:
    held = _held(db, refs)
    rows = [(refs[at].job, refs[at].seq, refs[at].fence) for at in held]
    if rows:
        db.change(_MARK_ALONE, rows)
    return [at in held for at in range(len(refs))]


def hand_back(db: Statements, refs: Sequence[ChunkRef]) -> int:
    held = _held(db, refs)
    return requeue(db, {(refs[at].job, refs[at].seq): count for at, (count, _) in held.items()}, lapsed=False)


def finish(db: Statements, finishes: Sequence[Finish], incarnation: str, publish_lease: timedelta) -> Finished:
    held = _held(db, [entry.ref for entry in finishes])
    accepted = taken(finishes, held, incarnation)
    entries = [finishes[at] for at in sorted(accepted)]
    flags = tuple(at in accepted for at in range(len(finishes)))
    if not entries:
        return Finished(flags, (), ())

    deltas = deltas_of(entries)
    rows = [(e.ref.job, e.ref.seq, e.ref.fence, incarnation, e.outcomes) for e in entries]
    expect(db.change(_FINISH, rows), len(rows), "finish")
    results = [(e.ref.job, e.ref.seq, e.results) for e in entries if e.results]
    if results:
        db.change(_INSERT_RESULTS, results)
    attempts = attempt_rows(entries, to_micros)
    if attempts:
        db.change(_INSERT_ATTEMPTS, attempts)
    children = insert_children(db, entries, deltas, publish_lease) if any(e.children for e in entries) else ()
    return Finished(flags, count(db, deltas), children)


def _held(db: Statements, refs: Sequence[ChunkRef]) -> dict[int, tuple[int, str]]:
    """(count, worker) of the chunks that run under the fence named, by position in `refs`."""
    asked = [(ref.job, ref.seq, ref.fence, at) for at, ref in enumerate(refs)]
    return {at: (size, worker) for at, size, worker in db.select(_RUNNING, asked)}
