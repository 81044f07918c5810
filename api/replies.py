"""An answer before it meets a web framework: the thin path sends it as it is, the routes wrap it."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from api import problems
from api.problems import Problem

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

ANSWER = "batchyard.answer"
"""Key of a request's scope: our server's way to send a whole answer at once (api/server.py). Others have none."""

JSON = (b"content-type", b"application/json")
JSON_LINES = (b"content-type", b"application/jsonl")


@dataclass(slots=True)
class Reply:
    """``headers`` are in wire form, without content-length and x-request-id."""

    status: int
    body: bytes
    headers: list[Header] = field(default_factory=lambda: [JSON])

    async def send(self, scope: Scope, send: Send, request_id: str) -> None:
        headers = [*self.headers, (b"x-request-id", request_id.encode())]
        if self.status != 204:
            headers.append((b"content-length", b"%d" % len(self.body)))
        answer = scope.pop(ANSWER, None)  # it refers to the request, which refers to the scope
        if answer is None or not answer(self.status, headers, self.body):
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": self.body})

    def response(self) -> Response:
        """For a route; the request id is added on the way out."""
        response = Response(self.body, self.status)
        response.raw_headers = [*self.headers, (b"content-length", str(len(self.body)).encode())]
        return response


def of_problem(problem: Problem, instance: str, request_id: str) -> Reply:
    return Reply(
        problem.type.status, problems.render(problem, instance, request_id), _wire(problems.headers_of(problem))
    )


def _wire(headers: Iterable[tuple[str, str]]) -> list[Header]:
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
