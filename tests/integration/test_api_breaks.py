"""What a refused request must not leave behind, and answers to HEAD on both listeners."""

import asyncio
import contextlib
import gc
from collections.abc import MutableMapping
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.integration.api_kit import ADMIN_KEY, KEY, FullLedger, Kit, run, until
from tests.integration.test_api_server import serving, talk


class Body(bytes):
    """Tells when it is freed. (Bytes cannot be referred to weakly.)"""

    freed = 0

    def __del__(self) -> None:
        Body.freed += 1


def scope_of(*more: tuple[bytes, bytes]) -> dict[str, Any]:
    headers = [(b"authorization", b"Bearer " + KEY.encode()), (b"content-type", b"application/json"), *more]
    return {"type": "http", "method": "POST", "path": "/v1/jobs", "query_string": b"", "headers": headers}


async def post(kit: Kit, body: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, bool]:
    """Posts a body straight to the application; gives the status and whether the body is freed."""
    whole: list[Body] = [Body(body)]
    before = Body.freed
    status: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": whole.pop(), "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        status.append(message.get("status", 0))

    await kit.app(scope_of(*headers), receive, send)
    with contextlib.suppress(AssertionError):
        await until(lambda: Body.freed > before, 2.0)  # the ledger's thread may hold it a moment longer
    return status[0], Body.freed > before


@pytest.mark.parametrize("body", [b'{"model":"echo","input":1,"nonsense":1}', b'{"model":"none","input":1}', b'{"mod'])
def test_the_body_of_a_refused_request_is_freed_without_the_collector(kit: Kit, body: bytes) -> None:
    """`gc.set_threshold` lets thousands of such bodies, of up to 16 MiB each, lie about until it next looks."""

    async def test(_: Any) -> None:
        await post(kit, body)  # the key is known from here on
        gc.collect()
        gc.disable()
        try:
            status, freed = await post(kit, body)
            assert status in (400, 404)
            assert freed, "the problem, its traceback and the frame that holds it refer to each other"
        finally:
            gc.enable()

    run(kit, test)


def test_so_is_that_of_one_that_the_ledger_refused(kit: Kit) -> None:
    async def test(_: Any) -> None:
        await post(kit, b'{"model":"echo","input":1}')
        kit.ledger.submit = FullLedger().submit  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            status, freed = await post(kit, b'{"model":"echo","input":1}')
            assert status == 503
            assert freed
        finally:
            gc.enable()

    run(kit, test)


def test_so_is_that_of_one_that_the_ledger_answered_with_an_error(kit: Kit) -> None:
    """`raise outcome` in `Jobs._commit`: the error refers to the frame whose variable it is."""

    async def test(_: Any) -> None:
        key = (b"idempotency-key", b"once")
        await post(kit, b'{"model":"echo","input":1}', key)
        gc.collect()
        gc.disable()
        try:
            assert await post(kit, b'{"model":"echo","input":2}', key) == (422, True)
        finally:
            gc.enable()

    run(kit, test)


def test_a_request_is_freed_without_the_collector(kit: Kit) -> None:
    """Its scope holds the way to answer, which holds uvicorn's cycle, which holds the scope."""

    async def main() -> None:
        async with serving(kit) as running:
            ask = b"GET /v1/jobs/job_01KBBBBBBBBBBBBBBBBBBBBBBB HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            ask += KEY.encode() + b"\r\n"
            await talk(running.port, ask + b"connection: close\r\n\r\n")
            gc.collect()
            gc.disable()
            try:
                for _ in range(10):
                    await talk(running.port, ask + b"connection: close\r\n\r\n")
                await asyncio.sleep(0.1)
                left = [one for one in gc.get_objects() if isinstance(one, RequestResponseCycle)]
                assert len(left) <= 1
            finally:
                gc.enable()

    asyncio.run(main())


@pytest.mark.parametrize("path", [b"/admin/v1/workers", b"/nothing"])
@pytest.mark.parametrize("key", [ADMIN_KEY.encode(), b"wrong"])
def test_head_has_no_body_on_the_admin_listener(kit: Kit, path: bytes, key: bytes) -> None:
    async def main() -> None:
        async with serving(kit) as running:
            ask = b"HEAD " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer " + key
            head, _, body = (await talk(running.admin_port, ask + b"\r\n\r\n")).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 4")
            assert body == b""

    asyncio.run(main())


def test_the_body_of_an_accepted_request_is_freed_once_it_is_written(kit: Kit) -> None:
    async def test(_: Any) -> None:
        await post(kit, b'{"model":"echo","input":1}')
        gc.collect()
        gc.disable()
        try:
            assert await post(kit, b'{"model":"echo","input":1}') == (202, True)
        finally:
            gc.enable()

    run(kit, test)
