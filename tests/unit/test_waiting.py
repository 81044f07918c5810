"""The waiting rule and what it learns from; a whole service on a virtual clock."""

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.batch import Batch, Limits, Span
from batcher.forming import Batcher
from batcher.waiting import Arrivals, Cost, worth_waiting

WALL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

sizes = st.floats(1, 200)
seconds = st.floats(0, 0.1)


@given(queued=sizes, expected=sizes, gap=seconds, overhead=seconds, per_item=st.floats(0, 0.01))
def test_it_waits_exactly_if_that_ends_the_items_sooner_in_sum(
    queued: float, expected: float, gap: float, overhead: float, per_item: float
) -> None:
    first = overhead + per_item * queued
    now = queued * first + expected * (first + overhead + per_item * expected)
    wait = (queued + expected) * (gap + overhead + per_item * (queued + expected))
    if abs(now - wait) > 1e-6 * (now + wait):
        assert worth_waiting(queued, expected, gap, overhead, per_item) == (wait < now)


def test_cost_finds_the_line() -> None:
    cost, chance = Cost(), random.Random(1)
    for _ in range(300):
        size = chance.randint(1, 64)
        cost.observe(size, 0.001 + 0.00002 * size)
    assert cost.overhead == pytest.approx(0.001, rel=1e-6)
    assert cost.per_item == pytest.approx(0.00002, rel=1e-6)
    assert cost.estimate(64) == pytest.approx(0.00228, rel=1e-6)


def test_cost_forgets_what_used_to_be() -> None:
    cost, chance = Cost(), random.Random(2)
    for overhead in (0.001, 0.003):
        for _ in range(500):
            size = chance.randint(1, 32)
            cost.observe(size, overhead + 0.0001 * size)
    assert cost.overhead == pytest.approx(0.003, rel=0.02)


def test_cost_of_one_size_only_says_nothing_about_overhead() -> None:
    cost = Cost()
    for _ in range(50):
        cost.observe(16, 0.002)
    assert cost.overhead == 0.0
    assert cost.estimate(16) == pytest.approx(0.002)


def test_cost_keeps_the_overhead_once_learned_when_sizes_stop_differing() -> None:
    cost = Cost()
    for size in (1, 8, 32, 64) * 20:
        cost.observe(size, 0.001 + 0.00001 * size)
    for _ in range(2_000):
        cost.observe(64, 0.001 + 0.00001 * 64)
    assert cost.overhead == pytest.approx(0.001, rel=0.05)


def test_a_stall_hardly_moves_the_cost() -> None:
    cost = Cost()
    for size in (1, 8, 32, 64) * 20:
        cost.observe(size, 0.001 + 0.00001 * size)
    cost.observe(32, 30.0)
    assert cost.estimate(32) < 0.0015


@given(st.lists(st.tuples(st.integers(-1, 100), st.floats(allow_nan=True, allow_infinity=True)), max_size=60))
def test_cost_is_never_negative_whatever_it_is_told(readings: list[tuple[int, float]]) -> None:
    cost = Cost()
    for size, took in readings:
        cost.observe(size, took)
    assert cost.overhead >= 0.0
    assert cost.per_item >= 0.0


def test_arrivals_learn_how_many_come_how_often() -> None:
    arrivals = Arrivals(longest=1.0)
    assert arrivals.expected(0.0) is None
    for number in range(50):
        for _ in range(3):
            arrivals.offered(4, number * 0.002)
    known = arrivals.expected(49 * 0.002)
    assert known is not None
    assert known[0] == pytest.approx(12.0)
    assert known[1] == pytest.approx(0.002, rel=0.05)
    assert arrivals.expected(49 * 0.002 + 0.01) is None  # overdue: nothing is expected any more


def test_arrivals_forget_a_quiet_night_soon() -> None:
    arrivals = Arrivals(longest=0.02)
    at = 0.0
    for gap in (*[0.001] * 20, 30_000.0, *[0.001] * 20):
        at += gap
        arrivals.offered(1, at)
    known = arrivals.expected(at)
    assert known is not None
    assert known[1] < 0.005


# -- a service on a virtual clock


class Service:
    """Jobs of some items in chunks of 64, a closed loop of clients, one engine that takes batches two deep."""

    def __init__(self, limits: Limits, cost: Callable[[int], float], *, path: float, lead: float = 0.0002) -> None:
        self.batcher = Batcher(limits)
        self.cost = cost
        self.path = path  # seconds from a result to the offer of the client's next job
        self.lead = lead
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.flying: list[tuple[Batch, float]] = []  # (batch, when it will be done), at most two
        self.sizes: list[int] = []
        self.waits: list[float] = []  # of items, from offer to forming
        self.left: dict[str, int] = {}
        self.asked_at = -1.0

    def at(self, when: float, call: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, call))

    def post(self, job: str, items: int, again: Callable[[], None] | None = None) -> None:
        self.left[job] = items
        self.again = again
        for start in range(0, items, 64):
            stop = min(items, start + 64)
            self.batcher.offer(Span(object(), job, "t", "normal", start, stop, "k", offered_at=self.now))
        self.ask()

    def ask(self) -> None:
        while len(self.flying) < 2:
            free_at = self.flying[-1][1] if self.flying else None
            answer = self.batcher.next(self.now, WALL + timedelta(seconds=self.now), free_at, self.lead)
            if not isinstance(answer, Batch):
                if answer.until is not None:
                    self.at(answer.until, self.ask)
                return
            self.sizes.append(answer.size)
            self.waits += [self.now - span.offered_at for span in answer.spans for _ in range(span.count)]
            starts = max(self.now + self.lead, free_at or 0.0)
            done = starts + self.cost(answer.size)
            self.flying.append((answer, done))
            self.at(done, lambda batch=answer, took=done - starts: self.done(batch, took))  # type: ignore[misc]

    def done(self, batch: Batch, took: float) -> None:
        self.flying.pop(0)
        self.batcher.observe(batch.size, took, took)
        for span in batch.spans:
            self.left[span.job] -= span.count
            if not self.left[span.job] and self.again:
                self.at(self.now + self.path, self.again)
        self.ask()

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, call = heapq.heappop(self.events)
            call()


def closed_loop(service: Service, jobs: int, items: int, seconds: float) -> None:
    numbers = iter(range(10**9))

    def again() -> None:
        service.post(f"job_{next(numbers)}", items, again)

    for _ in range(jobs):
        again()
    service.run(seconds)


@pytest.mark.parametrize("path", [0.0, 0.001, 0.005])
def test_jobs_of_100_fill_the_batches_of_a_saturated_engine(path: float) -> None:
    service = Service(Limits(64, max_queue_delay=0.005), lambda size: 0.001 + 0.00002 * size, path=path)
    closed_loop(service, jobs=8, items=100, seconds=3.0)
    settled = service.sizes[len(service.sizes) // 4 :]
    assert sum(settled) / len(settled) > 0.95 * 64


def test_single_items_of_64_clients_fill_the_batches_of_a_slow_engine() -> None:
    """Like a transformer on one core: 10 ms a call, 3 ms an item, 64 clients with one item each, at most 32."""
    service = Service(Limits(32, max_queue_delay=0.005), lambda size: 0.007 + 0.003 * size, path=0.005)
    closed_loop(service, jobs=64, items=1, seconds=20.0)
    settled = service.sizes[len(service.sizes) // 4 :]
    assert sum(settled) / len(settled) > 0.9 * 32


def test_a_lone_item_now_and_then_is_never_held_back() -> None:
    service = Service(Limits(64, max_queue_delay=0.005), lambda size: 0.001 + 0.00002 * size, path=0.0)
    chance, at = random.Random(3), 0.0
    for number in range(500):
        at += 0.02 + chance.random() * 0.1
        service.at(at, lambda number=number: service.post(f"job_{number}", 1))  # type: ignore[misc]
    service.run(1e9)
    assert service.sizes == [1] * 500
    assert max(service.waits) == 0.0


@pytest.mark.parametrize("rate", [500, 2_000, 8_000])
def test_items_at_random_times_never_wait_longer_than_the_delay_for_an_engine_that_keeps_up(rate: int) -> None:
    limits = Limits(64, max_queue_delay=0.005)
    service = Service(limits, lambda size: 0.001 + 0.00002 * size, path=0.0)
    chance, at = random.Random(rate), 0.0
    for number in range(4_000):
        at += chance.expovariate(rate)
        service.at(at, lambda number=number: service.post(f"job_{number}", 1))  # type: ignore[misc]
    service.run(1e9)
    assert sum(service.sizes) == 4_000
    # A batch ahead in the engine, at most, besides the delay.
    assert max(service.waits) <= limits.max_queue_delay + 0.001 + 0.00002 * 64


def test_a_lone_item_is_not_held_back_however_dear_a_call_is() -> None:
    service = Service(Limits(64, max_queue_delay=0.005), lambda size: 0.050 + 0.001 * size, path=0.0)
    for size in (1, 8, 32) * 10:
        service.batcher.observe(size, 0.0, service.cost(size))
    for number in range(100):
        service.at(number * 0.2, lambda number=number: service.post(f"job_{number}", 1))  # type: ignore[misc]
    service.run(1e9)
    # The second of them cannot know yet that the first gap was no exception.
    assert max(service.waits[2:]) == 0.0


def mean_answer(delay: float) -> float:
    """Seconds from offer to answer: bursts of 6 items a millisecond apart, ten a second, and a call of 10 ms."""
    service = Service(Limits(8, max_queue_delay=delay), lambda size: 0.010 + 0.0001 * size, path=0.0)
    took: list[float] = []
    done = service.done

    def note(batch: Batch, seconds: float) -> None:
        took.extend(service.now - span.offered_at for span in batch.spans)
        done(batch, seconds)

    service.done = note  # type: ignore[method-assign]
    for size in (1, 2, 4, 8) * 5:
        service.batcher.observe(size, 0.0, service.cost(size))
    for number in range(600):
        when = number // 6 * 0.1 + number % 6 * 0.001
        service.at(when, lambda number=number: service.post(f"job_{number}", 1))  # type: ignore[misc]
    service.run(1e9)
    return sum(took) / len(took)


def test_waiting_ends_items_sooner_than_never_waiting_where_calls_are_dear() -> None:
    assert mean_answer(0.005) < 0.97 * mean_answer(0.0)
