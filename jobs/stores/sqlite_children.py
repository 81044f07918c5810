"""Child chunks: items that a finished chunk moved on to another try."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from jobs.records import BlobRef, ChunkMessage, Finish
from jobs.states import ChunkState, JobState
from jobs.stores.sqlite_counts import Delta
from jobs.stores.sqlite_rows import MESSAGE_COLUMNS, duration_micros, message_of, micros
from jobs.stores.sqlite_statements import GroupSql, Row, Statements
from jobs.stores.sqlite_stop import OUTCOME_OF_STOP
from jobs.stores.sqlite_submit import chunk_columns, insert_chunks, payload_row

_PARENTS = GroupSql(
    "job",
    """SELECT json_group_array(json_array(j.id, j.tenant, j.model, j.version, j.stop_as, j.stop_reason,
        (SELECT max(c.seq) FROM chunks c WHERE c.job = j.id)))
    FROM {rows} CROSS JOIN jobs j ON j.id = d.job""",
)

_MESSAGES = GroupSql(
    "job seq",
    f"""SELECT {MESSAGE_COLUMNS}
    FROM {{rows}} CROSS JOIN chunks c ON c.job = d.job AND c.seq = d.seq
    CROSS JOIN jobs j ON j.id = c.job CROSS JOIN payloads p ON p.job = c.job AND p.seq = c.seq""",
)


def insert_children(
    db: Statements, entries: Sequence[Finish], deltas: Mapping[str, Delta], publish_lease: timedelta
) -> tuple[ChunkMessage, ...]:
    """Inserts the children of these finishes and gives those that may be published at once.

    A child of a job that was asked to stop is ended on the spot, and counted in `deltas`.
    """
    chunks: list[Row] = []
    payloads: list[Row] = []
    due: list[tuple[str, int]] = []
    parents = {row[0]: row[1:] for row in db.select(_PARENTS, [(e.ref.job,) for e in entries if e.children])}
    last = {job: row[-1] for job, row in parents.items()}
    for entry in entries:
        job = entry.ref.job
        for child in entry.children:
            tenant, model, version, stop_as, stop_reason, _ = parents[job]
            seq = last[job] = last[job] + 1
            not_before = micros(child.not_before)
            due_now = not_before is None or not_before <= db.now
            publish_at = db.now + (duration_micros(publish_lease) or 0) if due_now else not_before
            state, outcomes, reason = ChunkState.QUEUED.value, None, None
            if stop_as is not None:
                outcome = OUTCOME_OF_STOP[JobState(stop_as)]
                state, outcomes, reason = ChunkState.DONE.value, bytes([outcome]) * child.count, stop_reason
                deltas[job].add(outcome, child.count)
            elif due_now:
                due.append((job, seq))
            place = (job, seq, tenant, model, version)
            chunks.append((*place, *chunk_columns(child), state, not_before, publish_at, None, outcomes, reason))
            if isinstance(child.payload, BlobRef) and child.ids is None:
                payloads.append(_inherit_ids(db, job, entry.ref.seq, payload_row(job, seq, child)))
            else:
                payloads.append(payload_row(job, seq, child))
    insert_chunks(db, chunks, payloads)
    return tuple(read_messages(db, due))


def _inherit_ids(db: Statements, job: str, parent: int, row: Row) -> Row:
    """A blob holds a single item, so its child holds the same one."""
    ids = db.rows("SELECT ids FROM payloads WHERE job = ? AND seq = ?", (job, parent))
    return (*row[:-1], ids[0][0] if ids else None)


def read_messages(db: Statements, keys: Iterable[tuple[str, int]]) -> list[ChunkMessage]:
    """The chunks named, whole, in the order named."""
    wanted = list(keys)
    found: dict[tuple[str, int], ChunkMessage] = {}
    for sql, bound in _MESSAGES.calls(wanted, (), ()):
        for row in db.rows(sql, bound):
            found[row[0], row[1]] = message_of(row)
    return [found[key] for key in wanted]
