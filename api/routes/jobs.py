"""/v1/jobs: submit, read, list, cancel."""

from datetime import datetime

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api import examples, problems, timestamps
from api.front import Front
from api.problems import Problem
from api.replies import Reply
from api.routes.common import Caller, FrontOf, ReadingCaller, WritingCaller, only, problem_responses
from api.views import path_of, render_job, render_page
from jobs.errors import Refused
from jobs.states import JobState
from jobs.store import JobFilter

router = APIRouter(tags=["jobs"])

MAX_PAGE = 200


@router.post(
    "/v1/jobs",
    status_code=202,
    summary="Submit a job",
    openapi_extra=examples.SUBMIT,
    responses={
        202: examples.JOB_RESPONSE,
        200: {**examples.JOB_RESPONSE, "description": "The finished job (`Prefer: wait=N`), or a replay"},
        **problem_responses(
            "invalid_input", "too_large", "unsupported_media_type", "idempotency_mismatch", "unavailable"
        ),
    },
)
async def submit(request: Request, key: Caller, front: FrontOf) -> Response:
    """One item as `input`, or 1 to 1,000 as `items`. 202 means that the job is written down and will be done.

    `Idempotency-Key` makes a retry safe: a replay answers 200 with the first job. `Prefer: wait=N` answers 200 with the
    finished job if it ends within N seconds (60 at most)."""
    reply = await front.jobs.submit(key, dict(request.scope["headers"]), request.receive, request.scope["query_string"])
    return reply.response()


@router.get(
    "/v1/jobs/{job_id}",
    summary="Read a job",
    responses={200: examples.JOB_RESPONSE, **problem_responses("not_found", "invalid_input")},
    openapi_extra={"parameters": [examples.WAIT]},
)
async def read(request: Request, job_id: str, key: Caller, front: FrontOf) -> Response:
    """The job as it is; with `?wait=N` once it has ended, or after N seconds. `state` tells."""
    reply = await front.jobs.get(key, job_id, request.scope["query_string"])
    return reply.response()


@router.get(
    "/v1/jobs",
    summary="List jobs, newest first",
    responses={200: examples.PAGE_RESPONSE, **problem_responses("invalid_input")},
    openapi_extra={"parameters": [examples.METADATA_FILTER]},
)
async def list_jobs(
    request: Request,
    key: ReadingCaller,
    front: FrontOf,
    state: JobState | None = None,
    model: str | None = None,
    created_after: str | None = None,
    limit: int = Query(50, ge=1, le=MAX_PAGE),
    after: str | None = None,
) -> Response:
    """`after` is the `next` of the page before. `metadata.KEY=VALUE` keeps jobs that carry this pair."""
    only(request, "state", "model", "created_after", "limit", "after", prefix="metadata.")
    metadata = {
        name.removeprefix("metadata."): value
        for name, value in request.query_params.items()
        if name.startswith("metadata.")
    }
    where = JobFilter(state, model, _instant(created_after), metadata)
    return Reply(200, await front.read(_page, front, key.tenant, where, after, limit)).response()


def _page(front: Front, tenant: str, where: JobFilter, after: str | None, limit: int) -> bytes:
    """On a reading thread: one query for the jobs, one for what those of a single item ended with."""
    try:
        page = front.services.store.list_jobs(tenant, where, after, limit)
    except Refused as error:
        raise problems.one("/query/after", "cursor", str(error)) from None
    answers = front.reader.render(page.jobs)
    return render_page([answers[job.id].body for job in page.jobs], page.next)


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        # In a query a plus that was not escaped arrives as a blank.
        return timestamps.read(text[:11] + text[11:].replace(" ", "+"))
    except ValueError as error:
        raise problems.one("/query/created_after", "time", f"created_after: {error}.") from None


@router.post(
    "/v1/jobs/{job_id}/cancel",
    status_code=202,
    summary="Cancel a job",
    responses={202: examples.JOB_RESPONSE, **problem_responses("not_found", "conflict")},
)
async def cancel(request: Request, job_id: str, key: WritingCaller, front: FrontOf) -> Response:
    """Items that are done keep their results, queued ones end at once, running ones within seconds."""
    only(request)
    job, changed = await front.cancel(key.tenant, job_id)
    if not changed and job.final:
        raise Problem("conflict", f"Job {job.id} has ended already: it is {job.state}.")
    reply = Reply(202, render_job(job))
    reply.headers = [*reply.headers, (b"location", path_of(job.id).encode())]
    return reply.response()
