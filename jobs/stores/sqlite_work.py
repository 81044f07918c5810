"""What workers do to chunks: claim, mark alone, hand back, finish.

Each first selects which of the named chunks still stand as the caller saw them, in one statement, and then changes
exactly these, guarded again. Nobody else writes in between: the transaction holds the only write lock.
"""

from collections.abc import Sequence
from datetime import timedelta

from jobs.clock import to_micros
from jobs.errors import StoreError
from jobs.records import ChunkRef, Finish
from jobs.states import Outcome
from jobs.store import Finished
from jobs.stores.sqlite_children import insert_children
from jobs.stores.sqlite_counts import Delta, count
from jobs.stores.sqlite_statements import GroupSql, Row, Statements, expect, insert_sql
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

_INSERT_ATTEMPTS = insert_sql("attempts", "job item number worker version code message permanent stage traceback at")


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
    accepted: dict[tuple[str, int], int] = {}
    for at, (size, worker) in held.items():
        if worker == incarnation:
            _check(finishes[at], size)
            accepted.setdefault((finishes[at].ref.job, finishes[at].ref.seq), at)
    taken = set(accepted.values())
    entries = [finishes[at] for at in sorted(taken)]
    flags = tuple(at in taken for at in range(len(finishes)))
    if not entries:
        return Finished(flags, (), ())

    rows: list[Row] = []
    results: list[Row] = []
    deltas: dict[str, Delta] = {}
    for entry in entries:
        ref = entry.ref
        rows.append((ref.job, ref.seq, ref.fence, incarnation, entry.outcomes))
        if entry.results:
            results.append((ref.job, ref.seq, entry.results))
        delta = deltas.get(ref.job)
        if delta is None:
            delta = deltas[ref.job] = Delta()
        delta.add_all(entry.outcomes)
        delta.engine_us += round(entry.engine_seconds * 1_000_000)
        delta.output_bytes += entry.output_bytes
    expect(db.change(_FINISH, rows), len(rows), "finish")
    if results:
        db.change(_INSERT_RESULTS, results)
    _insert_attempts(db, entries)
    children = insert_children(db, entries, deltas, publish_lease) if any(e.children for e in entries) else ()
    return Finished(flags, count(db, deltas), children)


def _held(db: Statements, refs: Sequence[ChunkRef]) -> dict[int, tuple[int, str]]:
    """(count, worker) of the chunks that run under the fence named, by position in `refs`."""
    asked = [(ref.job, ref.seq, ref.fence, at) for at, ref in enumerate(refs)]
    return {at: (size, worker) for at, size, worker in db.select(_RUNNING, asked)}


def _check(entry: Finish, size: int) -> None:
    """A finish that does not account for every item is a bug of its sender: nothing of it is written."""
    outcomes, ref = entry.outcomes, entry.ref
    moved = sum(child.count for child in entry.children)
    if len(outcomes) != size or any(outcome not in _DECIDED for outcome in outcomes):
        raise StoreError(f"finish of {ref.job}/{ref.seq}: {len(outcomes)} outcomes for {size} items, or one undecided")
    if outcomes.count(Outcome.MOVED) != moved:
        raise StoreError(f"finish of {ref.job}/{ref.seq}: {moved} items in children, others marked moved")


_DECIDED = frozenset(outcome.value for outcome in Outcome if outcome is not Outcome.PENDING)


def _insert_attempts(db: Statements, entries: Sequence[Finish]) -> None:
    rows: list[Row] = []
    for entry in entries:
        for attempt in entry.attempts:
            error = attempt.error
            rows.append(
                (
                    entry.ref.job,
                    attempt.item,
                    attempt.number,
                    attempt.worker,
                    attempt.version,
                    str(error.code),
                    error.message,
                    int(error.permanent),
                    error.stage,
                    attempt.traceback,
                    to_micros(attempt.at),
                )
            )
    if rows:
        db.change(_INSERT_ATTEMPTS, rows)
