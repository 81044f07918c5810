"""Reads: of any thread, on read-only connections, beside the writer."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, func, literal, select, tuple_

from jobs import frames
from jobs.errors import Refused
from jobs.records import ApiKey, Job
from jobs.states import Outcome
from jobs.store import Backlog, JobFilter, JobPage, ResultChunk, WorkerRow
from jobs.stores.cursor import Cursor
from jobs.stores.sqlite_connection import driver_connection
from jobs.stores.sqlite_rows import JOB_JSON, job_of, json_text, ranges_of
from jobs.stores.tables import UtcTime, api_keys, chunks, jobs, workers

T = TypeVar("T")

_JOB = f"SELECT {JOB_JSON} FROM jobs j WHERE j.id = ? AND j.tenant = ?"
_JOB_OF_KEY = f"SELECT {JOB_JSON} FROM jobs j WHERE j.tenant = ? AND j.idempotency_key = ?"
_JOBS = f"SELECT json_group_array({JOB_JSON}) FROM json_each(?) d CROSS JOIN jobs j ON j.id = d.value"

_CHUNK_RESULTS = """SELECT
        json_group_array(json_array(job, seq, items, count, hex(outcomes), reason, length(data))),
        CAST(group_concat(data, '') AS BLOB)
    FROM (SELECT c.job, c.seq, c.items, c.count, c.outcomes, c.reason, r.data
        FROM chunks c LEFT JOIN results r ON r.job = c.job AND r.seq = c.seq
        WHERE {which} ORDER BY c.job, c.first_item, c.seq)"""
"""One row whatever is asked for (see sqlite_statements): the chunks as JSON, their results as one run of bytes."""
_RESULTS = _CHUNK_RESULTS.replace("{which}", "c.job = ? AND c.first_item < ? AND c.end_item > ?")
_RESULTS_OF = _CHUNK_RESULTS.replace("{which}", "c.job IN (SELECT value FROM json_each(?))")
_IDS = """SELECT p.job, p.seq, p.data, p.ids FROM json_each(?) d
    CROSS JOIN payloads p ON p.job = d.value ->> 0 AND p.seq = d.value ->> 1"""


def read_job(connection: Connection, tenant: str, job: str) -> Job | None:
    return _one_job(connection, _JOB, (job, tenant))


def job_of_key(connection: Connection, tenant: str, idempotency_key: str) -> Job | None:
    return _one_job(connection, _JOB_OF_KEY, (tenant, idempotency_key))


def _one_job(connection: Connection, sql: str, parameters: tuple[str, str]) -> Job | None:
    row = driver_connection(connection).execute(sql, parameters).fetchone()
    return None if row is None else job_of(msgspec.json.decode(row[0]))


def jobs_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, Job]:
    (found,) = driver_connection(connection).execute(_JOBS, (json_text(ids),)).fetchone()
    return {row[0]: job_of(row) for row in msgspec.json.decode(found)}


def list_jobs(connection: Connection, tenant: str, where: JobFilter, after: str | None, limit: int) -> JobPage:
    conditions: list[ColumnElement[bool]] = [jobs.c.tenant == tenant]
    if where.state is not None:
        conditions.append(jobs.c.state == where.state.value)
    if where.model is not None:
        conditions.append(jobs.c.model == where.model)
    if where.created_after is not None:
        conditions.append(jobs.c.created_at > where.created_after)
    for key, value in where.metadata.items():
        pair = func.json_each(jobs.c.metadata).table_valued("key", "value")
        conditions.append(select(1).select_from(pair).where(pair.c.key == key, pair.c.value == value).exists())
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
    records = jobs_by_id(connection, [row.id for row in page[:limit]])
    more = str(Cursor(page[limit - 1].created_at, page[limit - 1].id)) if len(page) > limit else None
    return JobPage(tuple(records[row.id] for row in page[:limit]), more)


def read_results(connection: Connection, job: str, from_index: int, limit: int) -> list[ResultChunk]:
    return [chunk for _, chunk in _result_chunks(connection, _RESULTS, (job, from_index + limit, from_index))]


def results_of(connection: Connection, wanted: Sequence[str]) -> dict[str, list[ResultChunk]]:
    found: dict[str, list[ResultChunk]] = {job: [] for job in wanted}
    for job, chunk in _result_chunks(connection, _RESULTS_OF, (json_text(wanted),)):
        found[job].append(chunk)
    return found


def _result_chunks(connection: Connection, sql: str, parameters: tuple[Any, ...]) -> list[tuple[str, ResultChunk]]:
    listed, data = driver_connection(connection).execute(sql, parameters).fetchone()
    read: list[tuple[str, ResultChunk]] = []
    unlined: list[tuple[str, int]] = []
    end = 0
    for job, seq, items, count, hex_outcomes, reason, size in msgspec.json.decode(listed):
        results = None
        if size is not None:
            results, end = data[end : end + size], end + size
        outcomes = bytes.fromhex(hex_outcomes) or bytes(count)
        if Outcome.CANCELLED in outcomes or Outcome.EXPIRED in outcomes:
            unlined.append((job, seq))
        read.append((job, ResultChunk(seq, ranges_of(items), outcomes, results, reason, None)))
    if not unlined:
        return read
    ids = _ids(connection, unlined)
    return [
        (job, ResultChunk(c.seq, c.items, c.outcomes, c.results, c.reason, ids.get((job, c.seq)))) for job, c in read
    ]


def _ids(connection: Connection, keys: list[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, ...] | None]:
    """Item ids of chunks, from their payloads; None where each item's id is its index."""
    found: dict[tuple[str, int], tuple[str, ...] | None] = {}
    for job, seq, data, ids in driver_connection(connection).execute(_IDS, (json_text(keys),)):
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
    return [Backlog(model, version, items) for model, version, items in connection.execute(waiting)]


def read_workers(connection: Connection) -> list[WorkerRow]:
    columns = (workers.c.incarnation, workers.c.name, workers.c.pid, workers.c.started_at, workers.c.until)
    return [WorkerRow(*row) for row in connection.execute(select(*columns).order_by(workers.c.started_at))]
