"""From what an engine answered to what is written: decides items of a held chunk and builds its Finish. Pure, except
that large outputs are put into blobs by a function that is handed in."""

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from jobs import frames, ranges
from jobs.frames import ResultError, ResultHeader
from jobs.records import Attempt, BlobRef, Finish, ItemError, NewChunk, Ranges
from jobs.states import ErrorCode, Outcome
from workers import payloads
from workers.held import HeldChunk, Line
from workers.isolation import Fate, Retry, backoff, judge_failure
from workers.wire import BatchError, Failure

Shrink = Callable[[HeldChunk, bytes], bytes]
"""Moves the outputs of a result frame that are too large for a row into blobs; gives the frame to keep."""


def succeed(chunk: HeldChunk, positions: Ranges, answers: bytes) -> Ranges:
    """Items that should have their answers in these result frames. Gives the positions that have none; frames with
    answers of other items are not taken at all."""
    decided = chunk.decided
    answered: list[tuple[int, int]] = []
    size = 0
    for header, parts in frames.unpack_results(answers):
        answered += header.items
        size += sum(map(len, parts))
    missing: Ranges = ()
    if ranges.count(tuple(answered)) != ranges.count(positions):
        got = set(ranges.indexes(tuple(answered)))
        missing = ranges.pack(p for p in ranges.indexes(positions) if _index(chunk, p) not in got)
        if ranges.count(positions) - ranges.count(missing) != len(got):
            return positions
        positions = ranges.pack(p for p in ranges.indexes(positions) if _index(chunk, p) in got)
    for start, stop in positions:
        decided.outcomes[start:stop] = bytes((Outcome.SUCCEEDED,)) * (stop - start)
        decided.undecided -= stop - start
    decided.frames.append(answers)
    decided.output_bytes += size
    return missing


def fail(chunk: HeldChunk, failure: Failure, fatal: bool, worker: str, at: datetime) -> Fate:
    """An item that failed by itself: charged, and tried again or given up."""
    message, decided = chunk.message, chunk.decided
    fate = judge_failure(Retry(message.attempts, message.max_attempts), failure.permanent, fatal)
    error = ItemError(failure.code, failure.message, failure.permanent, failure.stage)
    if fate is Fate.FAIL:
        _decide(chunk, failure.position, Outcome.FAILED)
        decided.failed.append(Line(failure.position, error, message.attempts + 1))
    elif chunk.stopped:
        _decide(chunk, failure.position, Outcome.CANCELLED)
    else:
        _decide(chunk, failure.position, Outcome.MOVED)
        decided.retried.append((failure.position, failure.retry_after))
    decided.attempts.append(
        Attempt(
            item=_index(chunk, failure.position), number=message.attempts + 1, worker=worker, version=message.version,
            error=error, traceback=failure.traceback, at=at,
        )
    )  # fmt: skip
    return fate


def refuse(chunk: HeldChunk, positions: Sequence[int], error: ItemError) -> None:
    """Items that fail without having run and without a charge: the version cannot serve them, or their payload is
    unreadable."""
    for position in positions:
        _decide(chunk, position, Outcome.FAILED)
        chunk.decided.failed.append(Line(position, error, chunk.message.attempts))


def end(chunk: HeldChunk, positions: Sequence[int], error: ItemError | None) -> None:
    """Items that a stop ended: cancelled, or expired when there is an error to say so."""
    for position in positions:
        _decide(chunk, position, Outcome.CANCELLED if error is None else Outcome.EXPIRED)
        if error is not None:
            chunk.decided.expired.append(Line(position, error, chunk.message.attempts))


def send_back(chunk: HeldChunk, positions: Sequence[int]) -> None:
    """Items that go on, uncharged, in a child chunk that is due at once."""
    for position in positions:
        _decide(chunk, position, Outcome.MOVED)
    chunk.decided.returned.extend(positions)


def _decide(chunk: HeldChunk, position: int, outcome: Outcome) -> None:
    chunk.decided.outcomes[position] = outcome
    chunk.decided.undecided -= 1


def _index(chunk: HeldChunk, position: int) -> int:
    """The item's index in its job; its position where the payload could not be read."""
    if chunk.header is None:
        return position
    for start, stop in chunk.header.items:
        if position < stop - start:
            return start + position
        position -= stop - start
    raise IndexError(f"chunk {chunk.ref} has no item at its end + {position}")


def finish(chunk: HeldChunk, shrink: Shrink, now: datetime, chance: random.Random) -> Finish:
    """Of a chunk whose last item is decided."""
    decided = chunk.decided
    results = [shrink(chunk, frame) for frame in decided.frames]
    results += _lines(chunk, "failed", decided.failed)
    results += _lines(chunk, "expired", decided.expired)
    return Finish(
        ref=chunk.ref,
        outcomes=bytes(decided.outcomes),
        results=results[0] if len(results) == 1 else b"".join(results),
        children=_children(chunk, now, chance),
        attempts=tuple(decided.attempts),
        engine_seconds=decided.engine_seconds,
        output_bytes=decided.output_bytes,
    )


def bare_finish(chunk: HeldChunk) -> Finish:
    """What is written where nothing better can be: every item of the chunk failed, without a line of its own."""
    return Finish(ref=chunk.ref, outcomes=bytes((Outcome.FAILED,)) * chunk.message.count, results=b"")


def _lines(chunk: HeldChunk, state: str, lines: list[Line]) -> list[bytes]:
    """A frame for each number of attempts. None where the payload, and with it the ids, could not be read."""
    header = chunk.header
    if header is None:
        return []
    by_attempts: dict[int, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.position):
        by_attempts.setdefault(line.attempts, []).append(line)
    return [
        frames.pack(
            ResultHeader(
                kind="none",
                items=ranges.select(header.items, [line.position for line in group]),
                state=state,
                ids=None if header.ids is None else tuple(header.ids[line.position] for line in group),
                errors=tuple(
                    ResultError(line.error.code, line.error.message, line.error.permanent, line.error.stage)
                    for line in group
                ),
                attempts=attempts,
            ),
            (),
        )
        for attempts, group in by_attempts.items()
    ]


def _children(chunk: HeldChunk, now: datetime, chance: random.Random) -> tuple[NewChunk, ...]:
    """One chunk for each pause, and one for what goes back uncharged."""
    decided = chunk.decided
    if not decided.retried and not decided.returned:
        return ()
    by_pause: dict[float | None, list[int]] = {}
    for position, asked in decided.retried:
        by_pause.setdefault(asked, []).append(position)
    attempts = chunk.message.attempts
    children = [
        _child(chunk, positions, True, attempts + 1, now + backoff(attempts + 1, asked, chance))
        for asked, positions in by_pause.items()
    ]
    if decided.returned:
        children.append(_child(chunk, decided.returned, chunk.alone, attempts, None))
    return tuple(children)


def _child(chunk: HeldChunk, positions: list[int], alone: bool, attempts: int, not_before: datetime | None) -> NewChunk:
    positions = sorted(positions)
    whole: bytes | BlobRef = chunk.message.payload
    assert chunk.header is not None
    if len(positions) < chunk.message.count:
        assert chunk.payload is not None
        whole = payloads.cut(chunk.payload, positions)
    return NewChunk(
        seq=0,
        items=ranges.select(chunk.header.items, positions),
        payload=whole,
        alone=alone,
        attempts=attempts,
        parent=chunk.message.seq,
        not_before=not_before,
    )


def unavailable(message: str) -> ItemError:
    """For the items of a version that says ``unavailable: fail``."""
    return ItemError(ErrorCode.ENGINE_ERROR, message, False, "run")


def deadline_exceeded() -> ItemError:
    return ItemError(ErrorCode.DEADLINE_EXCEEDED, "the job's time was up before this item ran", True, "queue")


def alone_failure(position: int, error: BatchError) -> Failure:
    """Of the one item of a call that raised."""
    return Failure(0, position, error.code, error.message, error.permanent, error.stage, error.traceback)


def unanswered(position: int) -> Failure:
    """Of an item that the engine process left out of its answer."""
    return Failure(0, position, ErrorCode.ENGINE_ERROR, "the engine gave no answer for this item", False, "run")


def unreadable(position: int, lasting: bool) -> Failure:
    """Of an item whose stored input could not be read before it was sent."""
    return Failure(0, position, ErrorCode.SOURCE_UNREADABLE, "the stored input cannot be read", lasting, "decode")


def fatal_failure(position: int, overran: bool, limit: timedelta, detail: str) -> Failure:
    """Of the one item that was running when its process died or was cut."""
    if overran:
        said = f"still running after {limit.total_seconds():g} s (run_seconds)"
        return Failure(0, position, ErrorCode.RUN_TIMEOUT, said, False, "run")
    return Failure(0, position, ErrorCode.PROCESS_DIED, f"the engine process died: {detail}", False, "run")
