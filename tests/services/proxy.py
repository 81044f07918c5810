"""A TCP proxy with faults, to stand between the product and a service. Its verbs are those of toxiproxy."""

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PIECE = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


@dataclass
class Faults:
    """What happens to every byte and connection from now on; changed while it runs."""

    down: bool = False  # nothing listens, open connections are cut
    latency: float = 0.0  # seconds before each piece is passed on, either way
    bandwidth: int | None = None  # bytes a second, either way
    black_hole: bool = False  # connections are taken, and nothing passes
    slow_close: float = 0.0  # seconds from the end of one side until the other hears of it
    reset_after: float | None = None  # seconds from the connection until both sides get a reset
    slice: int | None = None  # pieces of at most so many bytes
    limit: int | None = None  # bytes after which a connection ends, either way


class Proxy:
    """``with Proxy(host, port) as proxy``: connect to ``proxy.port``, change ``proxy.faults``, or `cut` what is open.
    Runs on a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.faults = Faults()
        self.port = 0
        self.connections = 0  # so far
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy to {port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def down(self) -> None:
        """As if the service had ended: refused from now on, and cut where it was connected."""
        self.faults.down = True
        self._do(self._close())

    def up(self) -> None:
        self.faults = Faults()
        self._do(self._listen())

    def cut(self) -> None:
        """Resets every open connection; new ones are welcome."""
        self._do(self._reset_all())

    def _do(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)  # type: ignore[arg-type]

    # -- on the loop

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self._reset_all()

    async def _reset_all(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there: asyncio.StreamWriter | None = None
        self._open.add(writer)
        try:
            back, there = await asyncio.open_connection(*self._target)
            self._open.add(there)
            if self.faults.reset_after is not None:
                self._loop.call_later(self.faults.reset_after, _reset, writer)
                self._loop.call_later(self.faults.reset_after, _reset, there)
            await asyncio.gather(self._pass(reader, there), self._pass(back, writer))
        except OSError:
            _reset(writer)
        finally:
            for end in (writer, there):
                if end is not None:
                    self._open.discard(end)
                    end.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(self.faults.slice or PIECE):
                while self.faults.black_hole:
                    await asyncio.sleep(0.02)
                faults = self.faults
                if faults.latency:
                    await asyncio.sleep(faults.latency)
                if faults.bandwidth:
                    await asyncio.sleep(len(piece) / faults.bandwidth)
                if faults.limit is not None and passed + len(piece) > faults.limit:
                    target.write(piece[: faults.limit - passed])
                    break
                target.write(piece)
                passed += len(piece)
                await target.drain()
            await asyncio.sleep(self.faults.slow_close)
        with contextlib.suppress(OSError):
            target.write_eof()  # the other way may go on


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    if end is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
