"""Reading, offering and cutting the payload frame of a chunk."""

import hashlib
import math
from collections.abc import Iterator, Sequence

import msgspec

from batcher.batch import Span
from jobs import frames, ranges
from jobs.blob import BlobStore
from jobs.errors import BatchyardError, NotFound, Undecodable
from jobs.frames import Column, PayloadHeader
from jobs.models.spec import Tensor
from jobs.records import BlobRef, Ranges
from workers.held import HeldChunk
from workers.wire import parameters_of

_HEADER_READ = 96 * 1024
"""Bytes of a blob read for its header at first: parameters (64 KiB at most) and ids fit."""


def describe(chunk: HeldChunk, blobs: BlobStore) -> None:
    """Fills in the header. Raises Undecodable for bytes that are no payload frame, and what the blob store raises."""
    if chunk.payload is not None:
        chunk.header = _header(chunk.payload)
        return
    assert isinstance(chunk.message.payload, BlobRef)
    key = chunk.message.payload.key
    start = blobs.get(key, 0, _HEADER_READ)
    if len(start) >= 8 and (need := 8 + int.from_bytes(start[4:8], "little")) > len(start):
        start = blobs.get(key, 0, need)
    chunk.header = _header(start)


def _header(frame: bytes) -> PayloadHeader:
    if frame[:4] != frames.MAGIC or len(frame) < 8:
        raise Undecodable("payload: no frame")
    size = int.from_bytes(frame[4:8], "little")
    try:
        return _decoder.decode(memoryview(frame)[8 : 8 + size])
    except frames.UNREADABLE as error:
        raise Undecodable(f"payload header: {error}") from error


_decoder = msgspec.json.Decoder(PayloadHeader)


def fetch(reference: BlobRef, blobs: BlobStore) -> bytes:
    """The whole payload frame of a blob. Raises Undecodable when it is not what was put there, NotFound when it is
    gone, and what the blob store raises when it cannot be asked."""
    data = blobs.get(reference.key)
    if len(data) != reference.bytes or hashlib.sha256(data).hexdigest() != reference.sha256:
        raise Undecodable(f"blob {reference.key} is not the one that was written")
    return data


def lasting(error: Exception) -> bool:
    """Whether reading the same payload again would end the same way."""
    return isinstance(error, NotFound | Undecodable) or (isinstance(error, BatchyardError) and not error.retryable)


def spans(chunk: HeldChunk, inputs: Sequence[Tensor], offered_at: float, positions: Ranges | None = None) -> list[Span]:
    """The items of a described chunk (or those at `positions`) as spans: consecutive items that are alike.

    A chunk of ``json`` or ``rows`` is one span unless items have parameters of their own; ``ragged`` is one an item.
    """
    header = chunk.header
    assert header is not None
    message = chunk.message
    made: list[Span] = []
    for start, stop in ((0, message.count),) if positions is None else positions:
        for first, last, key in _runs(header, start, stop):
            for a, b, lengths in _lengths(header, inputs, first, last):
                made.append(
                    Span(
                        chunk=chunk, job=message.job, tenant=message.tenant, priority=message.priority,
                        start=a, stop=b, key=(key, message.run_timeout), lengths=lengths, alone=chunk.alone,
                        offered_at=offered_at, queue_deadline_at=message.queue_deadline_at,
                        deadline_at=message.deadline_at,
                    )
                )  # fmt: skip
    return made


def _runs(header: PayloadHeader, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
    """[first, last) of equal parameters, with their digest."""
    if not header.item_parameters:
        yield start, stop, _digest(header.parameters)
        return
    first, key = start, _key_at(header, start)
    for position in range(start + 1, stop):
        following = _key_at(header, position)
        if following != key:
            yield first, position, key
            first, key = position, following
    yield first, stop, key


def _key_at(header: PayloadHeader, position: int) -> bytes:
    return _digest(header.parameters, header.item_parameters.get(position))


def _digest(*layers: msgspec.Raw | None) -> bytes:
    """Of the merged parameters, whatever their order and white space. b"" for none."""
    given = [layer for layer in layers if layer]
    if not given:
        return b""
    merged = parameters_of(*(msgspec.json.decode(layer) for layer in given))
    if not merged:
        return b""
    return hashlib.sha256(msgspec.json.encode(merged, order="deterministic")).digest()


def _lengths(
    header: PayloadHeader, inputs: Sequence[Tensor], start: int, stop: int
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """[start, stop) in stretches of equal axis lengths; the axes in the order in which the inputs name them."""
    if header.kind == "json" or not any(isinstance(dim, str) for tensor in inputs for dim in tensor.shape):
        yield start, stop, ()
        return
    names = [column.name for column in header.columns]
    if header.kind == "rows":
        yield start, stop, _axis_lengths(inputs, dict(zip(names, (c.shape for c in header.columns), strict=True)))
        return
    for position in range(start, stop):
        shapes = dict(zip(names, header.shapes[position], strict=True))
        yield position, position + 1, _axis_lengths(inputs, shapes)


def _axis_lengths(inputs: Sequence[Tensor], shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    lengths: dict[str, int] = {}
    for tensor in inputs:
        for dim, length in zip(tensor.shape, shapes.get(tensor.name, ()), strict=False):
            if isinstance(dim, str):
                lengths.setdefault(dim, length)
    return tuple(lengths.values())


def split_rows(column: Column, part: memoryview, rows: int) -> list[memoryview]:
    """The bytes of each row of a ``rows`` part; elements of BYTES are length-prefixed and differ in size."""
    if column.datatype != "BYTES":
        size = len(part) // rows
        return [part[row * size : (row + 1) * size] for row in range(rows)]
    elements = math.prod(column.shape)
    split: list[memoryview] = []
    at = 0
    for _ in range(rows):
        start = at
        for _ in range(elements):
            at += 4 + int.from_bytes(part[at : at + 4], "little")
        split.append(part[start:at])
    return split


def cut(payload: bytes, positions: Sequence[int]) -> bytes:
    """The payload frame of some items alone (ascending positions), with what they share."""
    header, parts = frames.unpack_payload(payload)
    chosen: list[memoryview] = []
    if header.kind == "json":
        chosen = [parts[position] for position in positions]
    elif header.kind == "rows":
        for column, part in zip(header.columns, parts, strict=True):
            rows = split_rows(column, part, ranges.count(header.items))
            chosen.append(memoryview(b"".join(rows[position] for position in positions)))
    else:
        width = len(header.columns)
        chosen = [part for p in positions for part in parts[p * width : (p + 1) * width]]
    shared = msgspec.structs.replace(
        header,
        items=ranges.select(header.items, positions),
        ids=None if header.ids is None else tuple(header.ids[position] for position in positions),
        item_parameters={
            new: header.item_parameters[old] for new, old in enumerate(positions) if old in header.item_parameters
        },
        shapes=tuple(header.shapes[position] for position in positions) if header.shapes else (),
    )
    return frames.pack(shared, chosen)
