"""The batcher's rules one by one: when a batch closes, why, and what it holds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batcher.batch import Batch, Closed, Limits, Span, Wait
from batcher.forming import Batcher
from jobs.states import ErrorCode

WALL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DELAY = 0.005


class Chunk:
    """A handle, opaque to the batcher."""


def span(count: int = 1, *, job: str = "job_a", start: int = 0, chunk: Any = None, **given: Any) -> Span:
    fields: dict[str, Any] = {"tenant": "t", "priority": "normal", "key": "k", "offered_at": 0.0, **given}
    return Span(chunk=chunk or Chunk(), job=job, start=start, stop=start + count, **fields)


def batch_of(answer: Batch | Wait) -> Batch:
    assert isinstance(answer, Batch), answer
    return answer


def items(batch: Batch) -> list[tuple[str, int]]:
    return [(part.job, position) for part in batch.spans for position in range(part.start, part.stop)]


def test_nothing_offered_waits_for_an_offer() -> None:
    assert Batcher(Limits(8)).next(0.0, WALL) == Wait(None)


def test_a_lone_item_is_served_at_once() -> None:
    batcher = Batcher(Limits(8))
    batcher.offer(span())
    batch = batch_of(batcher.next(0.0, WALL))
    assert (batch.size, batch.closed, batch.key) == (1, Closed.IDLE, "k")
    assert batcher.queued == 0
    assert batcher.next(0.0, WALL) == Wait(None)


def test_a_full_batch_goes_at_once_even_while_the_engine_is_busy() -> None:
    batcher = Batcher(Limits(8))
    batcher.offer(span(20))
    batch = batch_of(batcher.next(0.0, WALL, engine_free_at=1.0))
    assert (batch.size, batch.closed) == (8, Closed.FULL)
    assert batcher.queued == 12


def test_a_span_is_split_over_batches_in_order() -> None:
    batcher, chunk = Batcher(Limits(8)), Chunk()
    batcher.offer(span(20, chunk=chunk))
    batches = [batch_of(batcher.next(0.0, WALL)) for _ in range(3)]
    assert [batch.size for batch in batches] == [8, 8, 4]
    assert [item for batch in batches for item in items(batch)] == [("job_a", position) for position in range(20)]
    assert all(part.chunk is chunk for batch in batches for part in batch.spans)


def test_while_the_engine_is_busy_the_batch_stays_open_until_it_is_nearly_free() -> None:
    batcher = Batcher(Limits(8))
    batcher.offer(span())
    assert batcher.next(0.0, WALL, engine_free_at=1.0, lead=0.25) == Wait(0.75)
    batcher.offer(span(2, job="job_b", offered_at=0.5))
    assert batcher.next(0.5, WALL, engine_free_at=1.0, lead=0.25) == Wait(0.75)
    batch = batch_of(batcher.next(0.75, WALL, engine_free_at=1.0, lead=0.25))
    assert (batch.size, batch.closed) == (3, Closed.IDLE)


def test_keys_never_share_a_batch_and_the_older_goes_first() -> None:
    batcher = Batcher(Limits(8))
    for position in range(6):
        batcher.offer(span(start=position, key="even" if position % 2 == 0 else "odd"))
    first, second = batch_of(batcher.next(0.0, WALL)), batch_of(batcher.next(0.0, WALL))
    assert (first.key, [position for _, position in items(first)]) == ("even", [0, 2, 4])
    assert (second.key, [position for _, position in items(second)]) == ("odd", [1, 3, 5])


def test_with_other_work_to_do_an_idle_engine_does_not_wait() -> None:
    batcher = waiting_pays(Limits(8, max_queue_delay=DELAY))
    batcher.offer(span(offered_at=1.0))
    assert isinstance(batcher.next(1.0, WALL), Wait)
    batcher.offer(span(job="job_b", key="other", offered_at=1.0))
    assert batch_of(batcher.next(1.0, WALL)).key == "k"


def test_another_key_that_is_full_goes_first_while_a_batch_is_held_open() -> None:
    batcher = Batcher(Limits(4, max_queue_delay=DELAY))
    batcher.offer(span(job="job_a", key="slow"))
    batcher.offer(span(8, job="job_b", key="fast"))
    assert batch_of(batcher.next(0.0, WALL, engine_free_at=1.0)).key == "fast"
    # Not for ever: once the older item has waited for the delay, it goes.
    batch = batch_of(batcher.next(DELAY, WALL, engine_free_at=1.0))
    assert (batch.key, batch.closed) == ("slow", Closed.DELAY)
    assert batch_of(batcher.next(DELAY, WALL, engine_free_at=1.0)).key == "fast"


def test_alone_spans_give_batches_of_one_and_mix_with_nothing() -> None:
    batcher = Batcher(Limits(8, preferred_sizes=(4,)))
    batcher.offer(span(2))
    batcher.offer(span(3, job="job_b", alone=True))
    sizes = [(items(batch), batch.closed) for batch in drain(batcher)]
    assert ([("job_a", 0), ("job_a", 1)], Closed.DELAY) in sizes
    alone = [entry for entry in sizes if entry[0][0][0] == "job_b"]
    assert alone == [([("job_b", position)], Closed.FULL) for position in range(3)]


# -- preferred sizes


def test_an_idle_engine_takes_the_largest_preferred_size_that_is_there() -> None:
    batcher = Batcher(Limits(32, preferred_sizes=(8, 4)))
    batcher.offer(span(13))
    assert [(batch.size, batch.closed) for batch in (batch_of(batcher.next(0.0, WALL)) for _ in range(2))] == [
        (8, Closed.FULL),
        (4, Closed.FULL),
    ]
    assert batcher.next(0.0, WALL) == Wait(DELAY)
    batch = batch_of(batcher.next(DELAY, WALL))
    assert (batch.size, batch.closed) == (1, Closed.DELAY)


def test_a_busy_engine_leaves_the_batch_open_beyond_a_preferred_size() -> None:
    batcher = Batcher(Limits(32, preferred_sizes=(8,)))
    batcher.offer(span(13))
    assert batcher.next(0.0, WALL, engine_free_at=1.0) == Wait(1.0)
    assert batch_of(batcher.next(1.0, WALL, engine_free_at=1.0)).size == 8


def test_a_key_with_a_preferred_size_goes_while_another_waits_for_one() -> None:
    batcher = Batcher(Limits(32, preferred_sizes=(4,)))
    batcher.offer(span(2))
    batcher.offer(span(5, job="job_b", key="other"))
    batch = batch_of(batcher.next(0.0, WALL))
    assert (batch.key, batch.size) == ("other", 4)
    assert batcher.next(0.0, WALL) == Wait(DELAY)


# -- padded elements


def product(lengths: tuple[int, ...]) -> int:
    total = 1
    for length in lengths:
        total *= length
    return total


def test_the_padded_element_limit_closes_a_batch() -> None:
    batcher = Batcher(Limits(32, max_padded_elements=40), product)
    for position, length in enumerate((5, 5, 10, 10, 10)):
        batcher.offer(span(start=position, lengths=(length,)))
    first = batch_of(batcher.next(0.0, WALL, engine_free_at=9.0))
    assert (first.size, first.closed, first.elements, first.padded_elements) == (4, Closed.MEMORY, 30, 40)
    second = batch_of(batcher.next(0.0, WALL))
    assert (second.size, second.closed, second.elements, second.padded_elements) == (1, Closed.IDLE, 10, 10)


def test_an_item_beyond_the_limit_goes_alone() -> None:
    batcher = Batcher(Limits(32, max_padded_elements=40), product)
    batcher.offer(span(2, lengths=(100,)))
    batcher.offer(span(start=2, lengths=(5,)))
    batches = drain(batcher)
    assert [(batch.size, batch.closed) for batch in batches] == [
        (1, Closed.MEMORY),
        (1, Closed.MEMORY),
        (1, Closed.IDLE),
    ]


def test_a_span_is_split_at_the_limit() -> None:
    batcher = Batcher(Limits(32, max_padded_elements=40), product)
    batcher.offer(span(7, lengths=(10,)))
    assert [(batch.size, batch.closed) for batch in drain(batcher)] == [(4, Closed.MEMORY), (3, Closed.IDLE)]


def test_axes_are_padded_each_to_its_own_longest() -> None:
    batcher = Batcher(Limits(8), product)
    batcher.offer(span(1, lengths=(2, 7)))
    batcher.offer(span(1, start=1, lengths=(3, 5)))
    batch = batch_of(batcher.next(0.0, WALL))
    assert (batch.elements, batch.padded_elements) == (14 + 15, 2 * 3 * 7)


def test_the_limit_counts_each_axis_at_its_longest() -> None:
    batcher = Batcher(Limits(8, max_padded_elements=60), product)
    for position, lengths in enumerate(((2, 10), (6, 1), (1, 1))):
        batcher.offer(span(start=position, lengths=lengths))
    # Together they would be padded to (6, 10): one such item fills the limit.
    assert [(batch.size, batch.padded_elements) for batch in drain(batcher)] == [(1, 20), (2, 12)]


def test_the_limit_is_cut_down_to_a_preferred_size() -> None:
    batcher = Batcher(Limits(32, preferred_sizes=(4,), max_padded_elements=60), product)
    batcher.offer(span(7, lengths=(10,)))
    assert batch_of(batcher.next(0.0, WALL)).size == 4


# -- waiting


def waiting_pays(limits: Limits, gap: float = 0.001) -> Batcher:
    """A batcher that has learned: a call costs 10 ms and almost nothing an item; 2 items arrive each ``gap``."""
    batcher = Batcher(limits)
    for size in (1, 2, 4, 8) * 4:
        batcher.observe(size, 0.0, 0.010 + 0.00001 * size)
    for arrival in range(20):
        batcher.offer(span(2, offered_at=1.0 - gap * (20 - arrival)))
    batcher.clear()
    return batcher


def test_an_idle_engine_waits_for_company_that_ends_the_items_sooner() -> None:
    batcher = waiting_pays(Limits(8, max_queue_delay=DELAY))
    batcher.offer(span(offered_at=1.0))
    answer = batcher.next(1.0, WALL)
    assert isinstance(answer, Wait)
    assert answer.until == pytest.approx(1.001, abs=1e-4)
    batch = batch_of(batcher.next(answer.until, WALL))  # nobody came
    assert (batch.size, batch.closed) == (1, Closed.DELAY)


def test_it_does_not_wait_when_a_call_is_cheap() -> None:
    batcher = waiting_pays(Limits(8, max_queue_delay=DELAY))
    for size in (1, 8) * 200:
        batcher.observe(size, 0.0, 0.0001)
    batcher.offer(span(offered_at=1.0))
    assert batch_of(batcher.next(1.0, WALL)).closed is Closed.IDLE


def test_it_never_waits_beyond_the_delay_after_the_oldest_was_offered() -> None:
    batcher = waiting_pays(Limits(64, max_queue_delay=DELAY))
    now, first = 1.0, 1.0
    while True:
        batcher.offer(span(offered_at=now))
        answer = batcher.next(now, WALL)
        if isinstance(answer, Batch):
            break
        assert answer.until is not None
        assert answer.until <= first + DELAY
        now = min(now + 0.0009, answer.until)
    assert now <= first + DELAY + 1e-9
    assert answer.closed is Closed.DELAY


def test_without_a_delay_it_never_waits() -> None:
    batcher = waiting_pays(Limits(8, max_queue_delay=0.0))
    batcher.offer(span(offered_at=1.0))
    assert batch_of(batcher.next(1.0, WALL)).size == 1


# -- deadlines


def test_a_deadline_that_would_pass_while_waiting_closes_the_batch() -> None:
    batcher = Batcher(Limits(8), margin=0.010)
    batcher.offer(span(deadline_at=WALL + timedelta(milliseconds=110)))
    answer = batcher.next(0.0, WALL, engine_free_at=5.0)
    assert isinstance(answer, Wait)
    assert answer.until == pytest.approx(0.100)
    batch = batch_of(batcher.next(0.100, WALL + timedelta(milliseconds=100), engine_free_at=5.0))
    assert batch.closed is Closed.DEADLINE


def test_the_learned_cost_is_kept_free_before_a_deadline() -> None:
    batcher = Batcher(Limits(8), margin=0.0)
    batcher.observe(1, 0.0, 0.030)
    batcher.offer(span(queue_deadline_at=WALL + timedelta(milliseconds=100)))
    answer = batcher.next(0.0, WALL, engine_free_at=5.0)
    assert isinstance(answer, Wait)
    assert answer.until == pytest.approx(0.070)


@pytest.mark.parametrize(
    ("clock", "code"),
    [("queue_deadline_at", ErrorCode.QUEUE_TIMEOUT), ("deadline_at", ErrorCode.DEADLINE_EXCEEDED)],
)
def test_an_expired_item_is_dropped_when_popped_and_told_once(clock: str, code: ErrorCode) -> None:
    batcher = Batcher(Limits(8))
    late = span(3, **{clock: WALL})
    batcher.offer(late)
    batcher.offer(span(job="job_b"))
    assert items(batch_of(batcher.next(0.0, WALL))) == [("job_b", 0)]
    assert [(dropped.span, dropped.code) for dropped in batcher.dropped()] == [(late, code)]
    assert batcher.dropped() == []
    assert batcher.queued == 0


def test_only_the_expired_leave_a_group() -> None:
    batcher = Batcher(Limits(8))
    for position in range(6):
        batcher.offer(span(start=position, deadline_at=WALL + timedelta(seconds=position % 3)))
    batch = batch_of(batcher.next(0.0, WALL + timedelta(seconds=1)))
    assert [position for _, position in items(batch)] == [2, 5]
    assert sorted(dropped.span.start for dropped in batcher.dropped()) == [0, 1, 3, 4]


def test_the_queue_clock_of_a_chunk_stops_when_its_first_item_is_taken() -> None:
    batcher, chunk = Batcher(Limits(2)), Chunk()
    batcher.offer(span(2, chunk=chunk, queue_deadline_at=WALL + timedelta(seconds=1)))
    batcher.offer(span(1, start=2, chunk=chunk, queue_deadline_at=WALL + timedelta(seconds=1)))
    batch_of(batcher.next(0.0, WALL))
    assert items(batch_of(batcher.next(9.0, WALL + timedelta(seconds=9)))) == [("job_a", 2)]
    assert batcher.dropped() == []


# -- taking out


def test_a_stopped_job_is_taken_out_whole() -> None:
    batcher = Batcher(Limits(4))
    batcher.offer(span(6))
    batcher.offer(span(2, job="job_b"))
    batch_of(batcher.next(0.0, WALL))
    assert [(part.start, part.stop) for part in batcher.discard("job_a")] == [(4, 6)]
    assert batcher.discard("job_a") == []
    assert batcher.discard("unknown") == []
    assert items(batch_of(batcher.next(0.0, WALL))) == [("job_b", 0), ("job_b", 1)]


def test_a_refused_chunk_is_taken_out_and_others_of_its_job_stay() -> None:
    batcher, refused = Batcher(Limits(4)), Chunk()
    batcher.offer(span(2, chunk=refused))
    batcher.offer(span(2, start=2, chunk=refused, key="other"))
    batcher.offer(span(2, start=10))
    assert [(part.start, part.stop) for part in batcher.discard_chunk(refused)] == [(0, 2), (2, 4)]
    assert batcher.discard_chunk(refused) == []
    assert [position for _, position in items(batch_of(batcher.next(0.0, WALL)))] == [10, 11]


def test_clear_gives_everything_in_order() -> None:
    batcher = Batcher(Limits(4))
    batcher.offer(span(2))
    batcher.offer(span(3, job="job_b", key="other"))
    assert batcher.oldest == 0.0
    assert [part.job for part in batcher.clear()] == ["job_a", "job_b"]
    assert (batcher.queued, batcher.oldest) == (0, None)
    assert batcher.next(0.0, WALL) == Wait(None)


def test_what_cannot_be_offered_is_named() -> None:
    with pytest.raises(ValueError, match=r"span of job job_a has no items: \[0, 0\)"):
        Batcher(Limits(4)).offer(span(0))
    with pytest.raises(ValueError, match="max_size is 0"):
        Batcher(Limits(0))


def drain(batcher: Batcher, now: float = 1.0) -> list[Batch]:
    """Everything there is, with an idle engine and every delay up."""
    batches: list[Batch] = []
    while isinstance(answer := batcher.next(now, WALL), Batch):
        batches.append(answer)
    return batches
