"""What comes behind a chunked body is to fill no memory, in however few headers it comes."""

import asyncio
import contextlib

from api.server import HEAD_BYTES
from tests.integration.api_kit import Kit
from tests.integration.test_api_server import serving

PIECE = b"y" * 65536


def test_one_endless_trailer_ends_the_connection(kit: Kit) -> None:
    """httptools gathers a header's value until it ends: nobody counts it, and each piece copies all before it."""

    async def main() -> None:
        async with serving(kit) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ")
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 8 * 1024 * 1024 and not writer.is_closing():
                    writer.write(PIECE)
                    await writer.drain()
                    sent += len(PIECE)
                    await asyncio.sleep(0)
            closed = writer.is_closing() or reader.at_eof()
            writer.close()
            assert closed
            assert sent < 64 * HEAD_BYTES

    asyncio.run(main())
