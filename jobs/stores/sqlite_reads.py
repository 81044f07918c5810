"""Reads: of any thread, on read-only connections, beside the writer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from jobs.records import Job
from jobs.store import JobFilter, JobPage, ResultChunk
from jobs.stores.reading import Read, item_ids, page_of_jobs, with_ids, without_lines
from jobs.stores.rows import json_text, ranges_of
from jobs.stores.sqlite_connection import driver_connection
from jobs.stores.sqlite_rows import JOB_JSON, job_of
from jobs.stores.tables import jobs

_JOB = f"SELECT {JOB_JSON} FROM jobs j WHERE j.id = ? AND j.tenant = ?"
_JOB_OF_KEY = f"SELECT {JOB_JSON} FROM jobs j WHERE j.tenant = ? AND j.idempotency_key = ?"
_JOBS = f"SELECT json_group_array({JOB_JSON}) FROM json_each(?) d CROSS JOIN jobs j ON j.id = d.value"

_CHUNK_RESULTS = """SELECT
        json_group_array(json_array(job, seq, items, count, hex(outcomes), reason, attempts, length(data))),
        CAST(group_concat(data, '') AS BLOB)
    FROM (SELECT c.job, c.seq, c.items, c.count, c.outcomes, c.reason, c.attempts, r.data
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
    return page_of_jobs(
        connection, tenant, where, after, limit, has_pair=_has_pair, by_id=partial(jobs_by_id, connection)
    )


def _has_pair(key: str, value: str) -> ColumnElement[bool]:
    pair = func.json_each(jobs.c.metadata).table_valued("key", "value")
    return select(1).select_from(pair).where(pair.c.key == key, pair.c.value == value).exists()


def read_results(connection: Connection, job: str, from_index: int, limit: int) -> list[ResultChunk]:
    return [chunk for _, chunk in _result_chunks(connection, _RESULTS, (job, from_index + limit, from_index))]


def results_of(connection: Connection, wanted: Sequence[str]) -> dict[str, list[ResultChunk]]:
    found: dict[str, list[ResultChunk]] = {job: [] for job in wanted}
    for job, chunk in _result_chunks(connection, _RESULTS_OF, (json_text(wanted),)):
        found[job].append(chunk)
    return found


def _result_chunks(connection: Connection, sql: str, parameters: tuple[Any, ...]) -> Read:
    driver = driver_connection(connection)
    listed, data = driver.execute(sql, parameters).fetchone()
    read: Read = []
    end = 0
    for job, seq, items, count, hex_outcomes, reason, attempts, size in msgspec.json.decode(listed):
        results = None
        if size is not None:
            results, end = data[end : end + size], end + size
        outcomes = bytes.fromhex(hex_outcomes) or bytes(count)
        read.append((job, ResultChunk(seq, ranges_of(items), outcomes, results, reason, None, attempts)))
    unlined = without_lines(read)
    return with_ids(read, item_ids(driver.execute(_IDS, (json_text(unlined),)))) if unlined else read
