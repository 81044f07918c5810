"""Reading a request's body, never holding more than the limit of it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from api.problems import Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

READ_SECONDS = 60.0


class Disconnected(Exception):
    """The client went away before its request was whole: nothing to do, nobody to tell."""


def _too_large(limit: int) -> Problem:
    return Problem("too_large", f"The body is above the limit of {limit} bytes ({limit / 1048576:g} MiB).")


async def read(receive: Receive, declared: bytes | None, limit: int) -> bytes:
    """The whole body; Problem (413) as soon as it is known to be longer than `limit`, (408) when it stalls.

    `declared` is the Content-Length header: one above the limit is refused without reading anything.
    """
    if declared is not None and declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit:
            raise _too_large(limit)
        return body
    return await _rest(receive, body, limit)


async def _rest(receive: Receive, first: bytes, limit: int) -> bytes:
    parts = [first]
    size = len(first)
    try:
        async with asyncio.timeout(READ_SECONDS):
            while True:
                if size > limit:
                    raise _too_large(limit)
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Problem("request_timeout", f"The body did not arrive within {READ_SECONDS:g} seconds.") from None
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)
