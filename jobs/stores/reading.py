"""Reads that every SQL store makes alike: portable statements, and chunks of results put together."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, func, literal, select, tuple_

from jobs import frames
from jobs.errors import Refused
from jobs.records import ApiKey, Job
from jobs.states import Outcome
from jobs.store import Backlog, JobFilter, JobPage, ResultChunk, WorkerRow
from jobs.stores.cursor import Cursor
from jobs.stores.tables import UtcTime, api_keys, chunks, jobs, workers

Place = tuple[str, int]
ItemIds = tuple[str, ...] | None
Read = list[tuple[str, ResultChunk]]
"""Chunks, each with its job."""


def page_of_jobs(
    connection: Connection,
    tenant: str,
    where: JobFilter,
    after: str | None,
    limit: int,
    *,
    has_pair: Callable[[str, str], ColumnElement[bool]],
    by_id: Callable[[Sequence[str]], dict[str, Job]],
) -> JobPage:
    """`has_pair` is the condition that a job's metadata has a key with a value."""
    conditions: list[ColumnElement[bool]] = [jobs.c.tenant == tenant]
    if where.state is not None:
        conditions.append(jobs.c.state == where.state.value)
    if where.model is not None:
        conditions.append(jobs.c.model == where.model)
    if where.created_after is not None:
        conditions.append(jobs.c.created_at > where.created_after)
    conditions.extend(has_pair(key, value) for key, value in where.metadata.items())
    if after is not None:
        last = Cursor.parse(after)
        if last is None:
            raise Refused("after: not a cursor that a list of jobs gave; leave it out to start at the newest job")
        conditions.append(tuple_(jobs.c.created_at, jobs.c.id) < tuple_(literal(last.created_at, UtcTime()), last.job))
    page = connection.execute(
        select(jobs.c.id, jobs.c.created_at)
        .where(*conditions)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(limit + 1)
    ).all()
    records = by_id([row.id for row in page[:limit]])
    more = str(Cursor(page[limit - 1].created_at, page[limit - 1].id)) if len(page) > limit else None
    return JobPage(tuple(records[row.id] for row in page[:limit]), more)


def without_lines(read: Read) -> list[Place]:
    """Chunks that hold items which a stop or a timeout ended: no result line of theirs has their ids."""
    return [
        (job, chunk.seq)
        for job, chunk in read
        if Outcome.CANCELLED in chunk.outcomes or Outcome.EXPIRED in chunk.outcomes
    ]


def with_ids(read: Read, ids: Mapping[Place, ItemIds]) -> Read:
    return [(job, replace(chunk, ids=ids.get((job, chunk.seq)))) for job, chunk in read]


def item_ids(rows: Iterable[tuple[str, int, bytes | None, str | None]]) -> dict[Place, ItemIds]:
    """Item ids of chunks, from their payload rows (job, seq, data, ids); None where each item's id is its index."""
    found: dict[Place, ItemIds] = {}
    for job, seq, data, ids in rows:
        if data is not None:
            found[job, seq] = frames.unpack_payload(data)[0].ids
        elif ids is not None:
            found[job, seq] = tuple(msgspec.json.decode(ids))
    return found


def read_key(connection: Connection, digest: bytes) -> ApiKey | None:
    row = connection.execute(select(api_keys).where(api_keys.c.digest == digest)).one_or_none()
    return None if row is None else ApiKey(row.id, row.tenant, frozenset(row.scopes), row.expires_at)


def read_backlog(connection: Connection) -> list[Backlog]:
    waiting = (
        select(chunks.c.model, chunks.c.version, func.sum(chunks.c.count))
        .where(chunks.c.state == "queued")
        .group_by(chunks.c.model, chunks.c.version)
    )
    return [Backlog(model, version, int(items)) for model, version, items in connection.execute(waiting)]


def read_workers(connection: Connection) -> list[WorkerRow]:
    columns = (workers.c.incarnation, workers.c.name, workers.c.pid, workers.c.started_at, workers.c.until)
    return [WorkerRow(*row) for row in connection.execute(select(*columns).order_by(workers.c.started_at))]
