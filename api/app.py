"""The API as one ASGI application: a thin path for the two hot routes, FastAPI behind it for everything else.

Authentication happens here, before any route is looked for: a path that is not named open needs a key, whatever serves
it. So does every answer's request id, and the last resort for an error that nobody else knew.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

from fastapi import FastAPI

from api import auth, problems, replies
from api.body import Disconnected, Receive
from api.front import Front
from api.openapi import build, methods_of
from api.problems import Problem
from api.replies import Reply, Scope, Send
from api.services import Services
from jobs.errors import BatchyardError
from jobs.ids import new_id

log = logging.getLogger("batchyard.api")

SUBMIT_PATH = "/v1/jobs"
JOB_PREFIX = "/v1/jobs/job_"
JOB_PATH_LENGTH = len(JOB_PREFIX) + 26


def create_app(services: Services) -> "App":
    return App(services)


class App:
    """``front`` is what it serves from; it starts with the lifespan, or with the first request where there is none."""

    def __init__(self, services: Services) -> None:
        self.front = Front(services)
        self.routes: FastAPI = build(self.front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    def drain(self) -> None:
        """Lets waiting clients go; the application serves on."""
        self.front.drain()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.front.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.front.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        front = self.front
        front.start()
        request_id = new_id("req")
        path: str = scope["path"]
        method: str = scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sent = _Sent(send, request_id)
        if method == "HEAD" and not path.endswith("/events"):
            # Answered as GET is; the server leaves the body out.
            method = "GET"
            scope = {**scope, "method": method}
        try:
            if not auth.is_open(path):
                authorization = headers.get(b"authorization")
                key = front.auth.cached(authorization) or await front.auth.key(authorization)
                scope["batchyard.key"] = key
                if path == SUBMIT_PATH and method == "POST":
                    reply = await front.jobs.submit(key, headers, receive, scope["query_string"])
                    return await reply.send(scope, send, request_id)
                if method == "GET" and len(path) == JOB_PATH_LENGTH and is_job_path(path):
                    reply = await front.jobs.get(key, path[len(SUBMIT_PATH) + 1 :], scope["query_string"])
                    return await reply.send(scope, send, request_id)
            scope["batchyard.request_id"] = request_id
            if method == "OPTIONS":
                return await _options(self.routes, scope).send(scope, send, request_id)
            scope.pop(replies.ANSWER, None)
            await self.routes(scope, receive, sent)
            return
        except Disconnected:
            return
        except Exception as error:
            problem = problem_of(error, request_id)
        if not sent.started:
            await replies.of_problem(problem, path, request_id).send(scope, send, request_id)


def is_job_path(path: str) -> bool:
    return path.startswith(JOB_PREFIX) and path[len(JOB_PREFIX) :].isalnum()


def problem_of(error: Exception, request_id: str) -> Problem:
    """What a client is told; what it must not see is logged, once, under the request's id."""
    if isinstance(error, Problem):
        # Without its frames, which hold the whole request: the caller keeps this in a frame of its own.
        return error.with_traceback(None)
    if isinstance(error, BatchyardError):
        problem = problems.of_error(error)
        if problem.code == "internal_error":
            log.error("request %s failed", request_id, exc_info=error)
        return problem
    log.error("request %s failed", request_id, exc_info=error)
    return Problem("internal_error", "The request could not be completed.")


class _Sent:
    """Adds the request id on the way out, and knows whether an answer has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._header = (b"x-request-id", request_id.encode())
        self.started = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", ()), self._header]
        await self._send(message)


def _options(routes: FastAPI, scope: Scope) -> Reply:
    methods = methods_of(routes, scope)
    if not methods:
        raise Problem("not_found", "There is nothing at this address.")
    return Reply(204, b"", [(b"allow", ", ".join(sorted(methods)).encode())])
