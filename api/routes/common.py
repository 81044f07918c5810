"""What the routes share: the front behind them, the key of the caller, and queries that hold nothing unknown."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from api import auth, problems
from api.front import Front
from api.query import parse
from jobs.records import ApiKey

_bearer = HTTPBearer(auto_error=False, bearerFormat="bysk_…", description="An API key of the tenant.")


def _front(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


def _key(request: Request, _bearer: Annotated[object, Security(_bearer)]) -> ApiKey:
    """The key that was checked before any route was looked for."""
    key: ApiKey = request.scope["batchyard.key"]
    return key


FrontOf = Annotated[Front, Depends(_front)]
Caller = Annotated[ApiKey, Depends(_key)]


def _scoped(scope: str) -> Callable[[ApiKey], ApiKey]:
    def check(key: Caller) -> ApiKey:
        auth.require(key, scope)
        return key

    return check


ReadingCaller = Annotated[ApiKey, Depends(_scoped("jobs:read"))]
WritingCaller = Annotated[ApiKey, Depends(_scoped("jobs:write"))]


def only(request: Request, *known: str, prefix: str | None = None) -> None:
    """Problem for query parameters that the route does not know, or that stand twice."""
    parse(request.scope["query_string"], *known, prefix=prefix)


def problem_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: what a route may refuse with."""
    schema = {"$ref": "#/components/schemas/Problem"}
    described: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        kind = problems.TYPES[code]
        described[kind.status] = {
            "description": kind.title,
            "content": {problems.MEDIA_TYPE: {"schema": schema}},
        }
    return described
