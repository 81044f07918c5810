"""The core's records as the API shows them."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from api.timestamps import show, show_or_none
from jobs.records import Counts, Job

NULL = Raw(b"null")


class CountsView(msgspec.Struct):
    total: int
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int


class UsageView(msgspec.Struct):
    engine_seconds: float
    input_bytes: int
    output_bytes: int


class LinksView(msgspec.Struct):
    results: str
    events: str
    explain: str | None


class JobView(msgspec.Struct):
    """The job as in GET /v1/jobs/{id}. ``queue`` and ``links.explain`` have no source yet: null."""

    id: str
    kind: str
    model: str
    version: str
    state: str
    paused: bool
    priority: str
    counts: CountsView
    sealed: bool
    created_at: str
    started_at: str | None
    finished_at: str | None
    deadline_at: str | None
    results_expire_at: str | None
    queue: None
    usage: UsageView
    error: Raw
    output: Raw
    parent_job: str | None
    metadata: dict[str, str]
    links: LinksView


_encoder = msgspec.json.Encoder()


def counts_view(counts: Counts) -> CountsView:
    return CountsView(
        counts.total,
        counts.queued,
        counts.running,
        counts.succeeded,
        counts.failed,
        counts.cancelled,
        counts.expired,
    )


def path_of(job_id: str) -> str:
    return f"/v1/jobs/{job_id}"


def job_view(job: Job, output: bytes | None = None, error: bytes | None = None) -> JobView:
    """``output`` and ``error`` are JSON: those of the one item of a job in the `input` form."""
    usage = job.usage
    path = f"/v1/jobs/{job.id}"
    if error is None and job.error is not None:
        error = _encoder.encode(job.error)
    return JobView(
        job.id,
        job.kind,
        job.model,
        job.version,
        job.state,
        job.paused,
        job.priority,
        counts_view(job.counts),
        job.sealed,
        show(job.created_at),
        show_or_none(job.started_at),
        show_or_none(job.finished_at),
        show_or_none(job.deadline_at),
        show_or_none(job.results_expire_at),
        None,
        UsageView(round(usage.engine_seconds, 6), usage.input_bytes, usage.output_bytes),
        NULL if error is None else Raw(error),
        NULL if output is None else Raw(output),
        job.parent_job,
        job.metadata,
        LinksView(f"{path}/results", f"{path}/events", None),
    )


def render_job(job: Job, output: bytes | None = None, error: bytes | None = None) -> bytes:
    return _encoder.encode(job_view(job, output, error))


class _PageView(msgspec.Struct):
    data: list[Raw]
    next: str | None


def render_page(bodies: Iterable[bytes], after: str | None) -> bytes:
    """A page of things that are JSON already."""
    return _encoder.encode(_PageView([Raw(body) for body in bodies], after))


def encode(value: Any) -> bytes:
    """JSON of a view or of plain values. Strict: a non-finite float becomes null, never a bare NaN."""
    return _encoder.encode(value)
