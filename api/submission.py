"""From the body of POST /v1/jobs to a job that is ready to be written: pure, without I/O, on any thread."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from api import checks, envelope, fingerprint, payloads, problems
from api.decoding import InputsDecoder
from api.envelope import Envelope, Item, Parsed, Timeouts
from api.problems import Problem
from jobs.clock import Clock
from jobs.errors import Finding
from jobs.ids import new_id
from jobs.models.catalog import Catalog, ModelVersion
from jobs.records import NewChunk, NewJob
from jobs.settings import Settings
from jobs.states import Priority


class Request(msgspec.Struct, frozen=True, gc=False):
    """A submission as it came in."""

    tenant: str
    body: bytes
    idempotency_key: str | None = None
    traceparent: str | None = None


class Draft(msgspec.Struct, frozen=True, gc=False):
    """``job`` still holds every payload; those named in ``large`` are to be put into blobs before it is written."""

    job: NewJob
    large: tuple[int, ...]  # positions in job.chunks


class Builder:
    """Validates submissions by the catalog. Everything wrong is found at once; nothing is written."""

    def __init__(self, catalog: Catalog, settings: Settings, clock: Clock) -> None:
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._inputs = InputsDecoder()

    def build(self, request: Request) -> Draft:
        """The job of a request; Problem (400, 413, 503) with all findings."""
        limits = self._settings.limits
        parsed = envelope.parse(request.body, limits.items)
        asked, findings = parsed.envelope, parsed.findings
        now = self._clock()
        checks.not_yet(asked, findings)
        checks.one_form(asked, findings)
        version = checks.model(asked, self._catalog, findings)
        if asked.metadata is not None:
            checks.metadata(asked.metadata, findings)
        start = checks.start(asked.not_before, now, findings)
        times = asked.timeouts or _NO_TIMEOUTS
        queue = checks.seconds(times.queue_seconds, "/timeouts/queue_seconds", findings)
        run = checks.seconds(times.run_seconds, "/timeouts/run_seconds", findings)
        total = checks.seconds(times.total_seconds, "/timeouts/total_seconds", findings)
        kept = checks.seconds(asked.results_expire_after_seconds, "/results_expire_after_seconds", findings)
        attempts = checks.attempts(asked, version.spec.max_attempts if version else 1, findings)
        items = _items(parsed)
        shared = self._shared(asked, items, version, findings)
        single = parsed.items is None
        inputs = self._inputs.decode(version, items, asked.input if single else asked.items, single, findings)
        if findings:
            raise problems.invalid(findings, len(items) or None)
        assert version is not None
        if inputs is None:
            raise Problem("unavailable", f"Model {asked.model} has not been loaded yet; nothing was written.")
        job_id = new_id("job")
        chunks, large = _chunks(inputs, shared, version.spec.batch.max_size, limits.inline_bytes, start)
        counted_from = start or now
        queue = queue or self._settings.queue_timeout
        total = total or self._settings.total_timeout
        job = NewJob(
            id=job_id,
            tenant=request.tenant,
            model=version.spec.name,
            version=version.spec.version,
            priority=asked.priority or Priority.NORMAL,
            single=single,
            chunks=chunks,
            created_at=now,
            run_timeout=run or version.spec.run_timeout,
            max_attempts=attempts,
            input_bytes=sum([len(item.input) for item in items]),
            not_before=start,
            queue_deadline_at=None if queue is None else counted_from + queue,
            deadline_at=None if total is None else counted_from + total,
            results_kept=kept or self._settings.results_kept,
            metadata=asked.metadata or {},
            idempotency_key=request.idempotency_key,
            fingerprint=None if request.idempotency_key is None else fingerprint.of(request.body),
            traceparent=request.traceparent,
        )
        return Draft(job, large)

    def _shared(
        self, asked: Envelope, items: Sequence[Item], version: ModelVersion | None, findings: list[Finding]
    ) -> payloads.Settings:
        limit = self._settings.limits.parameters_bytes
        if version is not None:
            checks.outputs(asked, version.spec, findings)
        own: list[msgspec.Raw | None] | None = None
        if any(len(item.parameters) for item in items):
            own = [
                checks.parameters(item.parameters, f"/items/{index}/parameters", limit, findings, index)
                for index, item in enumerate(items)
            ]
        return payloads.Settings(
            parameters=checks.parameters(asked.parameters, "/parameters", limit, findings),
            item_parameters=own,
            ids=checks.ids(items, findings),
            outputs=None if asked.outputs is None else tuple(asked.outputs),
        )


_NO_TIMEOUTS = Timeouts()


def _items(parsed: Parsed) -> Sequence[Item]:
    """The items of either form (the `input` form has one); empty where there are none that could be read."""
    if parsed.items is not None:
        if not parsed.items:
            parsed.findings.append(Finding("/items", "empty", "Give at least one item."))
        return parsed.items
    return [Item(input=parsed.envelope.input)] if len(parsed.envelope.input) else []


def _chunks(
    inputs: payloads.Inputs, shared: payloads.Settings, max_size: int, max_bytes: int, not_before: datetime | None
) -> tuple[tuple[NewChunk, ...], tuple[int, ...]]:
    chunks: list[NewChunk] = []
    large: list[int] = []
    for seq, piece in enumerate(payloads.cut(inputs, shared, max_size, max_bytes)):
        ids = None
        if piece.stop - piece.start == 1 and len(piece.frame) > max_bytes:
            large.append(seq)
            ids = None if shared.ids is None else shared.ids[piece.start : piece.stop]
        items = ((piece.start, piece.stop),)
        chunks.append(NewChunk(seq, items, piece.frame, not_before=not_before, ids=ids))
    return tuple(chunks), tuple(large)
