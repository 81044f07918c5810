"""An engine child as its supervisor sees it: spawned, told to start, sent batches."""

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jobs import frames
from jobs.frames import NO_PARAMETERS, Column, PayloadHeader, ResultHeader
from jobs.tensors.binary import to_bytes
from jobs.tensors.datatypes import name_of
from workers.channel import Channel
from workers.wire import Done, FromChild, Loaded, LoadFailed, Run, Segment, Start, Started, Stop

PATIENCE = 20.0
"""Seconds after which a silent child fails the test."""


@dataclass
class Answered:
    done: Done
    parts: list[memoryview]
    stages: list[str] = field(default_factory=list)

    def frames(self, segment: int) -> list[tuple[ResultHeader, list[memoryview]]]:
        number = self.done.results[segment]
        return [] if number < 0 else list(frames.unpack_results(self.parts[number]))

    def json(self, segment: int = 0) -> dict[int, Any]:
        """Answer by item index."""
        found: dict[int, Any] = {}
        for header, parts in self.frames(segment):
            indexes = [index for start, stop in header.items for index in range(start, stop)]
            found.update(zip(indexes, map(msgspec.json.decode, parts), strict=True))
        return found


class Child:
    """Ends with the `with` block."""

    def __init__(self, repository: Path, model: str, version: str = "1", *, self_test: bool = True) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.child.main", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        self.channel: Channel[FromChild] = Channel.of_supervisor(ours)
        self.channel.send(Start(str(repository), model, version, 1, self_test))
        received = self.channel.receive()
        assert received is not None, self.end()
        self.first = received[0]

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()

    @property
    def loaded(self) -> Loaded:
        assert isinstance(self.first, Loaded), self.first
        return self.first

    @property
    def error(self) -> str:
        assert isinstance(self.first, LoadFailed), self.first
        return self.first.error

    def send(self, number: int, segments: Sequence[tuple[bytes, Segment]]) -> None:
        self.channel.send(Run(number, tuple(segment for _, segment in segments)), [part for part, _ in segments])

    def receive(self) -> Answered:
        stages: list[str] = []
        while True:
            received = self.channel.receive()
            assert received is not None, "the child is gone"
            message, parts = received
            if isinstance(message, Started):
                stages.append(message.stage)
            else:
                assert isinstance(message, Done)
                return Answered(message, parts, stages)

    def run(self, *payloads: bytes, segments: Sequence[Segment] | None = None) -> Answered:
        """One batch of whole chunks, or of `segments` of them."""
        if segments is None:
            segments = [Segment(((0, count(payload)),), 0) for payload in payloads]
        self.send(1, list(zip(payloads, segments, strict=True)))
        return self.receive()

    def stop(self) -> int:
        self.channel.send(Stop())
        return self.process.wait(PATIENCE)

    def end(self) -> str:
        """What it printed, once it is gone."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        text: str = output.decode()
        return text


def count(payload: bytes) -> int:
    header, _ = frames.unpack_payload(payload)
    return sum(stop - start for start, stop in header.items)


def json_payload(
    values: Sequence[Any],
    *,
    first: int = 0,
    parameters: Mapping[str, Any] | None = None,
    own: Mapping[int, Mapping[str, Any]] | None = None,
) -> bytes:
    """A chunk of a json model whose items have the indexes from `first` on."""
    header = PayloadHeader(
        "json",
        ((first, first + len(values)),),
        parameters=msgspec.Raw(msgspec.json.encode(parameters)) if parameters else NO_PARAMETERS,
        item_parameters={at: msgspec.Raw(msgspec.json.encode(given)) for at, given in (own or {}).items()},
    )
    return frames.pack(header, [msgspec.json.encode(value) for value in values])


def rows_payload(arrays: Mapping[str, np.ndarray[Any, Any]], *, first: int = 0, **more: Any) -> bytes:
    rows = len(next(iter(arrays.values())))
    columns = tuple(Column(name, str(name_of(array.dtype)), array.shape[1:]) for name, array in arrays.items())
    header = PayloadHeader("rows", ((first, first + rows),), columns=columns, **more)
    return frames.pack(header, [to_bytes(array) for array in arrays.values()])


def ragged_payload(items: Sequence[Mapping[str, np.ndarray[Any, Any]]], *, first: int = 0, **more: Any) -> bytes:
    columns = tuple(Column(name, str(name_of(array.dtype)), (-1,) * array.ndim) for name, array in items[0].items())
    shapes = tuple(tuple(array.shape for array in item.values()) for item in items)
    header = PayloadHeader("ragged", ((first, first + len(items)),), columns=columns, shapes=shapes, **more)
    return frames.pack(header, [to_bytes(array) for item in items for array in item.values()])
