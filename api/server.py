"""Both listeners on one event loop: uvicorn with uvloop and httptools, its limits set, its signal handling left out."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.replies import ANSWER, Header
from jobs.settings import Settings

log = logging.getLogger("batchyard.api")

HEAD_BYTES = 64 * 1024
HEADERS = 100
NO_BODY_BYTES = HEAD_BYTES + 256 * 1024  # of trailers: as of a head, and what one read from the socket may bring
FIRST_REQUEST_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 75
LET_GO_SECONDS = 10
"""What requests under way get to end, once the waiting ones were let go."""

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: 28\r\n\r\nThe request head is too big."
)


class Drainable(Protocol):
    def drain(self) -> None: ...


class LimitedProtocol(HttpToolsProtocol):
    """Bounds what a client can make the server hold before there is a request: bytes of the head, number of headers,
    and time until the first request."""

    _in_head = 0  # bytes read while the head is not complete; -1 behind it
    _no_body = 0  # bytes read behind the head since there was last some of the body: trailers, chunk extensions
    _too_big = False  # the head that was just completed
    _first: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._first = self.loop.call_later(FIRST_REQUEST_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._got_request()
        super().connection_lost(exc)

    def _got_request(self) -> None:
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def data_received(self, data: bytes) -> None:
        if self._in_head >= 0:
            self._in_head += len(data)
        else:
            self._no_body += len(data)
        super().data_received(data)
        if self._in_head > HEAD_BYTES or self._no_body > NO_BODY_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        self._in_head = max(self._in_head, 0)
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._no_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._no_body = 0
        super().on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head >= 0:  # else a trailer: nobody reads it, and it is to fill no memory
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # Not header by header: what one read from the socket can bring is bounded too.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._too_big = size > HEAD_BYTES or len(self.headers) > HEADERS
        if self._too_big:
            raise ValueError("the request head is too big")  # ends the parsing, and so send_400_response below
        self._in_head = -1
        self._got_request()
        super().on_headers_complete()
        # HEAD has no body: uvicorn leaves it out.
        if self.cycle is not None and self.cycle.scope is self.scope and self.scope["method"] != "HEAD":
            cast(dict[str, Any], self.scope)[ANSWER] = partial(_answer, self.cycle)

    def send_400_response(self, msg: str) -> None:
        if self._too_big or self._in_head > HEAD_BYTES:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()


def _answer(cycle: RequestResponseCycle, status: int, headers: Sequence[Header], body: bytes) -> bool:
    """Sends a whole answer in one write; False where that cannot be done now (nothing is sent then).

    Uvicorn's own way looks each header over with regular expressions, which costs as much as all the rest of sending.
    The headers are ours: names in lower case, content-length among them.
    """
    if cycle.disconnected:
        return True
    if cycle.response_started or cycle.flow.write_paused:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    content = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        content += (name, b": ", value, b"\r\n")
    content.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
    content.append(body)
    cycle.transport.write(b"".join(content))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the process's business: it sets the stop event."""
        yield


def _server(app: Any, host: str, lifespan: str) -> _Server:
    config = uvicorn.Config(
        app,
        host=host,
        loop="none",
        http=LimitedProtocol,
        ws="none",
        lifespan="on" if lifespan == "on" else "off",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LET_GO_SECONDS,
        backlog=2048,
    )
    return _Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything else starts, so that an occupied port is known at once. Port 0: any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"port {port} on {host} cannot be used: {error.strerror}") from error
    listener.setblocking(False)
    return listener


async def serve(
    app: Any,
    admin_app: Any,
    settings: Settings,
    on_ready: Callable[[int, int], None],
    stop_event: asyncio.Event,
) -> None:
    """Serves both applications until `stop_event` is set, then ends what is under way (waiting clients are answered
    at once, others have LET_GO_SECONDS) and returns.

    `on_ready` gets the ports really listened on once both accept connections. The admin listener is on loopback
    whatever `settings.host` says. OSError if a port is taken. To be run on a uvloop loop (`uvloop.run`).
    """
    with contextlib.ExitStack() as opened:
        public = opened.enter_context(contextlib.closing(_listen(settings.host, settings.port)))
        private = opened.enter_context(contextlib.closing(_listen("127.0.0.1", settings.admin_port)))
        servers = [_server(app, settings.host, "on"), _server(admin_app, "127.0.0.1", "on")]
        running = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(servers, (public, private), strict=True)
        ]
        stopping = asyncio.create_task(stop_event.wait())
        try:
            await _started(servers, running)
            on_ready(public.getsockname()[1], private.getsockname()[1])
            await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if hasattr(app, "drain"):
                app.drain()
            for server in servers:
                server.should_exit = True
            ended = await asyncio.gather(*running, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome


async def _started(servers: list[_Server], running: list[asyncio.Task[None]]) -> None:
    while not all(server.started for server in servers):
        for task in running:
            if task.done():
                task.result()
                raise RuntimeError("a listener ended before it had started")
        await asyncio.sleep(0.01)
