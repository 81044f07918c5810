"""Items into a session and answers out of it, without a supervisor: for the self-test and for trying one item."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jobs import frames, ranges
from jobs.errors import BatchyardError
from jobs.frames import NO_PARAMETERS, Column, PayloadHeader
from jobs.tensors.binary import from_bytes
from jobs.tensors.decode import ItemsDecoder
from jobs.tensors.encode import tensors_json
from workers.child.session import Session
from workers.wire import BatchError, Failure, Run, Segment

Answer = Any
"""{name: array} where the result frame holds tensors, else the JSON value."""


class CallFailed(BatchyardError):
    """The model did not answer; `reason` says why as an item's error would."""

    def __init__(self, reason: Failure | BatchError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class RefusedItem(BatchyardError):
    """An item that the API would not take: (index, pointer, detail) of the first finding."""

    def __init__(self, index: int, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer.lstrip('/') or 'the item'}: {detail}")
        self.index = index


class Caller:
    """Runs items given as JSON values in one batch."""

    def __init__(self, session: Session) -> None:
        spec = session.spec
        self._session = session
        self._decoder = ItemsDecoder(spec.inputs, spec.axes) if spec.input == "tensors" else None

    def answers(self, items: Sequence[Any]) -> list[Answer]:
        """One an item. Raises CallFailed for the first that has none, RefusedItem for what is no input of the model."""
        return read_answers(self._run(items, None))

    def json(self, item: Any, parameters: Mapping[str, Any] | None = None) -> bytes:
        """The one item's answer as `/results` has it in `output`."""
        return answer_json(self._run([item], parameters))

    def _run(self, items: Sequence[Any], parameters: Mapping[str, Any] | None) -> bytes:
        run = Run(0, (Segment(((0, len(items)),), 0),))
        done, parts = self._session.run(run, [memoryview(self._payload(items, parameters))], lambda stage: None)
        if done.error is not None:
            raise CallFailed(done.error)
        if done.failures:
            raise CallFailed(done.failures[0])
        return parts[done.results[0]]

    def _payload(self, items: Sequence[Any], parameters: Mapping[str, Any] | None) -> bytes:
        whole = ((0, len(items)),)
        raws = [msgspec.json.encode(item) for item in items]
        given = msgspec.Raw(msgspec.json.encode(parameters)) if parameters else NO_PARAMETERS
        if self._decoder is None:
            return frames.pack(PayloadHeader("json", whole, parameters=given), raws)
        decoded = self._decoder.decode(raws)
        if isinstance(decoded, list):
            raise RefusedItem(decoded[0].index or 0, decoded[0].pointer, decoded[0].detail)
        shapes = decoded.shapes(0, len(items))
        header = PayloadHeader(decoded.kind, whole, parameters=given, columns=decoded.columns, shapes=shapes)
        return frames.pack(header, decoded.parts(0, len(items)))


def read_answers(result: bytes) -> list[Answer]:
    """The answers in a part of a Done message, in the order written."""
    answers: list[Answer] = []
    for header, parts in frames.unpack_results(result):
        count = ranges.count(header.items)
        if header.kind == "json":
            answers += [msgspec.json.decode(part) for part in parts]
        elif header.kind == "rows":
            columns = {
                column.name: from_bytes(part, column.datatype, (count, *column.shape))
                for column, part in zip(header.columns, parts, strict=True)
            }
            answers += [{name: array[row] for name, array in columns.items()} for row in range(count)]
        else:
            width = len(header.columns)
            answers += [
                {
                    column.name: from_bytes(parts[row * width + at], column.datatype, header.shapes[row][at])
                    for at, column in enumerate(header.columns)
                }
                for row in range(count)
            ]
    return answers


def answer_json(result: bytes) -> bytes:
    """The JSON of a result frame's only item."""
    header, parts = next(frames.unpack_results(result))
    if header.kind == "json":
        return bytes(parts[0])
    shapes = header.shapes[0] if header.shapes else tuple(column.shape for column in header.columns)
    columns = [Column(c.name, c.datatype, shape) for c, shape in zip(header.columns, shapes, strict=True)]
    return tensors_json(columns, parts)
