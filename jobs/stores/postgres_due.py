"""What may go to the stream: found lane by lane, a lane being what waits for one (tenant, model)."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from jobs.records import ChunkMessage, ChunkRef
from jobs.stores.postgres_children import read_messages
from jobs.stores.postgres_statements import GroupSql, Statements

# One jump through the index for each lane, however much waits in it; then the oldest of each, and of these the oldest.
# Within a lane in the order of the index alone: many chunks may be due since the same moment, and sorting them would
# read them all. Those that another relay holds are passed over, and what they kept from this group comes with the next.
_DUE = """WITH RECURSIVE lanes AS (
        (SELECT tenant, model FROM chunks WHERE state = 'queued' ORDER BY tenant, model LIMIT 1)
        UNION ALL
        SELECT n.tenant, n.model FROM lanes l CROSS JOIN LATERAL (
            SELECT k.tenant, k.model FROM chunks k
            WHERE k.state = 'queued' AND (k.tenant, k.model) > (l.tenant, l.model)
            ORDER BY k.tenant, k.model LIMIT 1) n),
    due AS MATERIALIZED (
        SELECT f.job, f.seq, f.publish_at FROM lanes l CROSS JOIN LATERAL (
            SELECT q.job, q.seq, q.publish_at FROM chunks q JOIN jobs j ON j.id = q.job
            WHERE q.state = 'queued' AND q.tenant = l.tenant AND q.model = l.model AND q.publish_at <= %s
                AND (q.not_before IS NULL OR q.not_before <= %s) AND NOT j.paused AND j.stop_asked_at IS NULL
            ORDER BY q.publish_at LIMIT %s) f
        WHERE NOT EXISTS (SELECT 1 FROM unnest(%s::text[], %s::text[]) AS s(tenant, model)
            WHERE s.tenant = l.tenant AND s.model = l.model)
        ORDER BY f.publish_at, f.job, f.seq LIMIT %s)
    SELECT c.job, c.seq FROM due JOIN chunks c ON c.job = due.job AND c.seq = due.seq
    WHERE c.state = 'queued' AND c.publish_at <= %s
    ORDER BY due.publish_at, c.job, c.seq FOR NO KEY UPDATE OF c SKIP LOCKED"""

_LEASE = GroupSql(
    "job:text seq:int until:timestamptz",
    """UPDATE chunks SET publish_at = d.until
    FROM {rows} WHERE chunks.job = d.job AND chunks.seq = d.seq AND chunks.state = 'queued'""",
)

_RELEASE = GroupSql(
    "job:text seq:int fence:bigint now:timestamptz",
    """UPDATE chunks SET publish_at = locked.now
    FROM (SELECT c.job, c.seq, d.now FROM {rows} JOIN chunks c ON c.job = d.job AND c.seq = d.seq
        WHERE c.fence = d.fence AND c.state = 'queued' AND c.publish_at > d.now
        ORDER BY c.job, c.seq FOR NO KEY UPDATE OF c) AS locked
    WHERE chunks.job = locked.job AND chunks.seq = locked.seq AND chunks.state = 'queued'""",
)

_REPUBLISH = """WITH locked AS MATERIALIZED
        (SELECT job, seq FROM chunks WHERE state = 'queued' ORDER BY job, seq FOR NO KEY UPDATE)
    UPDATE chunks SET publish_at = greatest(%s, chunks.not_before) FROM locked
    WHERE chunks.job = locked.job AND chunks.seq = locked.seq AND chunks.state = 'queued'"""


def take_due(db: Statements, limit: int, lease: timedelta, skip: Collection[tuple[str, str]]) -> list[ChunkMessage]:
    skipped = ([tenant for tenant, _ in skip], [model for _, model in skip])
    rows = db.rows(_DUE, (db.at, db.at, limit, *skipped, limit, db.at))
    taken = [(job, seq) for job, seq in rows]
    db.change(_LEASE, [(job, seq, db.at + lease) for job, seq in taken])
    return read_messages(db, taken)


def release(db: Statements, refs: Sequence[ChunkRef]) -> int:
    return db.change(_RELEASE, [(ref.job, ref.seq, ref.fence, db.at) for ref in refs])


def republish_all(db: Statements) -> int:
    return db.run(_REPUBLISH, (db.at,)).rowcount
