"""/health: for whoever restarts the process (live) or sends it work (ready)."""

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.front import check_serving
from api.replies import Reply
from api.routes.common import FrontOf, only, problem_responses
from api.views import encode

router = APIRouter(tags=["health"])


@router.get("/health/live", summary="Is the process alive?", responses={200: {"description": "It answers"}})
async def live(request: Request) -> Response:
    """Answers as long as the event loop does."""
    only(request)
    return Reply(200, encode({"status": "live"})).response()


@router.get(
    "/health/ready",
    summary="Can it take work?",
    responses={200: {"description": "It can"}, **problem_responses("unavailable")},
)
async def ready(request: Request, front: FrontOf) -> Response:
    """503, saying why, while the process is on its way out, its loops make no progress, or no model could be loaded."""
    only(request)
    check_serving(front.services, time.monotonic())
    return Reply(200, encode({"status": "ready"})).response()
