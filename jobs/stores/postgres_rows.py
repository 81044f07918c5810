"""Rows as Postgres gives them: times are datetimes in UTC."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from jobs.records import ChunkMessage, Job
from jobs.stores import rows
from jobs.stores.rows import Row

JOB_COLUMNS = """j.id, j.tenant, j.kind, j.model, j.version, j.priority, j.state,
    j.total, j.succeeded, j.failed, j.cancelled, j.expired,
    CASE WHEN j.finished_at IS NULL
        THEN (SELECT coalesce(sum(c.count), 0)::bigint FROM chunks c
            WHERE c.job = j.id AND c.state = 'running') ELSE 0 END,
    j.sealed, j.paused, j.single, j.created_at, j.started_at, j.finished_at, j.deadline_at, j.results_expire_at,
    j.not_before, j.stop_as, j.error::text, j.parent_job, j.metadata::text,
    j.engine_us, j.input_bytes, j.output_bytes"""
"""A job of table alias j, as `job_of` reads it; counts.running is the items of its running chunks."""


def as_it_is(at: datetime) -> datetime:
    """A time's form in a row."""
    return at


def job_of(row: Sequence[Any]) -> Job:
    return rows.job_of(row, as_it_is)


def message_of(row: Sequence[Any]) -> ChunkMessage:
    return rows.message_of(row, as_it_is)


def storable(text: str) -> str:
    """Without NULs: no text of Postgres can have one. For what is told to people, and for what is only looked for."""
    return text.replace("\0", "\ufffd")


def storable_rows(found: Iterable[Row]) -> list[Row]:
    return [tuple(storable(value) if isinstance(value, str) else value for value in row) for row in found]
