"""Stream records: round trip, their greatest size, and what is refused."""

import itertools
import json
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jobs import frames, messages
from jobs.errors import Undecodable
from jobs.messages import MAX_RECORD_BYTES
from jobs.records import BlobRef, ChunkMessage
from jobs.states import Priority

calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine too
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ONE = ChunkMessage(
    job="job_1",
    seq=3,
    fence=2,
    tenant="acme",
    model="echo",
    version="1",
    priority=Priority.HIGH,
    count=2,
    alone=True,
    attempts=1,
    max_attempts=3,
    run_timeout=timedelta(seconds=30),
    created_at=NOW,
    queue_deadline_at=None,
    deadline_at=NOW + timedelta(hours=1),
    traceparent="00-abc-def-01",
    payload=b"payload",
)
TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**40)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
CHUNKS = st.builds(
    ChunkMessage,
    job=TEXT,
    seq=COUNT,
    fence=COUNT,
    tenant=TEXT,
    model=TEXT,
    version=TEXT,
    priority=st.sampled_from(Priority),
    count=COUNT,
    alone=st.booleans(),
    attempts=COUNT,
    max_attempts=COUNT,
    run_timeout=st.timedeltas(timedelta(0), timedelta(days=365)),
    created_at=TIMES,
    queue_deadline_at=st.none() | TIMES,
    deadline_at=st.none() | TIMES,
    traceparent=st.none() | TEXT,
    payload=st.binary(max_size=100) | st.builds(BlobRef, TEXT, COUNT, TEXT),
)
RECORD = next(messages.encode([ONE, replace(ONE, seq=4, payload=BlobRef("key", 300_000, "ab" * 32))]))


def decoded(records: list[bytes]) -> list[ChunkMessage]:
    return [chunk for record in records for chunk in messages.decode(record)]


def record_of(header: Any, *parts: bytes) -> bytes:
    """As `encode` would write it, with any header."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    lengths = b"".join(struct.pack("<I", len(part)) for part in parts)
    return b"".join((b"BYF1", struct.pack("<I", len(head)), head, struct.pack("<I", len(parts)), lengths, *parts))


def fields(**changes: Any) -> list[Any]:
    """A chunk of a record's header."""
    named = {
        "job": "job_1", "seq": 0, "fence": 0, "tenant": "acme", "model": "echo", "version": "1", "priority": "normal",
        "count": 1, "alone": False, "attempts": 0, "max_attempts": 3, "run_timeout_us": 1, "created_us": 1,
        "queue_deadline_us": None, "deadline_us": None, "traceparent": None, "blob": None,
    }  # fmt: skip
    assert changes.keys() <= named.keys()
    return list((named | changes).values())


@calm
@given(st.lists(CHUNKS, max_size=6))
def test_round_trip(chunks: list[ChunkMessage]) -> None:
    assert decoded(list(messages.encode(chunks))) == chunks


def test_no_chunks_are_no_record() -> None:
    assert list(messages.encode([])) == []


def test_one_commit_is_one_record_while_it_fits() -> None:
    chunks = [replace(ONE, seq=seq) for seq in range(256)]
    (record,) = messages.encode(chunks)
    assert messages.decode(record) == chunks


@pytest.mark.parametrize("size", [0, 10, 1000, 100_000, 256 * 1024])
def test_a_record_is_never_too_large(size: int) -> None:
    """Headers count: many small chunks fill a record as a few large ones do."""
    chunks = [replace(ONE, seq=seq, payload=bytes(size)) for seq in range(8000 if size < 1000 else 50)]
    records = list(messages.encode(chunks))
    assert decoded(records) == chunks
    assert max(map(len, records)) <= MAX_RECORD_BYTES
    # Nor is one closed early: the first chunk of the next would not have fitted any more.
    for record, following in itertools.pairwise(records):
        first = messages.decode(following)[0]
        assert len(next(messages.encode([*messages.decode(record), first]))) == len(record)


def test_a_record_is_filled_to_the_byte() -> None:
    empty = len(next(messages.encode([replace(ONE, payload=b"")])))
    both = len(next(messages.encode([replace(ONE, payload=b"")] * 2)))
    first = replace(ONE, payload=bytes(MAX_RECORD_BYTES // 2))
    room = MAX_RECORD_BYTES - both - len(first.payload)
    assert [len(record) for record in messages.encode([first, replace(ONE, payload=bytes(room))])] == [MAX_RECORD_BYTES]
    assert [len(record) for record in messages.encode([first, replace(ONE, payload=bytes(room + 1))])] == [
        empty + len(first.payload),
        empty + room + 1,
    ]


@pytest.mark.parametrize("version", [0, 2, 999])
def test_another_version_is_named(version: int) -> None:
    with pytest.raises(Undecodable, match=f"version {version}, this worker reads {messages.VERSION}"):
        messages.decode(record_of({"v": version, "chunks": []}))


def test_this_version_is_read() -> None:
    """A record as it lies in streams today: a change that cannot read it needs a new version."""
    (chunk,) = messages.decode(record_of({"v": 1, "chunks": [fields(job="job_7", created_us=5)]}, b"payload"))
    assert (chunk.job, chunk.payload, chunk.run_timeout) == ("job_7", b"payload", timedelta(microseconds=1))
    assert chunk.created_at == datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{}",
        record_of(b""),
        record_of(b"\xff"),
        record_of({}),
        record_of({"v": 1}),
        record_of({"v": "1", "chunks": []}),
        record_of({"v": 1, "chunks": [fields()]}),  # without its part
        record_of({"v": 1, "chunks": []}, b"part"),
        record_of({"v": 1, "chunks": [fields()]}, b"part") + b"behind",
        record_of({"v": 1, "chunks": [fields()[:-1]]}, b"part"),
        record_of({"v": 1, "chunks": [fields(priority="urgent")]}, b"part"),
        record_of({"v": 1, "chunks": [fields(seq="0")]}, b"part"),
        record_of({"v": 1, "chunks": [fields(blob=["key"])]}, b"part"),
        record_of({"v": 1, "chunks": [fields(created_us=10**18)]}, b"part"),
        record_of({"v": 1, "chunks": [fields(deadline_us=-(10**18))]}, b"part"),
        record_of({"v": 1, "chunks": [fields(run_timeout_us=10**24)]}, b"part"),
        record_of(b'{"v": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "chunks": []}'),
        frames.pack(frames.PayloadHeader("json", ((0, 1),)), [b"1"]),  # a frame, but no record
    ],
)
def test_what_encode_did_not_make(record: bytes) -> None:
    with pytest.raises(Undecodable):
        messages.decode(record)


@pytest.mark.parametrize("cut", range(0, len(RECORD), 3))
def test_a_record_that_is_cut_off(cut: int) -> None:
    with pytest.raises(Undecodable):
        messages.decode(RECORD[:cut])


@calm
@given(st.data())
def test_changed_bytes_are_refused_or_read_never_anything_else(data: st.DataObject) -> None:
    changed = bytearray(RECORD)
    for at in data.draw(st.lists(st.integers(0, len(RECORD) - 1), min_size=1, max_size=3)):
        changed[at] = data.draw(st.integers(0, 255))
    read_or_refused(bytes(changed))


@calm
@given(st.binary(max_size=80))
def test_garbage(value: bytes) -> None:
    with pytest.raises(Undecodable):
        messages.decode(value)
    read_or_refused(record_of(value, b"part"))


@calm
@given(st.integers(0, 16), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT)
def test_any_value_in_any_field_is_refused_or_read(field: int, value: object) -> None:
    changed = fields()
    changed[field] = value
    head = msgspec.json.encode({"v": 1, "chunks": [changed]}) if not _huge(value) else json.dumps([changed]).encode()
    read_or_refused(record_of(head, b"part"))


def _huge(value: object) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def read_or_refused(record: bytes) -> None:
    try:
        chunks = messages.decode(record)
    except Undecodable:
        return
    assert all(isinstance(chunk, ChunkMessage) for chunk in chunks)
