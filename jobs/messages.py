"""Stream records: the chunks that one commit (or one top-up) released, as one frame with a part per payload."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec

from jobs import frames
from jobs.clock import from_micros, to_micros
from jobs.errors import Undecodable
from jobs.records import BlobRef, ChunkMessage
from jobs.states import Priority

VERSION = 1
MAX_RECORD_BYTES = 512 * 1024


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    job: str
    seq: int
    fence: int
    tenant: str
    model: str
    version: str
    priority: Priority
    count: int
    alone: bool
    attempts: int
    max_attempts: int
    run_timeout_us: int
    created_us: int
    queue_deadline_us: int | None
    deadline_us: int | None
    traceparent: str | None
    blob: tuple[str, int, str] | None


class _Header(msgspec.Struct, frozen=True):
    v: int
    chunks: tuple[_Chunk, ...]


class _Encoded(msgspec.Struct, frozen=True):
    """A _Header whose chunks are encoded already."""

    v: int
    chunks: list[msgspec.Raw]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Header)
_EMPTY_BYTES = len(frames.pack(_Encoded(VERSION, []), [])) - len(",")  # the first chunk needs none
_CHUNK_BYTES = len(",") + 4  # in the header, and the length of its part
_MICROSECOND = timedelta(microseconds=1)


def encode(chunks: Iterable[ChunkMessage]) -> Iterator[bytes]:
    """Records of at most MAX_RECORD_BYTES (a single chunk never exceeds it: larger items travel as blobs)."""
    heads: list[msgspec.Raw] = []
    parts: list[bytes] = []
    size = _EMPTY_BYTES
    for chunk in chunks:
        head = _encoder.encode(_head(chunk))
        part = b"" if isinstance(chunk.payload, BlobRef) else chunk.payload
        added = len(head) + len(part) + _CHUNK_BYTES
        if heads and size + added > MAX_RECORD_BYTES:
            yield frames.pack(_Encoded(VERSION, heads), parts)
            heads, parts, size = [], [], _EMPTY_BYTES
        heads.append(msgspec.Raw(head))
        parts.append(part)
        size += added
    if heads:
        yield frames.pack(_Encoded(VERSION, heads), parts)


def _head(c: ChunkMessage) -> _Chunk:
    return _Chunk(
        c.job,
        c.seq,
        c.fence,
        c.tenant,
        c.model,
        c.version,
        c.priority,
        c.count,
        c.alone,
        c.attempts,
        c.max_attempts,
        c.run_timeout // _MICROSECOND,
        to_micros(c.created_at),
        to_micros(c.queue_deadline_at) if c.queue_deadline_at else None,
        to_micros(c.deadline_at) if c.deadline_at else None,
        c.traceparent,
        (c.payload.key, c.payload.bytes, c.payload.sha256) if isinstance(c.payload, BlobRef) else None,
    )


def decode(value: bytes) -> list[ChunkMessage]:
    """Undecodable for anything that `encode` of this version did not make."""
    head, parts, end = frames.split(value)
    try:
        header = _decoder.decode(head)
    except frames.UNREADABLE as error:
        raise Undecodable(f"record header: {error}") from error
    if header.v != VERSION:
        raise Undecodable(f"record version {header.v}, this worker reads {VERSION}")
    if len(header.chunks) != len(parts) or end != len(value):
        raise Undecodable("record parts do not match its header")
    try:
        return [_message(chunk, part) for chunk, part in zip(header.chunks, parts, strict=True)]
    except OverflowError as error:
        raise Undecodable(f"record header: a time out of range: {error}") from error


def _message(c: _Chunk, part: memoryview) -> ChunkMessage:
    return ChunkMessage(
        job=c.job,
        seq=c.seq,
        fence=c.fence,
        tenant=c.tenant,
        model=c.model,
        version=c.version,
        priority=c.priority,
        count=c.count,
        alone=c.alone,
        attempts=c.attempts,
        max_attempts=c.max_attempts,
        run_timeout=c.run_timeout_us * _MICROSECOND,
        created_at=from_micros(c.created_us),
        queue_deadline_at=None if c.queue_deadline_us is None else from_micros(c.queue_deadline_us),
        deadline_at=None if c.deadline_us is None else from_micros(c.deadline_us),
        traceparent=c.traceparent,
        payload=bytes(part) if c.blob is None else BlobRef(*c.blob),
    )
