"""Answers -> the result frame of each segment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobs import frames, ranges
from jobs.frames import Column, PayloadHeader, ResultHeader
from jobs.records import Ranges
from jobs.tensors.binary import to_bytes
from jobs.tensors.datatypes import FLOATS, name_of
from workers.child.collate import Array
from workers.child.failures import OutputInvalid
from workers.child.items import Opened


def json_frame(one: Opened, answers: Sequence[tuple[int, bytes]]) -> bytes:
    """`answers`: (position, JSON), ascending."""
    positions = ranges.pack(position for position, _ in answers)
    header = ResultHeader(kind="json", **_common(one, positions))
    return frames.pack(header, [answer for _, answer in answers])


def rows_frame(one: Opened, positions: Ranges, outputs: Mapping[str, Array]) -> bytes:
    """`outputs`: {name: array [items, …]}, all items of one shape."""
    wanted = _wanted(one.header, outputs)
    if any(name_of(array.dtype) == "BYTES" for array in wanted.values()):
        rows = [{name: array[at] for name, array in wanted.items()} for at in range(ranges.count(positions))]
        return ragged_frame(one, positions, rows)
    columns = tuple(Column(name, datatype_of(name, array), array.shape[1:]) for name, array in wanted.items())
    header = ResultHeader(kind="rows", columns=columns, **_common(one, positions))
    return frames.pack(header, [to_bytes(array) for array in wanted.values()])


def ragged_frame(one: Opened, positions: Ranges, outputs: Sequence[Mapping[str, Array]]) -> bytes:
    """`outputs`: {name: array without batch dimension} an item."""
    rows = [_wanted(one.header, own) for own in outputs]
    columns = tuple(Column(name, datatype_of(name, array), (-1,) * array.ndim) for name, array in rows[0].items())
    header = ResultHeader(
        kind="ragged",
        columns=columns,
        shapes=tuple(tuple(array.shape for array in row.values()) for row in rows),
        **_common(one, positions),
    )
    return frames.pack(header, [to_bytes(array) for row in rows for array in row.values()])


def datatype_of(name: str, array: Array) -> str:
    datatype = name_of(array.dtype)
    if datatype is None and array.dtype == object:
        return "BYTES"
    if datatype is None:
        raise OutputInvalid(f"output {name} is of dtype {array.dtype}, which no tensor datatype stands for")
    return datatype


def finite(array: Array) -> bool:
    return name_of(array.dtype) not in FLOATS or bool(np.isfinite(array.astype(np.float64, copy=False)).all())


def _wanted(header: PayloadHeader, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
    if header.outputs is None:
        return outputs
    missing = [name for name in header.outputs if name not in outputs]
    if missing:
        raise OutputInvalid(f"the model gave no output {missing[0]}; it gave {', '.join(outputs)}")
    return {name: outputs[name] for name in header.outputs}


def _common(one: Opened, positions: Ranges) -> dict[str, Any]:
    header = one.header
    if len(header.items) == 1:
        first = header.items[0][0]
        items: Ranges = tuple((first + start, first + stop) for start, stop in positions)
    else:
        items = ranges.select(header.items, list(ranges.indexes(positions)))
    ids = None if header.ids is None else tuple(header.ids[position] for position in ranges.indexes(positions))
    return {"items": items, "ids": ids, "attempts": one.segment.attempts + 1}
