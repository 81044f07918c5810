"""What may go to the stream: found lane by lane, a lane being what waits for one (tenant, model)."""

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta

from jobs.records import ChunkMessage, ChunkRef
from jobs.stores.sqlite_children import read_messages
from jobs.stores.sqlite_rows import micros_of
from jobs.stores.sqlite_statements import GroupSql, Statements

_NEXT_LANE = """SELECT tenant, model FROM chunks INDEXED BY chunks_due
    WHERE state = 'queued' AND (tenant, model) > (?, ?) ORDER BY tenant, model LIMIT 1"""

_DUE = """SELECT c.publish_at, c.job, c.seq FROM chunks c INDEXED BY chunks_due CROSS JOIN jobs j ON j.id = c.job
    WHERE c.state = 'queued' AND c.tenant = ? AND c.model = ? AND c.publish_at <= ?
        AND (c.not_before IS NULL OR c.not_before <= ?) AND NOT j.paused AND j.stop_asked_at IS NULL
    ORDER BY c.publish_at, c.job, c.seq LIMIT ?"""

_LEASE = GroupSql(
    "job seq until",
    """UPDATE chunks SET publish_at = d.until
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state = 'queued'""",
)

_RELEASE = GroupSql(
    "job seq fence now",
    """UPDATE chunks SET publish_at = d.now
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.fence = d.fence
        AND chunks.state = 'queued' AND chunks.publish_at > d.now""",
)

_REPUBLISH = """UPDATE chunks SET publish_at = max(?, coalesce(not_before, 0)) WHERE state = 'queued'"""


def take_due(db: Statements, limit: int, lease: timedelta, skip: Collection[tuple[str, str]]) -> list[ChunkMessage]:
    due: list[tuple[int, str, int]] = []
    for lane in _lanes(db):
        if lane not in skip:
            due.extend(db.rows(_DUE, (*lane, db.now, db.now, limit)))
    taken = [(job, seq) for _, job, seq in sorted(due)[:limit]]
    until = db.now + micros_of(lease)
    db.change(_LEASE, [(job, seq, until) for job, seq in taken])
    return read_messages(db, taken)


def release(db: Statements, refs: Sequence[ChunkRef]) -> int:
    return db.change(_RELEASE, [(ref.job, ref.seq, ref.fence, db.now) for ref in refs])


def republish_all(db: Statements) -> int:
    return db.run(_REPUBLISH, (db.now,)).rowcount


def _lanes(db: Statements) -> Iterator[tuple[str, str]]:
    """One jump through the index for each lane, however much waits in it."""
    lane = ("", "")
    while found := db.rows(_NEXT_LANE, lane):
        tenant, model = found[0]
        lane = (tenant, model)
        yield lane
