"""/errors: the page behind every `type` of a problem, saying what to do."""

from html import escape

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.problems import TYPES, ErrorType, Problem
from api.replies import Reply
from api.routes.common import only, problem_responses
from api.views import encode

router = APIRouter(tags=["errors"])

_BY_SLUG = {kind.slug: kind for kind in TYPES.values()}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem">
{body}
</body></html>
"""


@router.get("/errors", summary="List error types", responses={200: {"description": "Every type"}})
async def list_types(request: Request) -> Response:
    only(request)
    if _wants_page(request):
        entries = "".join(f'<li><a href="{k.path}">{escape(k.title)}</a> ({k.status})' for k in TYPES.values())
        return _page("Errors", f"<h1>Errors</h1><ul>{entries}</ul>")
    return Reply(200, encode({"data": [_view(kind) for kind in TYPES.values()]})).response()


@router.get(
    "/errors/{slug}",
    summary="What an error type means",
    responses={200: {"description": "What to do"}, **problem_responses("not_found")},
)
async def read(request: Request, slug: str) -> Response:
    """As a page for a browser, as JSON for everybody else."""
    only(request)
    kind = _BY_SLUG.get(slug)
    if kind is None:
        raise Problem("not_found", f"There is no error type {slug[:80]!r}.")
    if _wants_page(request):
        retry = "Sending the request again can help." if kind.retryable else "Sending it again unchanged cannot help."
        what = escape(kind.what_to_do)
        body = f"<h1>{escape(kind.title)}</h1><p>Status {kind.status}, code <code>{kind.code}</code>. {retry}</p>"
        return _page(kind.title, f"{body}<p>{what}</p><p><a href='/errors'>All errors</a></p>")
    return Reply(200, encode(_view(kind))).response()


def _view(kind: ErrorType) -> dict[str, object]:
    return {
        "type": kind.path,
        "title": kind.title,
        "status": kind.status,
        "code": kind.code,
        "retryable": kind.retryable,
        "what_to_do": kind.what_to_do,
    }


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _page(title: str, body: str) -> Response:
    return Response(_PAGE.format(title=escape(title), body=body), media_type="text/html")
