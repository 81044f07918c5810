"""The proxy does what its verbs say, so that what is shown behind it means something."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.services.proxy import Faults, Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo) as made:
        yield made


def connect(proxy: Proxy, seconds: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), seconds)


def receive(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := end.recv(count - len(data))):
        data += piece
    return data


def test_without_faults_everything_passes(proxy: Proxy) -> None:
    data = bytes(range(256)) * 2000
    with connect(proxy) as end:
        threading.Thread(target=end.sendall, args=(data,)).start()
        assert receive(end, len(data)) == data
    assert proxy.connections == 1


def test_down_cuts_and_refuses_until_up(proxy: Proxy) -> None:
    with connect(proxy) as end:
        end.sendall(b"a")
        assert receive(end, 1) == b"a"
        proxy.down()
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.up()
    with connect(proxy) as end:
        end.sendall(b"c")
        assert receive(end, 1) == b"c"


def test_cut_resets_what_is_open(proxy: Proxy) -> None:
    with connect(proxy) as end:
        end.sendall(b"a")
        receive(end, 1)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_latency_delays_both_ways(proxy: Proxy) -> None:
    proxy.faults.latency = 0.1
    with connect(proxy) as end:
        began = time.monotonic()
        end.sendall(b"a")
        assert receive(end, 1) == b"a"
        assert time.monotonic() - began >= 0.2


def test_a_black_hole_takes_connections_and_answers_nothing(proxy: Proxy) -> None:
    proxy.faults.black_hole = True
    with connect(proxy, 0.3) as end:
        end.sendall(b"a")
        with pytest.raises(TimeoutError):
            end.recv(1)
        proxy.faults = Faults()
        assert receive(end, 1) == b"a"


def test_bandwidth_slices_and_limit(proxy: Proxy) -> None:
    proxy.faults = Faults(bandwidth=100_000, slice=100)
    with connect(proxy) as end:
        began = time.monotonic()
        end.sendall(b"x" * 10_000)
        assert receive(end, 10_000) == b"x" * 10_000
        assert time.monotonic() - began >= 0.1
    proxy.faults = Faults(limit=10)
    with connect(proxy) as end:
        end.sendall(b"y" * 50)
        assert receive(end, 50) == b"y" * 10


def test_a_reset_after_a_while_and_a_slow_close(proxy: Proxy) -> None:
    proxy.faults = Faults(reset_after=0.1)
    with connect(proxy) as end, pytest.raises(ConnectionResetError):
        end.recv(1)
    proxy.faults = Faults(slow_close=0.2)
    with connect(proxy) as end:
        end.sendall(b"a")
        receive(end, 1)
        began = time.monotonic()
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""
        assert time.monotonic() - began >= 0.2
