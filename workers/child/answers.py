"""Answers -> the result frame of each segment."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from jobs import frames, ranges
from jobs.frames import Column, PayloadHeader, ResultHeader
from jobs.records import Ranges
from jobs.tensors.binary import to_bytes
from jobs.tensors.datatypes import name_of
from workers.child.arrays import Array
from workers.child.failures import OutputInvalid
from workers.child.items import Opened

T = TypeVar("T")
Row = Mapping[str, Array]
"""One item's outputs, without batch dimension."""


def json_frame(one: Opened, answers: Sequence[tuple[int, bytes]]) -> bytes:
    """`answers`: (position, JSON), ascending."""
    header = ResultHeader(kind="json", **_common(one, ranges.pack(position for position, _ in answers)))
    return frames.pack(header, [answer for _, answer in answers])


def rows_frame(one: Opened, outputs: Mapping[str, Array]) -> bytes:
    """`outputs`: {name: array [items, …]} of all items of `one`, whose shapes are alike."""
    if any(datatype_of(name, array) == "BYTES" for name, array in outputs.items()):
        return ragged_frames(one, list(zip(one.positions(), rows_of(outputs), strict=True)))
    return RowsFrames(outputs).frame(one, 0, one.count)


class RowsFrames:
    """Result frames of consecutive items of one batch, cut from its outputs without copying or looking at an item."""

    def __init__(self, outputs: Mapping[str, Array]) -> None:
        """`outputs`: {name: array [items, …]}, none of them BYTES."""
        self._columns = {
            name: Column(name, datatype_of(name, array), array.shape[1:]) for name, array in outputs.items()
        }
        self._data = {name: memoryview(to_bytes(array)) for name, array in outputs.items()}
        self._row = {name: array.dtype.itemsize * math.prod(array.shape[1:]) for name, array in outputs.items()}
        self._all = tuple(self._columns.values())

    def frame(self, one: Opened, start: int, stop: int) -> bytes:
        """Rows [start, stop) of the batch, which are the items of `one`."""
        columns = self._all if one.header.outputs is None else tuple(_wanted(one.header, self._columns).values())
        header = ResultHeader(kind="rows", columns=columns, **_common(one, one.spans))
        parts = []
        for column in columns:
            row = self._row[column.name]
            parts.append(self._data[column.name][start * row : stop * row])
        return frames.pack(header, parts)


def ragged_frames(one: Opened, rows: Sequence[tuple[int, Row]]) -> bytes:
    """`rows`: (position, outputs), ascending. One frame for each stretch of items with the same outputs."""
    wanted = [(position, _wanted(one.header, row)) for position, row in rows]
    return b"".join(_ragged(one, list(alike)) for _, alike in groupby(wanted, key=lambda pair: _signature(pair[1])))


def _ragged(one: Opened, rows: Sequence[tuple[int, Row]]) -> bytes:
    columns = tuple(Column(name, datatype, (-1,) * rank) for name, datatype, rank in _signature(rows[0][1]))
    header = ResultHeader(
        kind="ragged",
        columns=columns,
        shapes=tuple(tuple(array.shape for array in row.values()) for _, row in rows),
        **_common(one, ranges.pack(position for position, _ in rows)),
    )
    return frames.pack(header, [to_bytes(array) for _, row in rows for array in row.values()])


def _signature(row: Row) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, datatype_of(name, array), array.ndim) for name, array in row.items())


def datatype_of(name: str, array: Array) -> str:
    datatype = name_of(array.dtype)
    if datatype is None:
        raise OutputInvalid(f"output {name} is of dtype {array.dtype}, which no tensor datatype stands for")
    return datatype


def _wanted(header: PayloadHeader, outputs: Mapping[str, T]) -> Mapping[str, T]:
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
    return {"items": items, "ids": ids, "attempts": one.attempts + 1}


def rows_of(outputs: Mapping[str, Array]) -> Iterator[Row]:
    """Item by item."""
    count = len(next(iter(outputs.values()))) if outputs else 0
    return ({name: np.asarray(array[at]) for name, array in outputs.items()} for at in range(count))
