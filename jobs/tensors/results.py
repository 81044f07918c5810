"""Result frames -> result lines in item order: what `/results` sends."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import msgspec
import orjson

from jobs import frames, ranges
from jobs.clock import to_micros
from jobs.errors import Undecodable
from jobs.frames import Column, ResultBlob, ResultHeader
from jobs.states import Outcome
from jobs.store import ResultChunk
from jobs.tensors.encode import rows_json, tensor_json

Sign = Callable[[str], tuple[str, datetime]]
"""A blob's key -> a link that reads it, and when that expires."""

_STATES = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.EXPIRED: "expired",
}
_REASONS = {
    "queue_timeout": "not started within its queue time",
    "deadline_exceeded": "not finished before the job's deadline",
    "source_unreadable": "the stored input cannot be read",
}


class Line(msgspec.Struct, frozen=True, gc=False):
    """One item's result: `text` is its JSON, without the line's end."""

    index: int
    state: str
    text: bytes
    output: bytes | None  # the JSON of `output` alone, where the item succeeded
    error: bytes | None  # likewise of `error`


def lines(
    version: str,
    chunks: Sequence[ResultChunk],
    sign: Sign,
    *,
    from_index: int = 0,
    limit: int | None = None,
    state: str | None = None,
) -> Iterator[Line]:
    """The lines of items from `from_index` on, in item order, up to the first one that is not decided yet.
    Undecodable when a result that must be there is not, or is no frame.

    An item that moved on to a child chunk has the child's line. `limit` counts items; `state` leaves out others.
    """
    found: dict[int, Callable[[], Line]] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.seq):
        _collect(version, chunk, sign, found)
    index = from_index
    stop = None if limit is None else from_index + limit
    while index in found and (stop is None or index < stop):
        line = found[index]()
        if state is None or line.state == state:
            yield line
        index += 1


def only(chunk: ResultChunk, sign: Sign) -> tuple[bytes | None, bytes | None] | None:
    """The JSON of output and error of a chunk's one item; None where no frame of its own has them (see `lines`)."""
    if chunk.results is None or len(chunk.outcomes) != 1:
        return None
    frame = next(frames.unpack_results(chunk.results), None)
    if frame is None:
        return None
    header, parts = frame
    if header.state == "succeeded":
        return _outputs(header, parts, sign)(0), None
    return None, orjson.dumps(_error(header.errors[0])) if header.errors else None


def _collect(version: str, chunk: ResultChunk, sign: Sign, found: dict[int, Callable[[], Line]]) -> None:
    suffix = b'"version":' + orjson.dumps(version) + b"}"
    if chunk.results:
        for header, parts in frames.unpack_results(chunk.results):
            _frame(header, parts, sign, suffix, found)
    unlined: Sequence[str] | None = chunk.ids
    for position, (index, outcome) in enumerate(zip(ranges.indexes(chunk.items), chunk.outcomes, strict=True)):
        if outcome in (Outcome.PENDING, Outcome.MOVED) or index in found:
            continue
        name = str(index) if unlined is None else unlined[position]
        line = _without_frame(index, name, Outcome(outcome), chunk, suffix)
        found[index] = lambda line=line: line  # type: ignore[misc]


def _frame(
    header: ResultHeader,
    parts: Sequence[memoryview],
    sign: Sign,
    suffix: bytes,
    found: dict[int, Callable[[], Line]],
) -> None:
    output = _outputs(header, parts, sign)
    error = [orjson.dumps(_error(e)) for e in header.errors]
    attempts = b'"attempts":%d,' % header.attempts

    def line(position: int, index: int) -> Line:
        name = str(index) if header.ids is None else header.ids[position]
        answer = output(position) if header.state == "succeeded" else None
        failure = error[position] if position < len(error) else None
        text = b'{"index":%d,"id":%b,"state":"%b","output":%b,"error":%b,%b%b' % (
            index,
            orjson.dumps(name),
            header.state.encode(),
            b"null" if answer is None else answer,
            b"null" if failure is None else failure,
            attempts,
            suffix,
        )
        return Line(index, header.state, text, answer, failure)

    for position, index in enumerate(ranges.indexes(header.items)):
        found[index] = lambda position=position, index=index: line(position, index)  # type: ignore[misc]


def _error(error: frames.ResultError) -> dict[str, object]:
    return {
        "code": error.code,
        "message": error.message,
        "permanent": error.permanent,
        "stage": error.stage,
    }


def _outputs(header: ResultHeader, parts: Sequence[memoryview], sign: Sign) -> Callable[[int], bytes]:
    """Position -> the JSON of that item's output."""
    columns = header.columns
    count = ranges.count(header.items)

    def linked(position: int, column: str) -> ResultBlob | None:
        return next((blob for blob in header.blobs.get(position, ()) if blob.name == column), None)

    def json_output(position: int) -> bytes:
        blob = linked(position, "")
        return bytes(parts[position]) if blob is None else orjson.dumps({"link": _link(blob, sign)})

    if header.kind == "json":
        return json_output
    if header.kind == "rows":
        members = [rows_json(column, part, count) for column, part in zip(columns, parts, strict=True)]
        if len(members) == 1:
            only = members[0]
            return lambda position: b"{" + only(position) + b"}"
        return lambda position: b"{" + b",".join(member(position) for member in members) + b"}"

    def ragged_output(position: int) -> bytes:
        members = []
        for at, column in enumerate(columns):
            blob = linked(position, column.name)
            if blob is None:
                shaped = Column(column.name, column.datatype, header.shapes[position][at])
                members.append(tensor_json(shaped, parts[position * len(columns) + at]))
            else:
                members.append(orjson.dumps(column.name) + b":" + orjson.dumps({"link": _link(blob, sign)}))
        return b"{" + b",".join(members) + b"}"

    return ragged_output


def _link(blob: ResultBlob, sign: Sign) -> dict[str, object]:
    url, expires_at = sign(blob.key)
    until = expires_at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{to_micros(expires_at) // 1000 % 1000:03d}Z"
    return {"url": url, "expires_at": until, "sha256": blob.sha256, "bytes": blob.bytes}


def _without_frame(index: int, name: str, outcome: Outcome, chunk: ResultChunk, suffix: bytes) -> Line:
    """An item that no worker wrote of: a stop or a clock ended it, or its input could not even be read."""
    if outcome is Outcome.SUCCEEDED:
        raise Undecodable(f"item {index} succeeded and its result is not there")
    error = None
    if outcome in (Outcome.EXPIRED, Outcome.FAILED):
        expired = outcome is Outcome.EXPIRED
        code = chunk.reason or ("deadline_exceeded" if expired else "source_unreadable")
        message = _REASONS.get(code, code.replace("_", " "))
        stage = "queue" if expired else "decode"
        error = orjson.dumps({"code": code, "message": message, "permanent": True, "stage": stage})
    state = _STATES[outcome]
    text = b'{"index":%d,"id":%b,"state":"%b","output":null,"error":%b,"attempts":%d,%b' % (
        index,
        orjson.dumps(name),
        state.encode(),
        error or b"null",
        chunk.attempts,
        suffix,
    )
    return Line(index, state, text, None, error)
