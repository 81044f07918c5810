"""Large outputs leave the result frame for blobs of their own, which the frame names."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs import frames
from jobs.blobs.directory import DirectoryBlobs
from jobs.frames import Column, ResultHeader
from jobs.records import ChunkRef
from workers.outputs import shrink

REF = ChunkRef("job_1", 3, 7)
LIMIT = 100


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path, b"secret", lambda: datetime(2026, 11, 30, tzinfo=UTC))


def shrunk(
    frame: bytes, blobs: DirectoryBlobs, puts: list[int] | None = None
) -> list[tuple[ResultHeader, list[bytes]]]:
    kept = shrink(frame, REF, blobs, LIMIT, lambda: None if puts is None else puts.append(1))
    return [(header, [bytes(part) for part in parts]) for header, parts in frames.unpack_results(kept)]


def test_a_small_frame_is_kept_as_it_is(blobs: DirectoryBlobs) -> None:
    frame = frames.pack(ResultHeader("json", ((0, 1),)), [b"1"])
    assert shrink(frame, REF, blobs, LIMIT, lambda: None) is frame


def test_only_the_large_answers_of_a_json_model_move(blobs: DirectoryBlobs) -> None:
    large = b'"' + b"x" * LIMIT + b'"'
    puts: list[int] = []
    ((header, parts),) = shrunk(frames.pack(ResultHeader("json", ((5, 8),)), [b"1", large, b"3"]), blobs, puts)
    assert parts == [b"1", b"", b"3"]
    (blob,) = header.blobs[1]
    assert (blob.name, blob.bytes) == ("", len(large))
    assert blobs.get(blob.key) == large
    assert blob.key.startswith("results/job_1/3-7/"), "each claim writes keys of its own"
    assert len(puts) == 1


def test_a_large_column_of_rows_moves_row_by_row(blobs: DirectoryBlobs) -> None:
    columns = (Column("big", "UINT8", (150,)), Column("small", "UINT8", (2,)))
    rows = [bytes([value]) * 150 for value in (1, 2)]
    ((header, parts),) = shrunk(
        frames.pack(ResultHeader("rows", ((0, 2),), columns=columns), [b"".join(rows), b"abcd"]), blobs
    )
    assert header.kind == "ragged"
    assert header.shapes == (((150,), (2,)),) * 2
    assert parts == [b"", b"ab", b"", b"cd"]
    assert [blobs.get(header.blobs[position][0].key) for position in (0, 1)] == rows
    assert header.blobs[0][0].name == "big"


def test_many_small_rows_stay_rows(blobs: DirectoryBlobs) -> None:
    frame = frames.pack(ResultHeader("rows", ((0, 50),), columns=(Column("y", "FP32", (2,)),)), [b"\0" * 400])
    ((header, parts),) = shrunk(frame, blobs)
    assert (header.kind, header.blobs) == ("rows", {})
    assert parts == [b"\0" * 400]


def test_frames_after_one_another_are_each_looked_at(blobs: DirectoryBlobs) -> None:
    first = frames.pack(ResultHeader("json", ((0, 1),)), [b"1"])
    second = frames.pack(ResultHeader("json", ((1, 2),)), [b"y" * 200])
    (one, two) = shrunk(first + second, blobs)
    assert one[1] == [b"1"]
    assert two[1] == [b""]
    assert two[0].blobs
