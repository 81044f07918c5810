"""FastAPI behind the thin path: the routes, their errors as problem+json, and the OpenAPI document."""

from collections.abc import MutableMapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from api import examples, problems, replies
from api.front import Front
from api.problems import Problem
from api.routes import errors, health, jobs, models, results
from jobs.errors import BatchyardError, Finding

_ROUTERS = (jobs.router, results.router, models.router, health.router, errors.router)
_STATUSES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}
_ABOUT = """Post a job, have its id back at once, read the result when it is there. Everything needs
`Authorization: Bearer bysk_…` but health, this document and the error pages. Errors are `application/problem+json` and
name everything that is wrong at once."""


def build(front: Front) -> FastAPI:
    app = FastAPI(
        title="Batchyard",
        version=_version(),
        description=_ABOUT,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    app.state.front = front
    for router in _ROUTERS:
        # One flat table: what answers where can be read off it (OPTIONS, 405, the test of open routes).
        app.router.routes.extend(router.routes)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(BatchyardError, _on_known_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_status)
    app.add_exception_handler(Exception, _on_unknown)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def methods_of(app: FastAPI, scope: MutableMapping[str, Any]) -> set[str]:
    """The methods that the address of a request has."""
    methods: set[str] = set()
    for route in app.router.routes:
        if isinstance(route, Route) and route.matches(dict(scope))[0] is not Match.NONE:
            methods |= route.methods or set()
    if "GET" in methods:
        methods.add("HEAD")
    return methods | {"OPTIONS"} if methods else methods


def _version() -> str:
    try:
        return version("batchyard")
    except PackageNotFoundError:
        return "0"


def _answer(request: Request, problem: Problem) -> Response:
    request_id = request.scope.get("batchyard.request_id", "")
    return replies.of_problem(problem, request.url.path, request_id).response()


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _answer(request, error)


async def _on_known_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BatchyardError)
    problem = problems.of_error(error)
    if problem.code == "internal_error":
        raise error  # answered and logged as every unknown error is
    return _answer(request, problem)


async def _on_unknown(request: Request, error: Exception) -> Response:
    """Answers; the error itself goes on to the edge, which logs it."""
    return _answer(request, Problem("internal_error", "The request could not be completed."))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    findings = [
        Finding("/" + "/".join(str(step) for step in found["loc"]), found["type"], f"{found['msg']}.")
        for found in error.errors()
    ]
    return _answer(request, problems.invalid(findings))


async def _on_status(request: Request, error: Exception) -> Response:
    """What the routing itself refuses."""
    assert isinstance(error, HTTPException)
    code = _STATUSES.get(error.status_code, "invalid_input" if error.status_code < 500 else "internal_error")
    if code == "method_not_allowed":
        allowed = ", ".join(sorted(methods_of(request.app, request.scope)))
        detail = f"{request.method} is not allowed here; {allowed} are."
        return _answer(request, Problem(code, detail, headers=(("allow", allowed),)))
    detail = "There is nothing at this address." if code == "not_found" else str(error.detail)
    return _answer(request, Problem(code, detail))


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.router.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(examples.SCHEMAS)
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path == "/v1/jobs" and "requestBody" in operation:
                    operation["responses"]["422"] = _problem("idempotency_mismatch")
                if operation.get("security"):
                    operation["responses"]["401"] = _problem("unauthenticated")
                    operation["responses"]["403"] = _problem("forbidden")
        app.openapi_schema = document
    return app.openapi_schema


def _problem(code: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": problems.TYPES[code].title, "content": {problems.MEDIA_TYPE: {"schema": schema}}}
