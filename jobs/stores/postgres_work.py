"""What workers do to chunks: claim, mark alone, hand back, finish.

Each first locks the jobs by id and then those of the named chunks that still stand as the caller saw them, by (job,
seq), and changes exactly these, guarded again.
"""

from collections.abc import Sequence
from datetime import timedelta

from jobs.records import ChunkRef, Finish
from jobs.states import JobState
from jobs.store import Finished
from jobs.stores.finishing import ATTEMPT_COLUMNS, attempt_rows, deltas_of, taken
from jobs.stores.postgres_children import insert_children
from jobs.stores.postgres_counts import count
from jobs.stores.postgres_rows import as_it_is, storable_rows
from jobs.stores.postgres_statements import GroupSql, InsertSql, Statements, expect
from jobs.stores.postgres_stop import requeue

_STANDING = """FROM {rows} JOIN chunks c ON c.job = d.job AND c.seq = d.seq AND c.fence = d.fence"""
_IN_ORDER = "ORDER BY c.job, c.seq, d.at FOR NO KEY UPDATE OF c"

# A worker that is removed at this moment may still get its claim: the next rescue finds that nobody holds it.
_CLAIMABLE = GroupSql(
    "job:text seq:int fence:bigint at:int now:timestamptz worker:text",
    f"""SELECT d.at, j.state {_STANDING} AND c.state = 'queued'
    JOIN jobs j ON j.id = d.job
    WHERE (c.not_before IS NULL OR c.not_before <= d.now)
        AND (c.queue_deadline_at IS NULL OR c.queue_deadline_at > d.now)
        AND NOT j.paused AND j.stop_asked_at IS NULL AND j.finished_at IS NULL
        AND (j.deadline_at IS NULL OR j.deadline_at > d.now)
        AND EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = d.worker AND w.until > d.now)
    {_IN_ORDER}""",
)

_START_JOBS = GroupSql(
    "job:text now:timestamptz",
    """UPDATE jobs SET state = 'running', started_at = coalesce(jobs.started_at, d.now)
    FROM {rows} WHERE jobs.id = d.job AND jobs.state = 'queued'""",
)

_CLAIM = GroupSql(
    "job:text seq:int fence:bigint worker:text",
    """UPDATE chunks SET state = 'running', fence = chunks.fence + 1, worker = d.worker,
        queue_deadline_at = NULL
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'queued'""",
)

_RUNNING = GroupSql(
    "job:text seq:int fence:bigint at:int",
    f"SELECT d.at, c.count, c.worker {_STANDING} AND c.state = 'running' {_IN_ORDER}",
)

_MARK_ALONE = GroupSql(
    "job:text seq:int fence:bigint",
    """UPDATE chunks SET alone = TRUE
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'running'""",
)

_FINISH = GroupSql(
    "job:text seq:int fence:bigint worker:text outcomes:bytea",
    """UPDATE chunks SET state = 'done', outcomes = d.outcomes
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'running' AND chunks.worker = d.worker""",
)

_INSERT_RESULTS = InsertSql("results", "job seq data")

_INSERT_ATTEMPTS = InsertSql("attempts", ATTEMPT_COLUMNS)


def claim(db: Statements, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
    fences: list[int | None] = [None] * len(refs)
    asked = [(ref.job, ref.seq, ref.fence, at, db.at, incarnation) for at, ref in enumerate(refs)]
    granted: dict[tuple[str, int], int] = {}
    fresh: set[str] = set()
    for at, state in sorted(db.select(_CLAIMABLE, asked, locking=_jobs_of(refs))):
        granted.setdefault((refs[at].job, refs[at].seq), at)  # named twice: the first gets it
        if state == JobState.QUEUED:
            fresh.add(refs[at].job)
    expect(db.change(_START_JOBS, [(job, db.at) for job in fresh]), len(fresh), "start")
    rows = [(job, seq, refs[at].fence, incarnation) for (job, seq), at in granted.items()]
    expect(db.change(_CLAIM, rows), len(rows), "claim")
    for at in granted.values():
        fences[at] = refs[at].fence + 1
    return fences


def mark_alone(db: Statements, refs: Sequence[ChunkRef]) -> list[bool]:
    held = _held(db, refs)
    db.change(_MARK_ALONE, [(refs[at].job, refs[at].seq, refs[at].fence) for at in held])
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
    db.change(_INSERT_RESULTS, [(e.ref.job, e.ref.seq, e.results) for e in entries if e.results])
    # A model's own words may hold anything; they are kept for people.
    db.change(_INSERT_ATTEMPTS, storable_rows(attempt_rows(entries, as_it_is)))
    children = insert_children(db, entries, deltas, publish_lease) if any(e.children for e in entries) else ()
    return Finished(flags, count(db, deltas), children)


def _held(db: Statements, refs: Sequence[ChunkRef]) -> dict[int, tuple[int, str]]:
    """(count, worker) of the chunks that run under the fence named, by position in `refs`; they are locked then."""
    asked = [(ref.job, ref.seq, ref.fence, at) for at, ref in enumerate(refs)]
    return {at: (size, worker) for at, size, worker in db.select(_RUNNING, asked, locking=_jobs_of(refs))}


def _jobs_of(refs: Sequence[ChunkRef]) -> set[str]:
    return {ref.job for ref in refs}
