"""The intake over the in-process stream: routing, settling, pausing, passing what cannot be decoded."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from jobs import messages
from jobs.crash import CrashPoints
from jobs.records import ChunkMessage, ChunkRef
from jobs.states import Priority
from jobs.stream import Record
from jobs.streams.memory import MemoryStream
from workers.held import HeldChunk
from workers.intake import Intake
from workers.offsets import OffsetTracker

AT = datetime(2026, 11, 30, tzinfo=UTC)
PATIENCE = 10.0


@dataclass
class Told:
    """Stands for the publisher: what was settled."""

    refs: list[ChunkRef] = field(default_factory=list)

    def settled(self, refs: Sequence[ChunkRef]) -> None:
        self.refs += refs


class Bench:
    def __init__(self) -> None:
        self.stream = MemoryStream(partitions=1)
        self.publisher = Told()
        self.routed: list[HeldChunk] = []
        self.bad: list[tuple[int, str]] = []
        self.refuse: Callable[[HeldChunk], bool] = lambda chunk: False
        self.intake = Intake(
            self.stream,
            "default",
            self._route,
            self.publisher,  # type: ignore[arg-type]
            lambda record, reason: self._keep(record, reason),
            CrashPoints(),
        )

    def _route(self, chunks: list[HeldChunk]) -> list[HeldChunk]:
        returned = [chunk for chunk in chunks if self.refuse(chunk)]
        self.routed += [chunk for chunk in chunks if not self.refuse(chunk)]
        return returned

    def _keep(self, record: Record, reason: str) -> None:
        self.bad.append((record.offset, reason))

    def publish(self, *chunks: ChunkMessage) -> None:
        self.stream.publish("default", list(messages.encode(chunks)))

    def committed(self) -> int:
        """Where another worker of the group would begin: the records it would read are counted down from the end."""
        partition = self.stream._topics["default"].partitions[0]
        return partition.committed.get("workers", 0)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            threading.Event().wait(0.005)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.intake.stop()
    made.intake.close()


def chunk(seq: int, model: str = "m", payload: bytes = b"payload") -> ChunkMessage:
    return ChunkMessage(
        "job_1", seq, 0, "acme", model, "1", Priority.NORMAL, 1, False, 0, 3, timedelta(seconds=30), AT, None, None,
        None, payload,
    )  # fmt: skip


def test_chunks_of_a_record_are_routed_and_their_offset_waits_for_all_of_them(bench: Bench) -> None:
    bench.publish(chunk(0), chunk(1))
    bench.intake.start()
    bench.until(lambda: len(bench.routed) == 2)
    assert [held.message.seq for held in bench.routed] == [0, 1]
    bench.intake.settle(bench.routed[:1])
    bench.publish(chunk(2))
    bench.until(lambda: len(bench.routed) == 3)
    assert bench.committed() == 0
    bench.intake.settle(bench.routed[1:])
    bench.until(lambda: bench.committed() == 2)
    assert bench.publisher.refs == [held.message.ref for held in bench.routed]


def test_what_nobody_takes_is_settled_at_once(bench: Bench) -> None:
    bench.refuse = lambda held: held.message.model == "unknown"
    bench.publish(chunk(0, "unknown"))
    bench.intake.start()
    bench.until(lambda: bench.committed() == 1)
    assert bench.routed == []
    assert bench.publisher.refs == [ChunkRef("job_1", 0, 0)]


def test_a_record_that_cannot_be_decoded_is_kept_and_passed(bench: Bench) -> None:
    bench.stream.publish("default", [b"nothing of ours"])
    bench.publish(chunk(0))
    bench.intake.start()
    bench.until(lambda: len(bench.routed) == 1)
    ((offset, reason),) = bench.bad
    assert offset == 0
    assert reason
    bench.intake.settle(bench.routed)
    bench.until(lambda: bench.committed() == 2)


def test_a_partition_with_too_much_that_is_open_is_paused_and_goes_on_at_half(bench: Bench) -> None:
    bench.intake._tracker = OffsetTracker(max_chunks=4)
    for seq in range(4):
        bench.publish(chunk(seq))
    bench.intake.start()
    bench.until(lambda: len(bench.routed) == 4)
    bench.until(lambda: bench.intake._full == {0})
    bench.publish(chunk(4))
    bench.intake.settle(bench.routed[:1])
    progress = bench.intake.last_progress
    bench.until(lambda: bench.intake.last_progress > progress + 0.05)
    assert len(bench.routed) == 4
    bench.intake.settle(bench.routed[1:2])
    bench.until(lambda: len(bench.routed) == 5)


def test_the_last_commit_is_made_when_it_closes() -> None:
    bench = Bench()
    bench.publish(chunk(0))
    bench.intake.start()
    bench.until(lambda: len(bench.routed) == 1)
    bench.intake.stop()
    bench.intake.settle(bench.routed)
    bench.intake.close()
    assert bench.committed() == 1


def test_a_router_that_fails_ends_neither_the_thread_nor_the_commits(bench: Bench) -> None:
    def fail(held: HeldChunk) -> bool:
        raise RuntimeError("no")

    bench.refuse = fail
    bench.publish(chunk(0))
    bench.intake.start()
    bench.until(lambda: bench.committed() == 1)
    bench.refuse = lambda held: False
    bench.publish(chunk(1))
    bench.until(lambda: [held.message.seq for held in bench.routed] == [1])
