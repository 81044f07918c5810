"""The items of one batch, as they come out of the payload frames of its segments."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from jobs import frames, ranges
from jobs.frames import PayloadHeader
from jobs.models.spec import ModelSpec
from jobs.records import Ranges
from jobs.tensors.binary import from_bytes
from jobs.tensors.datatypes import size_of
from workers.child.arrays import Array
from workers.child.collate import Block, block_of
from workers.wire import Run, parameters_of

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Opened:
    """Some items of a segment, its payload unpacked."""

    segment: int
    attempts: int
    spans: Ranges  # positions in the chunk
    header: PayloadHeader
    parts: Sequence[memoryview]

    @property
    def count(self) -> int:
        return ranges.count(self.spans)

    def positions(self) -> Iterator[int]:
        return ranges.indexes(self.spans)


@dataclass(frozen=True, slots=True)
class Piece:
    """What goes through the model in one call: items with equal parameters, no more than it can batch."""

    opened: Sequence[Opened]
    parameters: Parameters  # the model's, the job's, the item's own

    @property
    def count(self) -> int:
        return sum(one.count for one in self.opened)

    def where(self) -> Iterator[tuple[int, int]]:
        """(segment, position) of each item, in order."""
        return ((one.segment, position) for one in self.opened for position in one.positions())


def open_run(run: Run, parts: Sequence[memoryview]) -> list[Opened]:
    opened = []
    for number, (segment, part) in enumerate(zip(run.segments, parts, strict=True)):
        header, inner = frames.unpack_payload(part)
        opened.append(Opened(number, segment.attempts, segment.positions, header, inner))
    return opened


def pieces(opened: Sequence[Opened], spec: ModelSpec, most: int) -> Iterator[Piece]:
    """A batch has one batch key, so this is one piece, unless the model takes fewer items at a time."""
    for parameters, alike in _by_parameters(opened, spec.parameters):
        if sum(one.count for one in alike) <= most:
            yield Piece(alike, parameters)
        else:
            for some in _cut(alike, most):
                yield Piece(some, dict(parameters))


def _by_parameters(opened: Sequence[Opened], defaults: Mapping[str, Any]) -> list[tuple[Parameters, list[Opened]]]:
    groups: list[tuple[Parameters, list[Opened]]] = []
    for one in opened:
        header = one.header
        if not header.item_parameters:
            _add(groups, parameters_of(defaults, _object(header.parameters)), one)
            continue
        for position in one.positions():
            own = header.item_parameters.get(position)
            merged = parameters_of(defaults, _object(header.parameters), _object(own))
            _add(groups, merged, replace(one, spans=((position, position + 1),)))
    return groups


def _add(groups: list[tuple[Parameters, list[Opened]]], parameters: Parameters, one: Opened) -> None:
    alike = next((group for known, group in groups if known == parameters), None)
    if alike is None:
        groups.append((parameters, [one]))
    elif alike[-1].segment == one.segment:
        alike[-1] = replace(one, spans=ranges.pack((*alike[-1].positions(), *one.positions())))
    else:
        alike.append(one)


def _cut(opened: Sequence[Opened], most: int) -> Iterator[list[Opened]]:
    some: list[Opened] = []
    room = most
    for one in opened:
        positions = list(one.positions())
        while positions:
            taken, positions = positions[:room], positions[room:]
            some.append(replace(one, spans=ranges.pack(taken)))
            room -= len(taken)
            if not room:
                yield some
                some, room = [], most
    if some:
        yield some


def _object(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    return msgspec.json.decode(raw) if raw else None


def values_of(piece: Piece) -> list[Any]:
    """Every item by itself: the JSON of a json model, {name: array without batch dimension} of a tensor model."""
    values: list[Any] = []
    for one in piece.opened:
        if one.header.kind == "json":
            values += [msgspec.json.decode(one.parts[position]) for position in one.positions()]
        else:
            values += [
                {name: array[0] for name, array in _arrays(one, position, position + 1).items()}
                for position in one.positions()
            ]
    return values


def blocks_of(one: Opened, spec: ModelSpec) -> list[Block]:
    """A tensor segment as blocks of equal shapes, without touching its items where they are all alike."""
    if one.header.kind == "rows":
        stretches = list(one.spans)
    else:
        stretches = [(position, position + 1) for position in one.positions()]
    return [block_of(_arrays(one, start, stop), spec.inputs, spec.axes, stop - start) for start, stop in stretches]


def joined_rows(opened: Sequence[Opened], spec: ModelSpec) -> Block | None:
    """All items of all segments as one block, its columns joined as bytes; None where shapes or kinds differ."""
    columns = opened[0].header.columns
    if any(one.header.kind != "rows" or one.header.columns != columns for one in opened):
        return None
    count = sum(one.count for one in opened)
    arrays: dict[str, Array] = {}
    for at, column in enumerate(columns):
        size = size_of(column.datatype)
        if size is None:
            return None
        row = size * math.prod(column.shape)
        pieces = [one.parts[at][start * row : stop * row] for one in opened for start, stop in one.spans]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        arrays[column.name] = from_bytes(data, column.datatype, (count, *column.shape))
    return block_of(arrays, spec.inputs, spec.axes, count)


def _arrays(one: Opened, start: int, stop: int) -> dict[str, Array]:
    """{name: array [stop - start, …]} of positions [start, stop); of a ragged frame one position at a time."""
    header = one.header
    if header.kind == "rows":
        total = ranges.count(header.items)
        return {
            column.name: from_bytes(part, column.datatype, (total, *column.shape))[start:stop]
            for column, part in zip(header.columns, one.parts, strict=True)
        }
    width = len(header.columns)
    return {
        column.name: from_bytes(one.parts[start * width + at], column.datatype, (1, *header.shapes[start][at]))
        for at, column in enumerate(header.columns)
    }
