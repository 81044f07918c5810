"""What comes out of a job: result lines, events, and the blobs that links lead to."""

from collections.abc import AsyncIterator, Iterator

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from api import examples, problems
from api.front import Front
from api.problems import Problem
from api.replies import JSON, JSON_LINES, Reply
from api.replies import Header as WireHeader
from api.results import LINE_STATES, Span
from api.routes.common import FrontOf, ReadingCaller, only, problem_responses
from jobs.records import Job

router = APIRouter(tags=["results"])

PARQUET = "application/vnd.apache.parquet"
MAX_INDEX = 10**12
BLOB_PIECE = 1024 * 1024


@router.get(
    "/v1/jobs/{job_id}/results",
    summary="Read results, in item order",
    responses={200: examples.RESULTS_RESPONSE, **problem_responses("not_found", "gone", "invalid_input")},
)
async def read(
    request: Request,
    job_id: str,
    key: ReadingCaller,
    front: FrontOf,
    from_index: int = Query(0, ge=0, le=MAX_INDEX),
    limit: int | None = Query(None, ge=1, le=MAX_INDEX),
    state: str | None = Query(None, description=", ".join(LINE_STATES)),
) -> Response:
    """JSON Lines (a job of a single `input`: its one line as JSON). While the job runs: up to the first item that is
    not decided; `Batchyard-Complete` is then false and `Batchyard-Next-Index` the `from_index` to go on with."""
    for name in ("order", "include", "after"):
        if name in request.query_params:
            raise problems.one(f"/query/{name}", "not_available", f"{name} is not available yet.")
    if PARQUET in request.headers.get("accept", ""):
        raise problems.one("/headers/accept", "not_available", "Results as Parquet are not available yet.")
    only(request, "from_index", "limit", "state")
    if state is not None and state not in LINE_STATES:
        raise problems.one("/query/state", "value", f"Expected one of {', '.join(LINE_STATES)}.")
    job, span, pages, first = await front.read(_begin, front, key.tenant, job_id, from_index, limit, state)
    headers: list[WireHeader] = [
        (b"batchyard-complete", b"true" if span.complete else b"false"),
        (b"batchyard-next-index", str(span.stop).encode()),
    ]
    if job.single and first and state is None:
        return Reply(200, first, [JSON, *headers]).response()
    if first is None or span.stop - span.start <= _items_of(first):
        return Reply(200, first or b"", [JSON_LINES, *headers]).response()
    response = StreamingResponse(_stream(front, first, pages))
    response.raw_headers = [JSON_LINES, *headers]
    return response


def _items_of(page: bytes) -> int:
    return page.count(b"\n")


def _begin(
    front: Front, tenant: str, job_id: str, start: int, limit: int | None, state: str | None
) -> tuple[Job, Span, Iterator[bytes], bytes | None]:
    """On a reading thread: the job, what the reply holds, and its first page."""
    results = front.results
    job = results.job(tenant, job_id)
    span = results.span(job, start, limit, state)
    pages = results.pages(job, span)
    return job, span, pages, next(pages, None)


async def _stream(front: Front, first: bytes, pages: Iterator[bytes]) -> AsyncIterator[bytes]:
    page: bytes | None = first
    while page is not None:
        if page:
            yield page
        page = await front.read(next, pages, None)


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job (server-sent events)",
    responses={200: examples.EVENTS_RESPONSE, **problem_responses("not_found", "unavailable")},
)
async def events(
    request: Request,
    job_id: str,
    key: ReadingCaller,
    front: FrontOf,
    last_event_id: str | None = Header(None),
) -> Response:
    """`progress` at most once a second, `state` with the job at its end, after which the stream ends. A client that
    comes back with the `Last-Event-ID` of that last event is told that there is nothing more (204)."""
    only(request)
    answer = await front.reader.get(job_id)
    if answer is None or answer.job.tenant != key.tenant:
        raise Problem("not_found", f"There is no job {job_id[:80]}.")
    if answer.job.final and last_event_id == "final":
        return Response(status_code=204)
    front.events.check_room()
    response = StreamingResponse(front.events.stream(answer, last_event_id), media_type="text/event-stream")
    response.headers["cache-control"] = "no-store"
    response.headers["x-accel-buffering"] = "no"
    return response


@router.get(
    "/v1/blobs/{token}",
    summary="Read what a signed link leads to",
    responses={
        200: {"description": "The bytes", "content": {"application/octet-stream": {}}},
        **problem_responses("not_found", "gone"),
    },
)
async def blob(request: Request, token: str, front: FrontOf) -> Response:
    """No key needed: the link itself is the permission, until it expires."""
    only(request)
    blobs = front.services.blobs
    key = blobs.verify(token)
    first = await front.read(blobs.get, key, 0, BLOB_PIECE)
    headers = {"cache-control": "private, no-store", "x-content-type-options": "nosniff"}
    if len(first) < BLOB_PIECE:
        return Response(first, media_type="application/octet-stream", headers=headers)
    return StreamingResponse(_pieces(front, key, first), media_type="application/octet-stream", headers=headers)


async def _pieces(front: Front, key: str, first: bytes) -> AsyncIterator[bytes]:
    piece, at = first, 0
    while piece:
        yield piece
        at += len(piece)
        piece = await front.read(front.services.blobs.get, key, at, at + BLOB_PIECE)
