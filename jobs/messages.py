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


_decoder = msgspec.json.Decoder(_Header)
_MICROSECOND = timedelta(microseconds=1)


def encode(chunks: Iterable[ChunkMessage]) -> Iterator[bytes]:
    """Records of at most MAX_RECORD_BYTES (a single chunk never exceeds it: larger items travel as blobs)."""
    group: list[ChunkMessage] = []
    size = 0
    for chunk in chunks:
        if group and size + chunk.weight_bytes > MAX_RECORD_BYTES:
            yield _pack(group)
            group, size = [], 0
        group.append(chunk)
        size += chunk.weight_bytes
    if group:
        yield _pack(group)


def _pack(chunks: list[ChunkMessage]) -> bytes:
    heads = tuple(
        _Chunk(
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
        for c in chunks
    )
    return frames.pack(_Header(VERSION, heads), [b"" if isinstance(c.payload, BlobRef) else c.payload for c in chunks])


def decode(value: bytes) -> list[ChunkMessage]:
    """Undecodable for anything that `encode` of this version did not make."""
    head, parts, end = frames.split(value)
    try:
        header = _decoder.decode(head)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"record header: {error}") from error
    if header.v != VERSION:
        raise Undecodable(f"record version {header.v}, this worker reads {VERSION}")
    if len(header.chunks) != len(parts) or end != len(value):
        raise Undecodable("record parts do not match its header")
    return [_message(chunk, part) for chunk, part in zip(header.chunks, parts, strict=True)]


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
