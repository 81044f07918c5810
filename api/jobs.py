"""The two hot routes, submit and read, as functions of plain values: the thin path and the routes call the same."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from api import auth, body, fingerprint, problems
from api.commits import Commits
from api.problems import Problem
from api.query import parse
from api.reader import Answer, Reader
from api.replies import JSON, Header, Reply
from api.services import Services
from api.submission import Builder, Draft, Request
from api.views import path_of, render_job
from api.waiters import MAX_SECONDS, Waiter, Waiters
from jobs.errors import BatchyardError
from jobs.records import ApiKey, BlobRef, NewChunk, Submitted

ON_LOOP_BYTES = 64 * 1024
"""Bodies up to this are parsed on the event loop; larger ones in the decoding pool."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?=$|[,;\s])", re.IGNORECASE)
_UTF8 = (b"utf-8", b"utf8")

Headers = dict[bytes, bytes]
T = TypeVar("T")


@dataclass(slots=True)
class _Twins:
    """Requests under way with one Idempotency-Key."""

    count: int = 0
    first: str | None = None  # the job that one of them made


class Jobs:
    """Lives on one event loop."""

    def __init__(
        self, services: Services, reader: Reader, waiters: Waiters, commits: Commits, decoders: Executor
    ) -> None:
        self._services = services
        self._reader = reader
        self._waiters = waiters
        self._commits = commits
        self._decoders = decoders
        self._builder = Builder(services.catalog, services.settings, services.clock)
        self._twins: dict[tuple[str, str], _Twins] = {}
        self._limit = services.settings.limits.request_bytes

    async def submit(self, key: ApiKey, headers: Headers, receive: body.Receive, query: bytes = b"") -> Reply:
        """POST /v1/jobs. 202 means committed."""
        auth.require(key, "jobs:write")
        parse(query)  # settings go in the body
        _check_media_type(headers)
        request = Request(
            tenant=key.tenant,
            body=await body.read(receive, headers.get(b"content-length"), self._limit),
            idempotency_key=_idempotency_key(headers),
            traceparent=_traceparent(headers),
        )
        if len(request.body) > ON_LOOP_BYTES:
            draft = await self._in_pool(lambda: self._put(self._builder.build(request)))
        else:
            draft = self._builder.build(request)
        seconds = _preferred(headers)
        if not seconds or self._waiters.closed:
            submitted = await self._write(draft)
            answer = await self._reader.get(submitted.job.id) if submitted.replayed else None
            return _created(submitted, answer, None)
        return await self._submit_and_wait(draft, seconds)

    async def _submit_and_wait(self, draft: Draft, seconds: float) -> Reply:
        """Registers before the job is written, so that no end can be missed."""
        waiter = self._waiters.register(draft.job.id)
        try:
            if draft.job.idempotency_key is None:
                submitted, answer = await self._commit(draft, waiter, seconds)
                return _created(submitted, answer, seconds)
            submitted = await self._write(draft)
            if submitted.job.id != draft.job.id:
                self._waiters.release(waiter)
                answer = await self._answer(submitted.job.id, seconds)
            else:
                answer = await self._waiters.wait(waiter, seconds)
            return _created(submitted, answer, seconds)
        finally:
            self._waiters.release(waiter)

    async def _write(self, draft: Draft) -> Submitted:
        """Through the ledger's writer. A twin that was under way when the first of them was answered is told the same
        as the first; whoever comes later is told that it is a replay."""
        job = draft.job
        if job.idempotency_key is None:
            return (await self._commit(draft))[0]
        name = (job.tenant, job.idempotency_key)
        twins = self._twins.setdefault(name, _Twins())
        twins.count += 1
        try:
            submitted, _ = await self._commit(draft)
            if not submitted.replayed:
                twins.first = submitted.job.id
                self._twins.pop(name, None)
            elif twins.first == submitted.job.id:
                return replace(submitted, replayed=False)
            return submitted
        finally:
            twins.count -= 1
            if not twins.count and self._twins.get(name) is twins:
                del self._twins[name]

    async def _commit(
        self, draft: Draft, waiter: Waiter | None = None, seconds: float = 0.0
    ) -> tuple[Submitted, Answer | None]:
        """With a waiter: its answer too. Such a client is woken once, at the end, unless the job was not written."""
        publisher = self._services.publisher
        job = publisher.admit(draft.job)
        expected = self._commits.expect(job.id, None if waiter is None else waiter.future)
        answer = None
        try:
            self._services.ledger.submit(job, self._commits)
            if waiter is not None:
                answer = await self._waiters.wait(waiter, seconds)
            outcome = await self._commits.outcome(job.id, expected)
        except BaseException as error:
            self._commits.forget(job.id)
            if isinstance(error, BatchyardError):
                publisher.withdraw(job)
                await self._discard(draft)
            raise
        if isinstance(outcome, Submitted) and not outcome.replayed:
            return outcome, answer
        publisher.withdraw(job)
        await self._discard(draft)
        if isinstance(outcome, Submitted):
            return outcome, None
        try:
            raise outcome
        finally:
            del outcome, expected  # else the error holds this frame, and with it the whole request

    def _put(self, draft: Draft) -> Draft:
        """On a pool thread: payloads above the limit go into blobs, before the row that names them is written."""
        if not draft.large:
            return draft
        chunks: list[NewChunk] = list(draft.job.chunks)
        for position in draft.large:
            payload = chunks[position].payload
            assert isinstance(payload, bytes)
            ref = self._services.blobs.put(f"payloads/{draft.job.id}/{position}", payload)
            chunks[position] = replace(chunks[position], payload=ref)
        self._services.settings.crash.passing("blob_row")
        return replace(draft, job=replace(draft.job, chunks=tuple(chunks)))

    async def _discard(self, draft: Draft) -> None:
        """The job was not written: neither shall its blobs stay."""
        keys = [chunk.payload.key for chunk in draft.job.chunks if isinstance(chunk.payload, BlobRef)]
        for key in keys:
            await self._in_pool(partial(self._services.blobs.delete, key))

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._decoders, work)

    async def get(self, key: ApiKey, job_id: str, query: bytes) -> Reply:
        """GET /v1/jobs/{id}, with `?wait=` until it has ended or time is up."""
        auth.require(key, "jobs:read")
        seconds = _asked_wait(query)
        answer = await self._answer(job_id, seconds, key.tenant)
        if answer is None or answer.job.tenant != key.tenant:
            raise Problem("not_found", f"There is no job {job_id[:80]}.")
        return Reply(200, answer.body)

    async def _answer(self, job_id: str, seconds: float, tenant: str | None = None) -> Answer | None:
        """The job as it is when it has ended or `seconds` are up; another tenant's is not waited for."""
        if not seconds or self._waiters.closed:
            return await self._reader.get(job_id)
        waiter = self._waiters.register(job_id)
        try:
            answer = await self._reader.get(job_id)
            if answer is None or answer.job.final or (tenant is not None and answer.job.tenant != tenant):
                return answer
            return await self._waiters.wait(waiter, seconds) or await self._reader.get(job_id)
        finally:
            self._waiters.release(waiter)


def _created(submitted: Submitted, answer: Answer | None, waited: float | None) -> Reply:
    job = submitted.job
    ended = answer is not None and answer.job.final
    headers: list[Header] = [JSON, (b"location", path_of(job.id).encode())]
    if submitted.replayed:
        headers.append((b"idempotent-replayed", b"true"))
    if waited is not None:
        headers.append((b"preference-applied", f"wait={waited:.0f}".encode()))
    if not ended and not submitted.replayed and waited is not None:
        headers.append((b"retry-after", b"1"))
    content = answer.body if answer is not None and answer.body else render_job(job)
    return Reply(200 if ended or submitted.replayed else 202, content, headers)


def _check_media_type(headers: Headers) -> None:
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        raise Problem("unsupported_media_type", "Send the body without content encoding.")
    given = headers.get(b"content-type")
    if given is None or given == b"application/json":
        return
    media_type, _, parameters = given.lower().partition(b";")
    if media_type.strip() != b"application/json":
        raise Problem("unsupported_media_type", f"Expected application/json, got {media_type.decode('latin-1')[:80]}.")
    name, _, value = parameters.strip().partition(b"=")
    if name.strip() == b"charset" and value.strip().strip(b'"') not in _UTF8:
        raise Problem("unsupported_media_type", "The body must be UTF-8.")


def _idempotency_key(headers: Headers) -> str | None:
    header = headers.get(b"idempotency-key")
    if header is None:
        return None
    try:
        return fingerprint.key(header)
    except ValueError as error:
        raise problems.one("/headers/idempotency-key", "header", f"{str(error)[0].upper()}{str(error)[1:]}.") from None


def _traceparent(headers: Headers) -> str | None:
    header = headers.get(b"traceparent")
    return header.decode() if header is not None and _TRACEPARENT.fullmatch(header) else None


def _preferred(headers: Headers) -> float:
    """Seconds of `Prefer: wait=N`, 60 at most; a preference that is not understood is none."""
    header = headers.get(b"prefer")
    if header is None:
        return 0.0
    match = _WAIT.search(header)
    return min(float(match[1]), MAX_SECONDS) if match else 0.0


def _asked_wait(query: bytes) -> float:
    """Seconds of `?wait=`, 60 at most; Problem for anything else in the query."""
    value = parse(query, "wait").get("wait")
    if value is None:
        return 0.0
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", value, re.ASCII):
        raise problems.one("/query/wait", "type", "wait is a number of seconds, at most 60.")
    return min(float(value), MAX_SECONDS)
