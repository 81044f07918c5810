"""A lean HTTP/1.1 connection for the load generator: one prepared request out, one answer in, no task or future."""

import asyncio
from collections.abc import Callable
from typing import Any

Answered = Callable[[int, bytes], None]
"""Called with the status (0: the connection broke) and the body."""


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: Any = None
        self._buffer = b""
        self._answered: Answered | None = None
        self._length = -1  # of the body; -1: the head is not complete; -2: chunked
        self._body_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, request: bytes, answered: Answered) -> None:
        """The connection must be idle."""
        self._answered = answered
        if self._transport is None or self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._length == -1 and not self._head():
            return
        if self._length == -2:
            if self._buffer.endswith(b"0\r\n\r\n"):
                self._complete(_unchunked(self._buffer, self._body_at))
        elif len(self._buffer) - self._body_at >= self._length:
            self._complete(self._buffer[self._body_at : self._body_at + self._length])

    def connection_lost(self, exc: Exception | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(0, b"")

    def close(self) -> None:
        self._answered = None
        if self._transport is not None:
            self._transport.close()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._buffer[:end].lower()
        self._body_at = end + 4
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = head.find(b"\r\n", at + 2)
            self._length = int(head[at + 17 : stop if stop >= 0 else end])
        else:
            self._length = -2 if b"\r\ntransfer-encoding: chunked" in head else 0
        return True

    def _complete(self, body: bytes) -> None:
        status = int(self._buffer[9:12])
        answered, self._answered = self._answered, None
        self._buffer, self._length = b"", -1
        if answered is not None:
            answered(status, body)


def _unchunked(buffer: bytes, at: int) -> bytes:
    parts: list[bytes] = []
    while True:
        end = buffer.index(b"\r\n", at)
        size = int(buffer[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(buffer[end + 2 : end + 2 + size])
        at = end + 4 + size


def request(method: str, path: str, key: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """One prepared request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Authorization: Bearer {key}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body
