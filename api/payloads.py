"""Cutting a job's inputs into the payload frames of its chunks.

A chunk holds at most `max_size` items of the model and `max_bytes` of them; one item above that is a chunk by itself,
whose frame is to lie in a blob.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from jobs import frames
from jobs.frames import Column, PayloadHeader

Shapes = tuple[tuple[tuple[int, ...], ...], ...]


class Inputs(Protocol):
    """The decoded inputs of a job, from which the parts of any run of consecutive items can be had."""

    kind: str  # json | rows | ragged
    columns: tuple[Column, ...]

    def sizes(self) -> Sequence[int]:
        """Bytes of each item."""

    def parts(self, start: int, stop: int) -> Sequence[bytes | memoryview]: ...

    def shapes(self, start: int, stop: int) -> Shapes: ...


class JsonInputs:
    """Verbatim JSON slices, an item each."""

    kind = "json"
    columns: tuple[Column, ...] = ()

    def __init__(self, raws: Sequence[msgspec.Raw]) -> None:
        self._raws = raws

    def sizes(self) -> Sequence[int]:
        return [len(raw) for raw in self._raws]

    def parts(self, start: int, stop: int) -> Sequence[bytes | memoryview]:
        return [memoryview(raw) for raw in self._raws[start:stop]]

    def shapes(self, start: int, stop: int) -> Shapes:
        return ()


class Settings(msgspec.Struct, frozen=True, gc=False):
    """What all items of the job share, and what single ones have of their own."""

    parameters: msgspec.Raw | None = None
    item_parameters: Sequence[msgspec.Raw | None] | None = None
    ids: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None


class Cut(msgspec.Struct, frozen=True, gc=False):
    start: int  # items [start, stop) of the job
    stop: int
    frame: bytes


def cut(inputs: Inputs, settings: Settings, max_size: int, max_bytes: int) -> Iterator[Cut]:
    """The chunks of a job, in item order."""
    sizes = list(inputs.sizes())
    if settings.item_parameters is not None:
        sizes = [
            size + (len(own) if own is not None else 0)
            for size, own in zip(sizes, settings.item_parameters, strict=True)
        ]
    if settings.ids is not None:
        sizes = [size + len(name) for size, name in zip(sizes, settings.ids, strict=True)]
    for start, stop in _runs(sizes, max_size, max_bytes):
        yield Cut(start, stop, _frame(inputs, settings, start, stop))


def _runs(sizes: Sequence[int], max_size: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    start = held = 0
    for index, size in enumerate(sizes):
        if index > start and (index - start >= max_size or held + size > max_bytes):
            yield start, index
            start, held = index, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def _frame(inputs: Inputs, settings: Settings, start: int, stop: int) -> bytes:
    own: dict[int, msgspec.Raw] = {}
    if settings.item_parameters is not None:
        own = {at: raw for at, raw in enumerate(settings.item_parameters[start:stop]) if raw is not None}
    header = PayloadHeader(
        kind=inputs.kind,
        items=((start, stop),),
        ids=None if settings.ids is None else settings.ids[start:stop],
        parameters=settings.parameters or frames.NO_PARAMETERS,
        item_parameters=own,
        outputs=settings.outputs,
        columns=inputs.columns,
        shapes=inputs.shapes(start, stop),
    )
    return frames.pack(header, inputs.parts(start, stop))
