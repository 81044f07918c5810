"""Jobs for a yard, and what became of their items, told item by item as `/results` would tell it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from jobs import frames, ranges
from jobs.blob import BlobStore
from jobs.frames import ResultHeader
from jobs.ids import new_id
from jobs.records import NewChunk, NewJob
from jobs.states import Priority
from jobs.tensors.binary import from_bytes
from tests.unit.children import json_payload, ragged_payload, rows_payload

TENANT = "default"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Answer:
    state: str
    output: Any = None
    code: str | None = None
    attempts: int | None = None


def echoed(values: Sequence[object]) -> dict[int, Answer]:
    """What the json test models answer to these values."""
    return {at: Answer("succeeded", {"id": at, "value": value}, None, 1) for at, value in enumerate(values)}


# -- jobs


def new_job(model: str, payloads: Sequence[bytes], counts: Sequence[int], **fields: Any) -> NewJob:
    """A chunk for each payload."""
    chunks: list[NewChunk] = []
    start = 0
    for seq, (payload, count) in enumerate(zip(payloads, counts, strict=True)):
        chunks.append(NewChunk(seq, ((start, start + count),), payload))
        start += count
    given: dict[str, Any] = {
        "id": new_id("job"), "tenant": TENANT, "model": model, "version": "1", "priority": Priority.NORMAL,
        "single": False, "chunks": tuple(chunks), "created_at": datetime.now(UTC),
        "run_timeout": timedelta(seconds=30), "max_attempts": 3, "input_bytes": sum(map(len, payloads)),
    }  # fmt: skip
    return NewJob(**(given | fields))


def json_job(model: str, values: Sequence[Any], cut: int = 32, **fields: Any) -> NewJob:
    """Values of items ``{"id": index, "value": value}``, or whole items (dicts); `cut` items a chunk."""
    items = [value if isinstance(value, dict) else {"id": at, "value": value} for at, value in enumerate(values)]
    parts = [items[at : at + cut] for at in range(0, len(items), cut)]
    payloads = [json_payload(part, first=at * cut) for at, part in enumerate(parts)]
    return new_job(model, payloads, [len(part) for part in parts], **fields)


def slow_job(items: int, ms: int, cut: int = 32, fast: int = 0, **fields: Any) -> NewJob:
    """Each item takes `ms` milliseconds, the first `fast` ones none."""
    values = [{"id": at, "value": at, "ms": 0 if at < fast else ms} for at in range(items)]
    return json_job("slow", values, cut, **fields)


def rows_job(model: str, x: Array, **fields: Any) -> NewJob:
    return new_job(model, [rows_payload({"x": x})], [len(x)], **fields)


def ragged_job(model: str, rows: Sequence[Array], **fields: Any) -> NewJob:
    return new_job(model, [ragged_payload([{"x": row} for row in rows])], [len(rows)], **fields)


# -- results


def lines_of(results: bytes, blobs: BlobStore) -> Iterator[tuple[int, Answer]]:
    """By item index, in the order of the frames; json outputs that lie in blobs are fetched."""
    for header, parts in frames.unpack_results(results):
        indexes = list(ranges.indexes(header.items))
        if header.kind == "none":
            for index, error in zip(indexes, header.errors, strict=True):
                yield index, Answer(header.state, None, error.code, header.attempts)
            continue
        for row, index in enumerate(indexes):
            yield index, Answer(header.state, _output(header, parts, row, blobs), None, header.attempts)


def _output(header: ResultHeader, parts: Sequence[memoryview], row: int, blobs: BlobStore) -> Any:
    if header.kind == "json":
        (blob,) = header.blobs.get(row, (None,))
        return msgspec.json.decode(parts[row] if blob is None else blobs.get(blob.key))
    if header.kind == "rows":
        count = ranges.count(header.items)
        return {
            column.name: from_bytes(part, column.datatype, (count, *column.shape))[row]
            for column, part in zip(header.columns, parts, strict=True)
        }
    width = len(header.columns)
    return {
        column.name: from_bytes(parts[row * width + at], column.datatype, header.shapes[row][at])
        for at, column in enumerate(header.columns)
    }
