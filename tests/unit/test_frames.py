"""The frame format: what went in comes out, and bytes that are no frame are Undecodable and nothing else."""

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import frames
from jobs.errors import Undecodable

calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine too
PARTS = st.lists(st.binary(max_size=40), max_size=6)
ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=3).map(tuple)
TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
RAW = JSON.map(lambda value: msgspec.Raw(json.dumps(value).encode()))
SHAPES = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=2).map(tuple), max_size=2).map(tuple), max_size=2)
COLUMNS = st.lists(
    st.builds(frames.Column, TEXT, st.just("FP32"), st.lists(st.integers(-1, 99), max_size=3).map(tuple)), max_size=2
)
PAYLOAD_HEADERS = st.builds(
    frames.PayloadHeader,
    kind=st.sampled_from(["json", "rows", "ragged"]),
    items=ITEMS,
    ids=st.none() | st.lists(TEXT, max_size=3).map(tuple),
    parameters=st.just(frames.NO_PARAMETERS) | RAW,
    item_parameters=st.dictionaries(st.integers(0, 9), RAW, max_size=2),
    outputs=st.none() | st.lists(TEXT, max_size=2).map(tuple),
    columns=COLUMNS.map(tuple),
    shapes=SHAPES.map(tuple),
)
ERRORS = st.lists(st.builds(frames.ResultError, TEXT, TEXT, st.booleans(), TEXT), max_size=2)
BLOBS = st.lists(st.builds(frames.ResultBlob, TEXT, TEXT, st.integers(0, 2**40), TEXT), max_size=2)
RESULT_HEADERS = st.builds(
    frames.ResultHeader,
    kind=st.sampled_from(["json", "rows", "ragged", "none"]),
    items=ITEMS,
    state=st.sampled_from(["succeeded", "failed", "expired", "cancelled"]),
    ids=st.none() | st.lists(TEXT, max_size=3).map(tuple),
    columns=COLUMNS.map(tuple),
    shapes=SHAPES.map(tuple),
    errors=ERRORS.map(tuple),
    attempts=st.integers(0, 9),
    blobs=st.dictionaries(st.integers(0, 9), BLOBS.map(tuple), max_size=2),
)
PAYLOAD = frames.pack(
    frames.PayloadHeader("json", ((0, 2), (7, 8)), ("a", "b", "ü"), msgspec.Raw(b'{"t": 1}')), [b"1", b"[2]", b""]
)
RESULTS = frames.pack(frames.ResultHeader("json", ((0, 2),)), [b"1", b"22"]) + frames.pack(
    frames.ResultHeader("none", ((2, 3),), "failed", errors=(frames.ResultError("e", "m", False, "run"),)), []
)


def handmade(head: bytes, *parts: bytes) -> bytes:
    lengths = b"".join(struct.pack("<I", len(part)) for part in parts)
    return b"".join((b"BYF1", struct.pack("<I", len(head)), head, struct.pack("<I", len(parts)), lengths, *parts))


def read_anyhow(value: bytes) -> int:
    """Reads bytes in every way there is; gives how many of them refused."""
    refused = 0
    readers: list[Any] = [
        frames.split,
        frames.unpack_payload,
        lambda given: list(frames.unpack_results(given)),
    ]
    for read in readers:
        try:
            read(value)
        except Undecodable:
            refused += 1
    return refused


@calm
@given(PAYLOAD_HEADERS, PARTS)
def test_a_payload_comes_out_as_it_went_in(header: frames.PayloadHeader, parts: list[bytes]) -> None:
    frame = frames.pack(header, parts)
    read, views = frames.unpack_payload(frame)
    assert read == header
    assert [bytes(view) for view in views] == parts
    assert frames.split(frame)[2] == len(frame)


@calm
@given(st.lists(st.tuples(RESULT_HEADERS, PARTS), max_size=4))
def test_result_frames_stand_one_after_another(written: list[tuple[frames.ResultHeader, list[bytes]]]) -> None:
    value = b"".join(frames.pack(header, parts) for header, parts in written)
    read = [(header, [bytes(view) for view in views]) for header, views in frames.unpack_results(value)]
    assert read == written


@calm
@given(PARTS, st.binary(max_size=9))
def test_a_frame_is_found_at_its_offset(parts: list[bytes], before: bytes) -> None:
    frame = frames.pack(frames.ResultHeader("json", ()), parts)
    _, views, end = frames.split(before + frame + b"more", len(before))
    assert [bytes(view) for view in views] == parts
    assert end == len(before) + len(frame)


def test_parts_are_views_and_may_be_given_as_such() -> None:
    frame = frames.pack(frames.PayloadHeader("json", ((0, 1),)), [memoryview(b"xabcx")[1:4]])
    _, (part,) = frames.unpack_payload(frame)
    assert bytes(part) == b"abc"
    assert part.obj is frame  # nothing was copied


@pytest.mark.parametrize("cut", range(len(PAYLOAD)))
def test_a_payload_that_is_cut_off(cut: int) -> None:
    with pytest.raises(Undecodable):
        frames.unpack_payload(PAYLOAD[:cut])


def test_results_that_are_cut_off() -> None:
    first = len(frames.pack(frames.ResultHeader("json", ((0, 2),)), [b"1", b"22"]))
    for cut in range(1, len(RESULTS)):
        if cut != first:
            with pytest.raises(Undecodable):
                list(frames.unpack_results(RESULTS[:cut]))
    assert len(list(frames.unpack_results(RESULTS[:first]))) == 1


@calm
@given(st.binary(max_size=60))
def test_garbage(value: bytes) -> None:
    assert read_anyhow(value) == (2 if value == b"" else 3)  # no bytes are no result frames, which is fine


@calm
@given(st.binary(max_size=60))
def test_garbage_that_begins_well(value: bytes) -> None:
    read_anyhow(b"BYF1" + value)
    read_anyhow(handmade(value, b"part"))


@calm
@given(st.sampled_from([PAYLOAD, RESULTS]), st.data())
def test_changed_bytes_are_refused_or_read_never_anything_else(value: bytes, data: st.DataObject) -> None:
    changed = bytearray(value)
    for at in data.draw(st.lists(st.integers(0, len(value) - 1), min_size=1, max_size=3)):
        changed[at] = data.draw(st.integers(0, 255))
    read_anyhow(bytes(changed))


@pytest.mark.parametrize(
    "frame",
    [
        handmade(b""),
        handmade(b"null"),
        handmade(b"[]"),
        handmade(b'{"kind": "json"}'),
        handmade(b'{"kind": 1, "items": []}'),
        handmade(b'{"kind": "json", "items": [[1]]}'),
        handmade(b'{"kind": "json", "items": [["a", 2]]}'),
        handmade(b'{"kind": "json", "items": [[1e400, 2]]}'),
        handmade(b'{"kind": "json", "items": [[1' + b"0" * 5000 + b", 2]]}"),
        handmade(b'{"kind": "\xff", "items": []}'),
        handmade(b'{"kind": "\\ud800", "items": []}'),
        handmade(b'{"kind": "json", "items": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        b"BYF2" + PAYLOAD[4:],
        b"BYF1" + b"\xff" * 4 + PAYLOAD[8:],
        PAYLOAD[:8] + PAYLOAD[9:],
    ],
)
def test_frames_that_lie(frame: bytes) -> None:
    with pytest.raises(Undecodable):
        frames.unpack_payload(frame)
    with pytest.raises(Undecodable):
        list(frames.unpack_results(frame))


@pytest.mark.parametrize("count", [2**32 - 1, 2**30, 2**20])
def test_a_claimed_number_of_parts_costs_no_memory(count: int) -> None:
    frame = b"BYF1" + struct.pack("<I", 2) + b"{}" + struct.pack("<I", count)
    with pytest.raises(Undecodable, match="cut off"):
        frames.split(frame)
