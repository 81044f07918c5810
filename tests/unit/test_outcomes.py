"""From what became of the items of a chunk to its Finish."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from jobs import frames
from jobs.frames import PayloadHeader, ResultHeader
from jobs.records import BlobRef, ChunkMessage, ItemError, NewChunk
from jobs.states import ErrorCode, Outcome, Priority
from workers import outcomes
from workers.held import HeldChunk
from workers.isolation import Fate
from workers.offsets import Origin
from workers.wire import Failure

NOW = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)
BOOM = ItemError(ErrorCode.ENGINE_ERROR, "boom", False, "run")
Items = tuple[tuple[int, int], ...]


def held(
    items: Items = ((0, 4),), *, attempts: int = 0, max_attempts: int = 3, ids: Sequence[str] | None = None,
    blob: bool = False,
) -> HeldChunk:  # fmt: skip
    count = sum(stop - start for start, stop in items)
    header = PayloadHeader("json", items, None if ids is None else tuple(ids))
    parts = [b'{"at":%d}' % at for start, stop in items for at in range(start, stop)]
    payload = BlobRef("inputs/1", 9, "0" * 64) if blob else frames.pack(header, parts)
    message = ChunkMessage(
        job="job_1", seq=5, fence=0, tenant="acme", model="m", version="1", priority=Priority.NORMAL, count=count,
        alone=False, attempts=attempts, max_attempts=max_attempts, run_timeout=timedelta(seconds=30), created_at=NOW,
        queue_deadline_at=None, deadline_at=None, traceparent=None, payload=payload,
    )  # fmt: skip
    chunk = HeldChunk(message, Origin(0, 0, 1))
    chunk.header = header
    chunk.fence = 1
    return chunk


def failure(position: int, *, permanent: bool = False, after: float | None = None) -> Failure:
    return Failure(0, position, ErrorCode.HANDLER_ERROR, "boom", permanent, "predict", "Traceback", after)


def fail(
    chunk: HeldChunk, position: int, *, fatal: bool = False, permanent: bool = False, after: float | None = None
) -> Fate:
    return outcomes.fail(chunk, failure(position, permanent=permanent, after=after), fatal, "wrk_1", NOW)


def answers(items: Items) -> bytes:
    parts = [b"%d" % at for start, stop in items for at in range(start, stop)]
    return frames.pack(ResultHeader("json", items), parts)


def finish(chunk: HeldChunk) -> outcomes.Finish:
    assert chunk.decided.undecided == 0
    return outcomes.finish(chunk, lambda chunk, frame: frame, NOW, random.Random(1))


def items_of(child: NewChunk) -> list[int]:
    assert isinstance(child.payload, bytes)
    _, parts = frames.unpack_payload(child.payload)
    return [msgspec.json.decode(part)["at"] for part in parts]


def lines(results: bytes) -> list[ResultHeader]:
    return [header for header, _ in frames.unpack_results(results)]


S, F, C, X, M = (int(o) for o in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.MOVED))


def test_answers_of_parts_of_a_chunk_are_kept_one_after_another() -> None:
    chunk = held()
    assert outcomes.succeed(chunk, ((0, 1),), answers(((0, 1),))) == ()
    assert chunk.undecided() == [1, 2, 3]
    assert outcomes.succeed(chunk, ((1, 4),), answers(((1, 4),))) == ()
    done = finish(chunk)
    assert done.outcomes == bytes([S, S, S, S])
    assert done.results == answers(((0, 1),)) + answers(((1, 4),))
    assert (done.output_bytes, done.children, done.attempts) == (4, (), ())
    assert done.ref == chunk.ref
    assert done.ref.fence == 1


def test_items_without_an_answer_are_named_and_stay_undecided() -> None:
    chunk = held(((10, 14),))
    assert outcomes.succeed(chunk, ((0, 4),), answers(((10, 11), (12, 14)))) == ((1, 2),)
    assert chunk.undecided() == [1]


def test_answers_of_strangers_are_not_taken() -> None:
    chunk = held(((10, 14),))
    assert outcomes.succeed(chunk, ((0, 2),), answers(((10, 11), (50, 52)))) == ((0, 2),)
    assert chunk.decided.undecided == 4
    assert chunk.decided.frames == []


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "fatal", "permanent", "fate"),
    [
        (0, 3, False, False, Fate.RETRY),
        (1, 3, False, False, Fate.RETRY),
        (2, 3, False, False, Fate.FAIL),
        (0, 1, False, False, Fate.FAIL),
        (0, 3, True, False, Fate.RETRY),
        (1, 3, True, False, Fate.FAIL),
        (0, 3, False, True, Fate.FAIL),
    ],
)
def test_a_failure_is_charged_and_tried_again_until_its_attempts_are_used_up(
    attempts: int, max_attempts: int, fatal: bool, permanent: bool, fate: Fate
) -> None:
    chunk = held(((7, 8),), attempts=attempts, max_attempts=max_attempts)
    assert fail(chunk, 0, fatal=fatal, permanent=permanent) is fate
    done = finish(chunk)
    (attempt,) = done.attempts
    assert (attempt.item, attempt.number, attempt.worker, attempt.traceback) == (7, attempts + 1, "wrk_1", "Traceback")
    if fate is Fate.FAIL:
        assert done.outcomes == bytes([F])
        (line,) = lines(done.results)
        assert (line.state, line.items, line.attempts, line.errors[0].code) == (
            "failed", ((7, 8),), attempts + 1, ErrorCode.HANDLER_ERROR,
        )  # fmt: skip
    else:
        assert (done.outcomes, done.results) == (bytes([M]), b"")
        (child,) = done.children
        assert (child.alone, child.attempts, child.parent, child.items) == (True, attempts + 1, 5, ((7, 8),))
        assert child.not_before is not None
        assert NOW < child.not_before <= NOW + 1.2 * timedelta(seconds=2**attempts)


def test_a_failure_of_a_stopped_job_is_not_tried_again() -> None:
    chunk = held(((0, 1),))
    chunk.stopped = True
    fail(chunk, 0)
    done = finish(chunk)
    assert (done.outcomes, done.children, len(done.attempts)) == (bytes([C]), (), 1)


def test_every_way_at_once() -> None:
    chunk = held(((0, 2), (10, 16)), attempts=1, ids="abcdefgh")
    outcomes.succeed(chunk, ((0, 2),), answers(((0, 2),)))
    fail(chunk, 2, permanent=True)
    fail(chunk, 3)
    fail(chunk, 4, after=30.0)
    outcomes.end(chunk, [5], None)
    outcomes.end(chunk, [6], outcomes.deadline_exceeded())
    outcomes.send_back(chunk, [7])
    chunk.decided.engine_seconds = 0.25
    done = finish(chunk)
    assert done.outcomes == bytes([S, S, F, M, M, C, X, M])
    assert done.engine_seconds == 0.25
    assert [(line.state, line.items, line.ids, line.attempts) for line in lines(done.results)] == [
        ("succeeded", ((0, 2),), None, 1),
        ("failed", ((10, 11),), ("c",), 2),
        ("expired", ((14, 15),), ("g",), 1),
    ]
    soon, later, back = done.children
    assert [(c.items, items_of(c), c.alone, c.attempts, c.parent) for c in done.children] == [
        (((11, 12),), [11], True, 2, 5),
        (((12, 13),), [12], True, 2, 5),
        (((15, 16),), [15], False, 1, 5),
    ]
    assert soon.not_before is not None
    assert later.not_before == NOW + timedelta(seconds=30)
    assert back.not_before is None
    assert sum(child.count for child in done.children) == done.outcomes.count(M)


def test_retries_with_the_same_pause_travel_together() -> None:
    chunk = held()
    for position in (2, 0, 3):
        fail(chunk, position)
    outcomes.succeed(chunk, ((1, 2),), answers(((1, 2),)))
    (child,) = finish(chunk).children
    assert (child.items, items_of(child)) == (((0, 1), (2, 4)), [0, 2, 3])


def test_what_goes_back_stays_alone_if_it_was() -> None:
    chunk = held()
    chunk.alone = True
    outcomes.send_back(chunk, chunk.undecided())
    (child,) = finish(chunk).children
    assert (child.alone, child.attempts, child.not_before, child.payload) == (True, 0, None, chunk.message.payload)


def test_a_blob_is_passed_on_as_it_is() -> None:
    chunk = held(((3, 4),), blob=True)
    fail(chunk, 0)
    (child,) = finish(chunk).children
    assert child.payload == chunk.message.payload


def test_refused_items_fail_uncharged() -> None:
    chunk = held(((5, 7),), attempts=1)
    outcomes.refuse(chunk, [0, 1], BOOM)
    done = finish(chunk)
    assert (done.outcomes, done.attempts) == (bytes([F, F]), ())
    (line,) = lines(done.results)
    assert (line.items, line.attempts, [error.message for error in line.errors]) == (((5, 7),), 1, ["boom", "boom"])


def test_a_chunk_whose_payload_was_never_read_fails_without_lines() -> None:
    chunk = held(((5, 7),))
    chunk.header = None
    outcomes.refuse(chunk, [0, 1], BOOM)
    done = finish(chunk)
    assert (done.outcomes, done.results) == (bytes([F, F]), b"")


def test_the_bare_finish_fails_everything() -> None:
    chunk = held()
    outcomes.succeed(chunk, ((0, 2),), answers(((0, 2),)))
    done = outcomes.bare_finish(chunk)
    assert (done.ref, done.outcomes, done.results, done.children) == (chunk.ref, bytes([F] * 4), b"", ())


def test_large_outputs_are_shrunk_frame_by_frame() -> None:
    chunk = held(((0, 2),))
    for position in (0, 1):
        outcomes.succeed(chunk, ((position, position + 1),), answers(((position, position + 1),)))
    seen: list[bytes] = []

    def shrink(of: HeldChunk, frame: bytes) -> bytes:
        assert of is chunk
        seen.append(frame)
        return b"<%d>" % len(seen)

    done = outcomes.finish(chunk, shrink, NOW, random.Random(1))
    assert done.results == b"<1><2>"
    assert seen == [answers(((0, 1),)), answers(((1, 2),))]
