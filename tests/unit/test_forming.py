"""The batcher under any order of offers, discards and questions: a reference that counts every item beside it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batcher.batch import Batch, Closed, Limits, Span, Wait
from batcher.forming import Batcher

WALL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

Item = tuple[str, int, int]
"""(job, chunk, position)"""


class Chunk:
    def __init__(self, job: str, number: int) -> None:
        self.job = job
        self.number = number
        self.size = 0


def items_of(span: Span) -> Iterator[Item]:
    for position in range(span.start, span.stop):
        yield (span.job, span.chunk.number, position)


def elements(lengths: tuple[int, ...]) -> int:
    return lengths[0]


class AnyOrder(RuleBasedStateMachine):
    """Every item is in exactly one place: queued, in one batch, discarded or dropped."""

    @initialize(
        max_size=st.integers(1, 12),
        preferred=st.sets(st.integers(1, 16), max_size=2),
        padded=st.one_of(st.none(), st.integers(4, 60)),
        delay=st.sampled_from([0.0, 0.005, 0.05]),
    )
    def start(self, max_size: int, preferred: set[int], padded: int | None, delay: float) -> None:
        self.limits = Limits(max_size, tuple(preferred), delay, padded)
        self.batcher = Batcher(self.limits, elements)
        self.now = 0.0
        self.chunks: list[Chunk] = []
        self.queued: dict[Item, Span] = {}
        self.gone: set[Item] = set()
        self.taken: dict[tuple[str, Any, bool], list[Item]] = {}

    @property
    def wall(self) -> datetime:
        return WALL + timedelta(seconds=self.now)

    @rule(seconds=st.sampled_from([0.0, 0.00005, 0.001, 0.004, 0.02, 0.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        job=st.integers(0, 3),
        fresh=st.booleans(),
        counts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        key=st.integers(0, 2),
        length=st.integers(1, 12),
        alone=st.sampled_from([False, False, False, True]),
        queue_clock=st.one_of(st.none(), st.sampled_from([0.001, 0.03, 1.0])),
        total_clock=st.one_of(st.none(), st.sampled_from([0.002, 0.04, 1.0])),
    )
    def offer(
        self,
        job: int,
        fresh: bool,
        counts: list[int],
        key: int,
        length: int,
        alone: bool,
        queue_clock: float | None,
        total_clock: float | None,
    ) -> None:
        name = f"job_{job}"
        own = [chunk for chunk in self.chunks if chunk.job == name]
        if fresh or not own:
            own = [Chunk(name, len(self.chunks))]
            self.chunks += own
        chunk = own[-1]
        for offset, count in enumerate(counts):
            span = Span(
                chunk=chunk,
                job=name,
                tenant=f"tenant_{job % 2}",
                priority="normal",
                start=chunk.size,
                stop=chunk.size + count,
                key=(key + offset) % 3,
                lengths=(length + offset,),
                alone=alone,
                offered_at=self.now,
                queue_deadline_at=None if queue_clock is None else self.wall + timedelta(seconds=queue_clock),
                deadline_at=None if total_clock is None else self.wall + timedelta(seconds=total_clock),
            )
            chunk.size += count
            self.batcher.offer(span)
            self.queued |= dict.fromkeys(items_of(span), span)

    @rule(size=st.integers(1, 12), seconds=st.floats(0, 0.1))
    def observe(self, size: int, seconds: float) -> None:
        self.batcher.observe(size, seconds / 2, seconds)

    @rule(job=st.integers(0, 3))
    def discard(self, job: int) -> None:
        self.leave(self.batcher.discard(f"job_{job}"))
        assert all(item[0] != f"job_{job}" for item in self.queued)

    @precondition(lambda self: self.chunks)
    @rule(pick=st.integers(0, 50))
    def discard_chunk(self, pick: int) -> None:
        chunk = self.chunks[pick % len(self.chunks)]
        self.leave(self.batcher.discard_chunk(chunk))
        assert all(item[1] != chunk.number for item in self.queued)

    @rule(busy=st.booleans())
    def ask(self, busy: bool) -> None:
        answer = self.batcher.next(self.now, self.wall, self.now + 0.01 if busy else None, 0.002)
        self.settle(answer)
        if isinstance(answer, Wait):
            assert (answer.until is None) == (not self.queued)
            assert answer.until is None or answer.until > self.now
            if self.queued and not busy:
                # With an idle engine nothing waits beyond the delay.
                oldest = min(span.offered_at for span in self.queued.values())
                assert answer.until is not None
                assert answer.until <= oldest + self.limits.max_queue_delay

    @rule()
    def drain(self) -> None:
        """An idle engine that asks whenever it is told to gets everything, within a delay for each batch."""
        for _ in range(len(self.queued) + 1):
            started = self.now
            while isinstance(answer := self.batcher.next(self.now, self.wall), Wait) and answer.until is not None:
                self.now = answer.until
            assert self.now - started <= self.limits.max_queue_delay + 1e-9
            self.settle(answer)
            if isinstance(answer, Wait):
                break
        assert not self.queued

    def settle(self, answer: Batch | Wait) -> None:
        dropped = [drop.span for drop in self.batcher.dropped()]
        for span in dropped:
            clocks = [at for at in (span.queue_deadline_at, span.deadline_at) if at is not None]
            assert min(clocks) <= self.wall
        self.leave(dropped)
        if isinstance(answer, Batch):
            self.check(answer)
            self.leave(list(answer.spans))

    def check(self, batch: Batch) -> None:
        assert 1 <= batch.size <= self.limits.max_size
        originals = [self.queued[item] for span in batch.spans for item in items_of(span)]
        assert len(originals) == batch.size
        assert {span.key for span in originals} == {batch.key}
        if any(span.alone for span in originals):
            assert batch.size == 1
        longest = max(span.lengths[0] for span in originals)
        assert batch.elements == sum(span.lengths[0] for span in originals)
        assert batch.padded_elements == longest * batch.size
        padded = self.limits.max_padded_elements
        if padded is not None:
            assert batch.padded_elements <= padded or batch.size == 1
        if batch.closed is Closed.FULL and not originals[0].alone:
            assert batch.size in {self.limits.max_size, *self.limits.preferred_sizes}
        for span in originals:
            assert span.deadline_at is None or span.deadline_at > self.wall
        for span in batch.spans:
            line = self.taken.setdefault((span.job, span.key, span.alone), [])
            line += items_of(span)
            assert line == sorted(line, key=lambda item: (item[1], item[2])), "not first in, first out within a job"

    def leave(self, spans: list[Span]) -> None:
        for span in spans:
            for item in items_of(span):
                assert item not in self.gone, f"{item} left twice"
                del self.queued[item]
                self.gone.add(item)

    @invariant()
    def counted(self) -> None:
        if hasattr(self, "batcher"):
            assert self.batcher.queued == len(self.queued)
            oldest = min((span.offered_at for span in self.queued.values()), default=None)
            assert self.batcher.oldest == oldest


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


# -- how long it takes


def plain(chunk: Chunk, start: int, stop: int, key: Any = "k", job: str | None = None) -> Span:
    return Span(chunk, job or chunk.job, "t", "normal", start, stop, key)


def best_of(tries: int, call: Any) -> float:
    """The shortest of some runs, in seconds: what the code costs when nobody else has the processor."""
    readings = []
    for _ in range(tries):
        started = time.perf_counter()
        call()
        readings.append(time.perf_counter() - started)
    return min(readings)


@pytest.mark.parametrize("keys", [1, 7])
def test_a_batch_costs_the_same_with_100_000_spans_queued(keys: int) -> None:
    def batch_seconds(queued: int) -> float:
        batcher = Batcher(Limits(64))
        for number in range(queued):
            batcher.offer(plain(Chunk(f"job_{number}", number), 0, 1, number % keys))
        return best_of(20, lambda: batcher.next(1.0, WALL))

    few, many = batch_seconds(2_000 * keys), batch_seconds(100_000)
    assert many < 5 * few
    assert many < 0.002


def test_waiting_costs_the_same_with_100_000_spans_queued() -> None:
    batcher = Batcher(Limits(200_000))
    for number in range(100_000):
        batcher.offer(plain(Chunk(f"job_{number}", number), 0, 1))
    assert isinstance(batcher.next(0.0, WALL, engine_free_at=9.0), Wait)
    assert best_of(20, lambda: batcher.next(0.0, WALL, engine_free_at=9.0)) < 0.0002


def test_a_job_of_100_000_items_is_discarded_by_its_spans() -> None:
    batcher = Batcher(Limits(64))
    for number in range(100_000):
        batcher.offer(plain(Chunk(f"job_{number}", number), 0, 1))
    big = Chunk("job_big", 100_000)
    for start in range(0, 100_000, 64):
        batcher.offer(plain(big, start, min(start + 64, 100_000)))
    started = time.perf_counter()
    spans = batcher.discard("job_big")
    assert time.perf_counter() - started < 0.1
    assert sum(span.count for span in spans) == 100_000
    assert batcher.queued == 100_000


def test_clocks_of_spans_that_left_take_no_room() -> None:
    batcher = Batcher(Limits(8))
    late = WALL + timedelta(days=1)
    chunk = Chunk("job_stays", -1)
    batcher.offer(Span(chunk, "job_stays", "t", "normal", 0, 1, "k", deadline_at=late))
    for number in range(5_000):
        other = Chunk(f"job_{number}", number)
        batcher.offer(Span(other, other.job, "t", "normal", 0, 1, "k", deadline_at=late))
        batcher.discard(other.job)
    (group,) = batcher._offered._groups.values()
    assert len(group.clocks) < 200
