"""The items of one batch, as they come out of the payload frames of its segments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs import frames, ranges
from jobs.frames import PayloadHeader
from jobs.models.spec import ModelSpec
from jobs.tensors.binary import from_bytes
from workers.child.collate import Array, Block, block_of
from workers.wire import Run, Segment, parameters_of


@dataclass(frozen=True, slots=True)
class Opened:
    """A segment with its payload unpacked."""

    number: int
    segment: Segment
    header: PayloadHeader
    parts: Sequence[memoryview]

    @property
    def count(self) -> int:
        return ranges.count(self.segment.positions)

    def positions(self) -> Iterator[int]:
        return ranges.indexes(self.segment.positions)


@dataclass(frozen=True, slots=True)
class Item:
    segment: int
    position: int
    value: Any  # JSON of a json model; {name: array without batch dimension} of a tensor model
    parameters: Mapping[str, Any]


def open_segments(run: Run, parts: Sequence[memoryview]) -> list[Opened]:
    opened = []
    for number, (segment, part) in enumerate(zip(run.segments, parts, strict=True)):
        header, inner = frames.unpack_payload(part)
        opened.append(Opened(number, segment, header, inner))
    return opened


def items_of(opened: Sequence[Opened], spec: ModelSpec) -> list[Item]:
    """Every item by itself: for models with a handler."""
    items: list[Item] = []
    for one in opened:
        header = one.header
        shared = parameters_of(spec.parameters, _object(header.parameters))
        for position in one.positions():
            own = header.item_parameters.get(position)
            parameters = parameters_of(shared, _object(own)) if own else shared
            items.append(Item(one.number, position, _value(one, position), parameters))
    return items


def _object(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    return msgspec.json.decode(raw) if raw else None


def _value(one: Opened, position: int) -> Any:
    if one.header.kind == "json":
        return msgspec.json.decode(one.parts[position])
    return {name: array[0] for name, array in _arrays(one, position, position + 1).items()}


def blocks_of(one: Opened, spec: ModelSpec) -> Iterator[Block]:
    """A tensor segment as blocks of equal shapes, without touching its items where they are all alike."""
    if one.header.kind == "rows":
        stretches: Iterator[tuple[int, int]] = iter(one.segment.positions)
    else:
        stretches = ((position, position + 1) for position in one.positions())
    for start, stop in stretches:
        yield block_of(_arrays(one, start, stop), spec.inputs, stop - start)


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
