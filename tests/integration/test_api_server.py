"""The listeners: real sockets, their limits, and how they end."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest

from api import server
from jobs.settings import Settings
from tests.integration.api_kit import ADMIN_KEY, AUTH, KEY, Kit, until

ECHO = {"model": "echo", "input": 1}


@dataclass
class Running:
    port: int
    admin_port: int
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def serving(kit: Kit) -> AsyncIterator[Running]:
    stop = asyncio.Event()
    ready: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    settings = Settings(port=0, admin_port=0)
    task = asyncio.create_task(server.serve(kit.app, kit.admin, settings, lambda *ports: ready.set_result(ports), stop))
    port, admin_port = await ready
    try:
        yield Running(port, admin_port, stop, task)
    finally:
        stop.set()
        async with asyncio.timeout(15):
            await task


async def talk(port: int, *pieces: bytes) -> bytes:
    """Raw bytes in, everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read(65536)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_serves_both_and_ends_when_told(kit: Kit) -> None:
    async def main() -> None:
        async with serving(kit) as running, httpx.AsyncClient(headers=AUTH) as client:
            made = await client.post(f"{running.url}/v1/jobs", json=ECHO)
            assert made.status_code == 202
            kit.work()
            got = await client.get(f"{running.url}{made.headers['location']}?wait=5")
            assert got.json()["output"] == 1
            head = await client.head(f"{running.url}{made.headers['location']}")
            assert (head.status_code, head.content) == (200, b"")
            assert int(head.headers["content-length"]) == len(got.content)
            assert "server" not in head.headers
            admin = f"http://127.0.0.1:{running.admin_port}/admin/v1/workers"
            key = {"authorization": f"Bearer {ADMIN_KEY}"}
            assert (await client.get(admin, headers=key)).status_code == 200
            big = await client.post(
                f"{running.url}/v1/jobs",
                content=b" " * (17 * 1024 * 1024),
                headers={"content-type": "application/json"},
            )
            assert big.status_code == 413
            assert (await client.get(f"{running.url}/health/live")).status_code == 200
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", running.port)

    asyncio.run(main())


def test_ending_answers_those_who_wait(kit: Kit) -> None:
    async def main() -> None:
        async with serving(kit) as running, httpx.AsyncClient(headers=AUTH, timeout=30) as client:
            made = await client.post(f"{running.url}/v1/jobs", json=ECHO)
            path = f"{running.url}{made.headers['location']}"
            wait = {"prefer": "wait=60"}
            asking = [
                asyncio.create_task(client.get(f"{path}?wait=60")),
                asyncio.create_task(client.post(f"{running.url}/v1/jobs", json=ECHO, headers=wait)),
                asyncio.create_task(client.get(f"{path}/events")),
            ]
            await until(lambda: len(kit.app.front.waiters) == 3)
            running.stop.set()
            answers = await asyncio.gather(*asking)
            assert [answer.status_code for answer in answers] == [200, 202, 200]
            async with asyncio.timeout(5):
                await running.task

    asyncio.run(main())


def test_s6_a_flood_of_headers_is_refused(kit: Kit) -> None:
    async def main() -> None:
        async with serving(kit) as running:
            start = b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
            many = b"".join(b"x-%d: y\r\n" % at for at in range(5000))
            for pieces in (
                (start, many, b"\r\n"),
                (start, b"x: " + b"y" * 70_000, b"y" * 70_000, b"\r\n\r\n"),
                (start, *[b"x-a: " + b"y" * 1000 + b"\r\n" for _ in range(99)], b"\r\n"),
                (b"GET /" + b"x" * 100_000, b"x" * 100_000, b" HTTP/1.1\r\n\r\n"),
            ):
                answer = await talk(running.port, *pieces)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 431"), answer[:100]
            assert (await talk(running.port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
            fine = start + b"connection: close\r\n" + b"".join(b"x-%d: y\r\n" % at for at in range(50)) + b"\r\n"
            assert (await talk(running.port, fine)).startswith(b"HTTP/1.1 200")

    asyncio.run(main())


def test_s6_trailers_are_left_out(kit: Kit) -> None:
    async def main() -> None:
        async with serving(kit) as running:
            head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
            head += b"authorization: Bearer " + KEY.encode() + b"\r\ncontent-type: application/json\r\n\r\n"
            trailers = b"".join(b"x-%d: y\r\n" % at for at in range(5000))
            body = b'{"model":"nothing","input":1}'
            answer = await talk(running.port, head, b"%x\r\n%b\r\n0\r\n" % (len(body), body), trailers, b"\r\n")
            assert answer.startswith(b"HTTP/1.1 400")
            assert b"There is no model" in answer

    asyncio.run(main())


def test_large_bodies_on_a_kept_connection_do_not_count_as_heads(kit: Kit) -> None:
    async def main() -> None:
        async with serving(kit) as running, httpx.AsyncClient(headers=AUTH) as client:
            for _ in range(3):
                body = json.dumps({"model": "echo", "input": "x" * 400_000}).encode()
                made = await client.post(
                    f"{running.url}/v1/jobs", content=body, headers={"content-type": "application/json"}
                )
                assert made.status_code == 202

    asyncio.run(main())


def test_a_connection_that_asks_nothing_is_closed(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_SECONDS", 0.1)

    async def main() -> None:
        async with serving(kit) as running:
            assert await talk(running.port, b"GET /health/live HT") == b""

    asyncio.run(main())


def test_a_taken_port_is_an_error_at_once(kit: Kit) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = replace(Settings(), port=0, admin_port=taken.getsockname()[1])
            with pytest.raises(OSError, match="in use"):
                await server.serve(kit.app, kit.admin, settings, lambda *ports: None, asyncio.Event())

    asyncio.run(main())
