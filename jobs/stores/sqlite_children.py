"""Child chunks: items that a finished chunk moved on to another try."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from jobs.clock import to_micros
from jobs.records import ChunkMessage, Finish
from jobs.stores.counting import Delta
from jobs.stores.finishing import Parent, Place, child_rows, without_ids
from jobs.stores.rows import MESSAGE_COLUMNS
from jobs.stores.sqlite_rows import message_of
from jobs.stores.sqlite_statements import GroupSql, Statements
from jobs.stores.sqlite_submit import insert_chunks

_PARENTS = GroupSql(
    "job",
    """SELECT json_group_array(json_array(j.id, j.tenant, j.model, j.version, j.stop_as, j.stop_reason,
        (SELECT max(c.seq) FROM chunks c WHERE c.job = j.id)))
    FROM {rows} CROSS JOIN jobs j ON j.id = d.job""",
)

_IDS = GroupSql(
    "job seq",
    """SELECT json_group_array(json_array(p.job, p.seq, p.ids))
    FROM {rows} CROSS JOIN payloads p ON p.job = d.job AND p.seq = d.seq""",
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
    """Inserts the children of these finishes and gives those that may be published at once."""
    parents = {row[0]: Parent(*row[1:]) for row in db.select(_PARENTS, [(e.ref.job,) for e in entries if e.children])}
    blobs = without_ids(entries)
    ids = {(job, seq): text for job, seq, text in db.select(_IDS, blobs)} if blobs else {}
    rows = child_rows(entries, parents, ids, deltas, now=db.at, publish_lease=publish_lease, time=to_micros)
    insert_chunks(db, rows.chunks, rows.payloads)
    return tuple(read_messages(db, rows.due))


def read_messages(db: Statements, keys: Iterable[Place]) -> list[ChunkMessage]:
    """The chunks named, whole, in the order named."""
    wanted = list(keys)
    found: dict[Place, ChunkMessage] = {}
    for sql, bound in _MESSAGES.calls(wanted, (), ()):
        for row in db.rows(sql, bound):
            found[row[0], row[1]] = message_of(row)
    return [found[key] for key in wanted]
