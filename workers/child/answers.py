"""Answers -> the result frame of each segment."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from jobs import frames, ranges
from jobs.frames import Column, PayloadHeader, ResultHeader
from jobs.records import Ranges
from jobs.tensors.binary import to_bytes
from jobs.tensors.datatypes import name_of
from workers.child.arrays import Array
from workers.child.failures import OutputInvalid
from workers.child.items import Opened

Row = Mapping[str, Array]
"""One item's outputs, without batch dimension."""


def json_frame(one: Opened, answers: Sequence[tuple[int, bytes]]) -> bytes:
    """`answers`: (position, JSON), ascending."""
    header = ResultHeader(kind="json", **_common(one, ranges.pack(position for position, _ in answers)))
    return frames.pack(header, [answer for _, answer in answers])


def rows_frame(one: Opened, outputs: Mapping[str, Array]) -> bytes:
    """`outputs`: {name: array [items, …]} of all items of `one`, whose shapes are alike."""
    wanted = _wanted(one.header, outputs)
    if any(datatype_of(name, array) == "BYTES" for name, array in wanted.items()):
        rows = [(position, {n: a[at] for n, a in wanted.items()}) for at, position in enumerate(one.positions())]
        return ragged_frames(one, rows)
    columns = tuple(Column(name, datatype_of(name, array), array.shape[1:]) for name, array in wanted.items())
    header = ResultHeader(kind="rows", columns=columns, **_common(one, one.spans))
    return frames.pack(header, [to_bytes(array) for array in wanted.values()])


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
    return {"items": items, "ids": ids, "attempts": one.attempts + 1}


def rows_of(outputs: Mapping[str, Array]) -> Iterator[Row]:
    """Item by item."""
    count = len(next(iter(outputs.values()))) if outputs else 0
    return ({name: np.asarray(array[at]) for name, array in outputs.items()} for at in range(count))
