"""The load generator: answers in any number of pieces, and not one wrong or missing answer overlooked."""

import asyncio
from collections.abc import Iterator

import orjson
import pytest

from tests.bench.asking import Kept
from tests.bench.connection import Connection, request
from tests.bench.load import _judge
from tests.bench.work import M1, Work

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False


def connected() -> tuple[Connection, Transport]:
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    return connection, transport


def cuts(answer: bytes) -> Iterator[list[bytes]]:
    yield [answer]
    yield [answer[i : i + 1] for i in range(len(answer))]
    for at in range(1, len(answer)):
        yield [answer[:at], answer[at:]]


@pytest.mark.parametrize(
    ("answer", "right"), [(PLAIN, (200, b"hello")), (CHUNKED, (200, b"hello")), (EMPTY, (202, b""))]
)
def test_reads_an_answer_however_it_is_cut(answer: bytes, right: tuple[int, bytes]) -> None:
    connection, _ = connected()
    for pieces in cuts(answer):
        got: list[tuple[int, bytes]] = []
        connection.send(b"x", lambda status, body, got=got: got.append((status, body)))  # type: ignore[misc]
        for piece in pieces:
            assert not got
            connection.data_received(piece)
        assert got == [right]


def test_a_broken_connection_is_an_answer_too() -> None:
    connection, _ = connected()
    got: list[int] = []
    connection.send(b"x", lambda status, _: got.append(status))
    connection.data_received(PLAIN[:30])
    connection.connection_lost(None)
    assert got == [0]


def test_a_request_is_prepared_whole() -> None:
    assert request("POST", "/v1/jobs", "k", b"{}", (("Prefer", "wait=1"),)) == (
        b"POST /v1/jobs HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer k\r\nPrefer: wait=1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.fixture(scope="module")
def work() -> Work:
    return Work(M1.model, M1.input, M1.max_batch, 8)


def output(values: list[float]) -> dict[str, object]:
    return {"y": {"shape": [10], "datatype": "FP32", "data": values}}


def kept_of(work: Work) -> Kept:
    """Every row once as a single, and all of them as one job; all right."""
    right = work.answers().tolist()
    lines = [
        orjson.dumps({"index": i, "id": str(i), "state": "succeeded", "output": output(values)})
        for i, values in enumerate(right)
    ]
    return Kept(
        single=[(row, orjson.dumps({"output": output(values)})) for row, values in enumerate(right)],
        lines=[(tuple(range(len(right))), b"\n".join(lines) + b"\n")],
        asked=2 * len(right),
    )


def test_right_answers_are_right(work: Work) -> None:
    assert _judge(work, kept_of(work)) == (0, 0)


def test_a_swapped_answer_is_wrong(work: Work) -> None:
    kept = kept_of(work)
    (first, one), (second, other) = kept.single[:2]
    kept.single[:2] = [(first, other), (second, one)]
    assert _judge(work, kept) == (2, 0)


def test_an_answer_that_did_not_come_is_missing(work: Work) -> None:
    kept = kept_of(work)
    del kept.single[3]
    assert _judge(work, kept) == (0, 1)


def test_a_job_without_an_output_is_missing(work: Work) -> None:
    kept = kept_of(work)
    kept.single[3] = (3, b'{"output":null}')
    assert _judge(work, kept) == (0, 1)


def test_a_line_that_failed_or_came_twice_is_missing(work: Work) -> None:
    kept = kept_of(work)
    rows, body = kept.lines[0]
    lines = body.splitlines()
    lines[2] = lines[1]
    kept.lines[0] = (rows, b"\n".join(lines))
    assert _judge(work, kept)[1] >= 1
    lines[2] = b'{"index":2,"id":"2","state":"failed","output":null}'
    kept.lines[0] = (rows, b"\n".join(lines))
    assert _judge(work, kept) == (0, 1)
