"""The pipe between the supervisor and an engine child: whole frames over a socket, each behind its length."""

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from jobs import frames
from jobs.errors import Undecodable
from workers.wire import FromChild, ToChild, from_child_decoder, to_child_decoder

_LENGTH = struct.Struct("<Q")
_BUFFER = 1 << 20  # of the socket: a batch of small rows is written without waiting for the reader

Received = TypeVar("Received")


class Channel(Generic[Received]):
    """One end. Sending is thread-safe; receiving is one thread's."""

    def __init__(self, connection: socket.socket, decoder: msgspec.json.Decoder[Received]) -> None:
        self._socket = connection
        self._decoder = decoder
        self._sending = threading.Lock()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER)

    @staticmethod
    def of_supervisor(connection: socket.socket) -> "Channel[FromChild]":
        return Channel(connection, from_child_decoder)

    @staticmethod
    def of_child(descriptor: int) -> "Channel[ToChild]":
        return Channel(socket.socket(fileno=descriptor), to_child_decoder)

    def send(self, message: msgspec.Struct, parts: Sequence[bytes | memoryview] = ()) -> None:
        """Blocks while the other end does not read; OSError when it is gone."""
        frame = frames.pack(message, parts)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> tuple[Received, list[memoryview]] | None:
        """The next message and its parts; None at the end of the pipe. Undecodable for what is none of ours."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        frame = self._read(_LENGTH.unpack(head)[0])
        if frame is None:
            return None
        header, parts, _ = frames.split(frame)
        try:
            return self._decoder.decode(header), parts
        except msgspec.MsgspecError as error:
            raise Undecodable(f"engine message: {error}") from error

    def _read(self, size: int) -> bytearray | None:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except ConnectionResetError:
                return None
            if not count:
                return None
            view = view[count:]
        return data

    def shutdown(self) -> None:
        """Ends both directions at once: a blocked send or receive of any thread returns."""
        with contextlib.suppress(OSError):  # the other end may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shutdown()
        self._socket.close()
