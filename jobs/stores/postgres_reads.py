"""Reads: of any thread, on read-only connections, beside the writers."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, cast

from jobs.records import Job
from jobs.store import JobFilter, JobPage, ResultChunk
from jobs.stores.postgres_rows import JOB_COLUMNS, job_of, storable
from jobs.stores.postgres_statements import GroupSql
from jobs.stores.reading import Read, item_ids, page_of_jobs, with_ids, without_lines
from jobs.stores.rows import json_text, ranges_of
from jobs.stores.tables import jobs

_JOB = f"SELECT {JOB_COLUMNS} FROM jobs j WHERE j.id = %s AND j.tenant = %s"
_JOB_OF_KEY = f"SELECT {JOB_COLUMNS} FROM jobs j WHERE j.tenant = %s AND j.idempotency_key = %s"
_JOBS = f"SELECT {JOB_COLUMNS} FROM jobs j WHERE j.id = ANY(%s::text[])"

# Results by a subquery: as a join, the planner would read them all when it takes a job for larger than it is.
_CHUNK_RESULTS = """SELECT c.job, c.seq, c.items, c.count, c.outcomes, c.reason, c.attempts,
        (SELECT r.data FROM results r WHERE r.job = c.job AND r.seq = c.seq)
    FROM chunks c WHERE {which} ORDER BY c.job, c.first_item, c.seq"""
_RESULTS = _CHUNK_RESULTS.replace("{which}", "c.job = %s AND c.first_item < %s AND c.end_item > %s")
_RESULTS_OF = _CHUNK_RESULTS.replace("{which}", "c.job = ANY(%s::text[])")

_IDS = GroupSql(
    "job:text seq:int",
    "SELECT p.job, p.seq, p.data, p.ids::text FROM {rows} JOIN payloads p ON p.job = d.job AND p.seq = d.seq",
)

_STRING = r'"(?:[^"\\]|\\.)*"'


def read_job(connection: Connection, tenant: str, job: str) -> Job | None:
    return _one_job(connection, _JOB, (storable(job), storable(tenant)))


def job_of_key(connection: Connection, tenant: str, idempotency_key: str) -> Job | None:
    return _one_job(connection, _JOB_OF_KEY, (storable(tenant), storable(idempotency_key)))


def _one_job(connection: Connection, sql: str, parameters: tuple[str, str]) -> Job | None:
    row = connection.exec_driver_sql(sql, parameters).fetchone()
    return None if row is None else job_of(row)


def jobs_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, Job]:
    found = connection.exec_driver_sql(_JOBS, ([storable(id_) for id_ in ids],)).fetchall()
    return {row[0]: job_of(row) for row in found}


def list_jobs(connection: Connection, tenant: str, where: JobFilter, after: str | None, limit: int) -> JobPage:
    if where.model is not None:
        where = replace(where, model=storable(where.model))
    return page_of_jobs(
        connection, tenant, where, after, limit, has_pair=_has_pair, by_id=partial(jobs_by_id, connection)
    )


def _has_pair(key: str, value: str) -> ColumnElement[bool]:
    """By the text: Postgres' JSON functions fail on a document that has a NUL anywhere. All metadata is written by one
    encoder, as one object of strings, so equal pairs are equal text; what comes ahead is skipped pair by pair."""
    pair = re.escape(f"{json_text(key)}:{json_text(value)}")
    return cast(jobs.c.metadata, Text).regexp_match(rf"^\{{(?:{_STRING}:{_STRING},)*{pair}[,}}]")


def read_results(connection: Connection, job: str, from_index: int, limit: int) -> list[ResultChunk]:
    asked = (storable(job), from_index + limit, from_index)
    return [chunk for _, chunk in _result_chunks(connection, _RESULTS, asked)]


def results_of(connection: Connection, wanted: Sequence[str]) -> dict[str, list[ResultChunk]]:
    found: dict[str, list[ResultChunk]] = {job: [] for job in wanted}
    for job, chunk in _result_chunks(connection, _RESULTS_OF, ([storable(id_) for id_ in wanted],)):
        found[job].append(chunk)
    return found


def _result_chunks(connection: Connection, sql: str, parameters: tuple[Any, ...]) -> Read:
    rows = connection.exec_driver_sql(sql, parameters).fetchall()
    read = [
        (job, ResultChunk(seq, ranges_of(items), outcomes or bytes(count), results, reason, None, attempts))
        for job, seq, items, count, outcomes, reason, attempts, results in rows
    ]
    unlined = without_lines(read)
    if not unlined:
        return read
    return with_ids(read, item_ids(connection.exec_driver_sql(*_IDS.call(unlined)).all()))
