"""Child chunks: items that a finished chunk moved on to another try."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from jobs.records import ChunkMessage, Finish
from jobs.stores.counting import Delta
from jobs.stores.finishing import Parent, Place, child_rows, without_ids
from jobs.stores.postgres_rows import as_it_is, message_of
from jobs.stores.postgres_statements import GroupSql, Statements
from jobs.stores.postgres_submit import insert_chunks
from jobs.stores.rows import MESSAGE_COLUMNS

_PARENTS = GroupSql(
    "job:text",
    """SELECT j.id, j.tenant, j.model, j.version, j.stop_as, j.stop_reason,
        (SELECT max(c.seq) FROM chunks c WHERE c.job = j.id)
    FROM {rows} JOIN jobs j ON j.id = d.job""",
)

_IDS = GroupSql(
    "job:text seq:int",
    "SELECT p.job, p.seq, p.ids::text FROM {rows} JOIN payloads p ON p.job = d.job AND p.seq = d.seq",
)

_MESSAGES = GroupSql(
    "job:text seq:int",
    f"""SELECT {MESSAGE_COLUMNS}
    FROM {{rows}} JOIN chunks c ON c.job = d.job AND c.seq = d.seq
    JOIN jobs j ON j.id = c.job JOIN payloads p ON p.job = c.job AND p.seq = c.seq""",
)


def insert_children(
    db: Statements, entries: Sequence[Finish], deltas: Mapping[str, Delta], publish_lease: timedelta
) -> tuple[ChunkMessage, ...]:
    """Inserts the children of these finishes, whose jobs are locked, and gives those that may be published at once."""
    moving = {(entry.ref.job,) for entry in entries if entry.children}
    parents = {row[0]: Parent(*row[1:]) for row in db.select(_PARENTS, list(moving))}
    ids = {(job, seq): text for job, seq, text in db.select(_IDS, without_ids(entries))}
    rows = child_rows(entries, parents, ids, deltas, now=db.at, publish_lease=publish_lease, time=as_it_is)
    insert_chunks(db, rows.chunks, rows.payloads)
    return tuple(read_messages(db, rows.due))


def read_messages(db: Statements, wanted: Sequence[Place]) -> list[ChunkMessage]:
    """The chunks named, whole, in the order named."""
    found = {(row[0], row[1]): message_of(row) for row in db.select(_MESSAGES, wanted)}
    return [found[place] for place in wanted]
