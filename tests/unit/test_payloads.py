"""Payload frames on the worker's side: their header, their spans, and cutting out some of their items."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobs import frames
from jobs.blobs.directory import DirectoryBlobs
from jobs.errors import NotFound, Undecodable
from jobs.frames import Column, PayloadHeader
from jobs.models.spec import Tensor
from jobs.records import BlobRef, ChunkMessage
from jobs.states import Priority
from workers import payloads
from workers.held import HeldChunk
from workers.offsets import Origin

AT = datetime(2026, 11, 30, tzinfo=UTC)


def held(payload: bytes | BlobRef, count: int, **fields: Any) -> HeldChunk:
    message = ChunkMessage(
        "job_1", 0, 0, "acme", "m", "1", Priority.NORMAL, count, fields.pop("alone", False), 0, 3,
        timedelta(seconds=30), AT, None, None, None, payload,
    )  # fmt: skip
    return HeldChunk(message, Origin(0, 0, 1))


def described(payload: bytes, count: int, **fields: Any) -> HeldChunk:
    chunk = held(payload, count, **fields)
    payloads.describe(chunk, None)  # type: ignore[arg-type]
    return chunk


def json_frame(items: list[bytes], **fields: Any) -> bytes:
    return frames.pack(PayloadHeader("json", ((0, len(items)),), **fields), items)


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path, b"secret", lambda: AT)


def test_a_json_chunk_is_one_span() -> None:
    (span,) = payloads.spans(described(json_frame([b"1", b"2", b"3"]), 3), (), 1.0)
    assert (span.start, span.stop, span.lengths, span.alone) == (0, 3, (), False)


def test_parameters_of_items_split_the_span_where_they_differ() -> None:
    own = {1: msgspec.Raw(b'{"a":1}'), 2: msgspec.Raw(b'{ "a" : 1 }'), 3: msgspec.Raw(b'{"a":2}')}
    spans = payloads.spans(described(json_frame([b"1"] * 5, item_parameters=own), 5), (), 1.0)
    assert [(span.start, span.stop) for span in spans] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert spans[0].key == spans[3].key != spans[1].key


def test_equal_parameters_give_one_key_whoever_gave_them() -> None:
    by_job = described(json_frame([b"1"], parameters=msgspec.Raw(b'{"b":2,"a":1}')), 1)
    by_item = described(
        json_frame([b"1"], parameters=msgspec.Raw(b'{"a":1,"b":0}'), item_parameters={0: msgspec.Raw(b'{"b":2}')}), 1
    )
    empty = described(json_frame([b"1"], parameters=msgspec.Raw(b"{}")), 1)
    none = described(json_frame([b"1"]), 1)
    keys = [payloads.spans(chunk, (), 0.0)[0].key for chunk in (by_job, by_item, empty, none)]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3] != keys[0]


def test_a_ragged_chunk_is_a_span_an_item_with_its_lengths_in_the_order_of_the_inputs() -> None:
    columns = (Column("mask", "INT64", (-1,)), Column("ids", "INT64", (-1, -1)))
    shapes = (((3,), (3, 2)), ((5,), (5, 4)))
    frame = frames.pack(PayloadHeader("ragged", ((0, 2),), columns=columns, shapes=shapes), [b"x" * 8] * 4)
    inputs = (Tensor("ids", "INT64", ("length", "width")), Tensor("mask", "INT64", ("length",)))
    spans = payloads.spans(described(frame, 2), inputs, 0.0)
    assert [(span.start, span.stop, span.lengths) for span in spans] == [(0, 1, (3, 2)), (1, 2, (5, 4))]


def test_rows_of_a_variable_model_share_their_lengths() -> None:
    frame = frames.pack(PayloadHeader("rows", ((0, 4),), columns=(Column("x", "FP32", (7,)),)), [b"\0" * 4 * 28])
    (span,) = payloads.spans(described(frame, 4), (Tensor("x", "FP32", ("length",)),), 0.0)
    assert (span.count, span.lengths) == (4, (7,))


def test_some_positions_are_offered_again() -> None:
    spans = payloads.spans(described(json_frame([b"1"] * 6), 6, alone=True), (), 0.0, ((1, 2), (4, 6)))
    assert [(span.start, span.stop, span.alone) for span in spans] == [(1, 2, True), (4, 6, True)]


def test_cutting_keeps_ids_parameters_and_indexes() -> None:
    own = {0: msgspec.Raw(b'{"n":0}'), 3: msgspec.Raw(b'{"n":3}')}
    frame = frames.pack(
        PayloadHeader(
            "json", ((10, 12), (20, 22)), ids=("a", "b", "c", "d"), parameters=msgspec.Raw(b'{"k":1}'),
            item_parameters=own,
        ),
        [b"1", b"2", b"3", b"4"],
    )  # fmt: skip
    header, parts = frames.unpack_payload(payloads.cut(frame, [1, 3]))
    assert header.items == ((11, 12), (21, 22))
    assert header.ids == ("b", "d")
    assert bytes(header.parameters) == b'{"k":1}'
    assert {at: bytes(raw) for at, raw in header.item_parameters.items()} == {1: b'{"n":3}'}
    assert [bytes(part) for part in parts] == [b"2", b"4"]


def test_cutting_rows_and_ragged_and_bytes() -> None:
    rows = frames.pack(
        PayloadHeader(
            "rows", ((0, 3),), columns=(Column("x", "INT64", (2,)), Column("s", "BYTES", (1,))),
        ),
        [bytes(range(48)), b"\1\0\0\0a" + b"\3\0\0\0bcd" + b"\0\0\0\0"],
    )  # fmt: skip
    header, parts = frames.unpack_payload(payloads.cut(rows, [1, 2]))
    assert header.items == ((1, 3),)
    assert [bytes(part) for part in parts] == [bytes(range(16, 48)), b"\3\0\0\0bcd" + b"\0\0\0\0"]
    ragged = frames.pack(
        PayloadHeader("ragged", ((0, 3),), columns=(Column("x", "BYTES", (-1,)),), shapes=(((1,),), ((2,),), ((3,),))),
        [b"a", b"bb", b"ccc"],
    )
    header, parts = frames.unpack_payload(payloads.cut(ragged, [0, 2]))
    assert header.shapes == (((1,),), ((3,),))
    assert [bytes(part) for part in parts] == [b"a", b"ccc"]


def test_the_header_of_a_blob_is_read_without_its_items(blobs: DirectoryBlobs) -> None:
    frame = json_frame([b"x" * 1_000_000], parameters=msgspec.Raw(b'"' + b"p" * 120_000 + b'"'))
    ref = blobs.put("payloads/job_1/0", frame)
    chunk = held(ref, 1)
    payloads.describe(chunk, blobs)
    assert chunk.header is not None
    assert len(bytes(chunk.header.parameters)) == 120_002
    assert chunk.payload is None
    assert payloads.fetch(ref, blobs) == frame


def test_a_blob_that_is_gone_or_another_is_a_lasting_fault(blobs: DirectoryBlobs) -> None:
    ref = blobs.put("payloads/job_1/0", json_frame([b"1"]))
    forged = BlobRef(ref.key, ref.bytes, hashlib.sha256(b"other").hexdigest())
    with pytest.raises(Undecodable) as changed:
        payloads.fetch(forged, blobs)
    blobs.delete(ref.key)
    with pytest.raises(NotFound) as gone:
        payloads.fetch(ref, blobs)
    assert payloads.lasting(changed.value)
    assert payloads.lasting(gone.value)
    assert not payloads.lasting(OSError("disk trouble"))


@pytest.mark.parametrize("bad", [b"", b"BYF1", b"junk and more junk", frames.pack(Column("x", "FP32", ()), [])])
def test_bytes_that_are_no_payload_are_said_to_be_so(bad: bytes) -> None:
    with pytest.raises(Undecodable):
        described(bad, 1)
