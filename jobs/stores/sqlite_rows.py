"""Rows as SQLite gives them: times are microseconds, a job comes as one JSON array."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobs.clock import from_micros
from jobs.records import ChunkMessage, Job
from jobs.stores import rows

JOB_JSON = """json_array(j.id, j.tenant, j.kind, j.model, j.version, j.priority, j.state,
    j.total, j.succeeded, j.failed, j.cancelled, j.expired,
    CASE WHEN j.finished_at IS NULL
        THEN (SELECT coalesce(sum(c.count), 0) FROM chunks c INDEXED BY chunks_running
            WHERE c.job = j.id AND c.state = 'running') ELSE 0 END,
    j.sealed, j.paused, j.single, j.created_at, j.started_at, j.finished_at, j.deadline_at, j.results_expire_at,
    j.not_before, j.stop_as, j.error, j.parent_job, j.metadata, j.engine_us, j.input_bytes, j.output_bytes)"""
"""A job of table alias j, as `job_of` reads it; counts.running is the items of its running chunks."""


def micros_of(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def job_of(row: Sequence[Any]) -> Job:
    return rows.job_of(row, from_micros)


def message_of(row: Sequence[Any]) -> ChunkMessage:
    return rows.message_of(row, from_micros)
