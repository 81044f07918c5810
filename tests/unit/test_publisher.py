"""The publisher: what is admitted is published after its commit, all else is left to the relay, and room is kept."""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from jobs import messages
from jobs.errors import Unavailable
from jobs.publisher import Publisher
from jobs.records import BlobRef, ChunkMessage, ChunkRef, NewChunk, NewJob
from jobs.states import Priority
from jobs.window import Window, WindowLimits

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PAIR = ("tenant_a", "mlp")


class RecordingStream:
    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.error: Exception | None = None
        self.during: Callable[[], None] = lambda: None

    def publish(self, pool: str, values: Sequence[bytes], lost: object = None) -> None:
        if self.error is not None:
            raise self.error
        self.during()
        self.records += [(pool, value) for value in values]

    @property
    def chunks(self) -> list[ChunkMessage]:
        return [chunk for _, value in self.records for chunk in messages.decode(value)]

    def consumer(self, pool: str, group: str = "workers") -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Bench:
    """A publisher with a window of 10 chunks, 5 for one (tenant, model)."""

    def __init__(self) -> None:
        self.stream = RecordingStream()
        self.seconds = 100.0
        self.pools = {"mlp": "default", "big": "gpu"}
        self.window = Window(WindowLimits(chunks=10, bytes=10_000))
        self.publisher = Publisher(
            self.stream,
            lambda model, version: self.pools.get(model),
            self.window,
            clock=lambda: NOW,
            monotonic=lambda: self.seconds,
        )
        self.woken = 0
        self.publisher.when_room(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def submit(self, *jobs: NewJob) -> list[NewJob]:
        """As the API and the ledger do: admit each, then one commit."""
        admitted = [self.publisher.admit(job) for job in jobs]
        self.publisher.committed(admitted)
        return admitted


@pytest.fixture
def bench() -> Bench:
    return Bench()


def new_job(name: str, chunks: int = 1, *, payload: bytes | BlobRef = b"x" * 100, **given: Any) -> NewJob:
    fields: dict[str, Any] = {
        "tenant": "tenant_a",
        "model": "mlp",
        "version": "1",
        "priority": Priority.NORMAL,
        "single": False,
        "created_at": NOW,
        "run_timeout": timedelta(seconds=30),
        "max_attempts": 3,
        "input_bytes": 100,
        **given,
    }
    cut = tuple(NewChunk(seq, ((seq * 64, seq * 64 + 64),), payload) for seq in range(chunks))
    return NewJob(id=f"job_{name}", chunks=cut, **fields)


def refs_of(job: NewJob, fence: int = 0) -> list[ChunkRef]:
    return [ChunkRef(job.id, chunk.seq, fence) for chunk in job.chunks]


def test_an_admitted_job_is_published_right_after_its_commit_with_all_a_worker_needs(bench: Bench) -> None:
    job = new_job(
        "a",
        2,
        priority=Priority.HIGH,
        queue_deadline_at=NOW + timedelta(seconds=60),
        deadline_at=NOW + timedelta(seconds=90),
        traceparent="00-1-2-01",
    )
    (admitted,) = bench.submit(job)
    assert admitted is job
    assert admitted.publish_now
    assert [(chunk.ref, chunk.count, chunk.payload) for chunk in bench.stream.chunks] == [
        (ChunkRef("job_a", 0, 0), 64, b"x" * 100),
        (ChunkRef("job_a", 1, 0), 64, b"x" * 100),
    ]
    first = bench.stream.chunks[0]
    for name in ("tenant", "model", "version", "priority", "max_attempts", "run_timeout", "created_at"):
        assert getattr(first, name) == getattr(job, name)
    assert (first.queue_deadline_at, first.deadline_at) == (job.queue_deadline_at, job.deadline_at)
    assert (first.traceparent, first.alone, first.attempts) == ("00-1-2-01", False, 0)


def test_nothing_is_published_before_the_commit(bench: Bench) -> None:
    bench.publisher.admit(new_job("a"))
    assert bench.stream.records == []


def test_the_jobs_of_a_commit_share_records_and_every_pool_has_its_own(bench: Bench) -> None:
    bench.submit(new_job("a"), new_job("b"), new_job("c", model="big"))
    assert [(pool, len(messages.decode(value))) for pool, value in bench.stream.records] == [("default", 2), ("gpu", 1)]


def test_a_job_beyond_the_window_is_left_to_the_relay(bench: Bench) -> None:
    first, second, other = bench.submit(new_job("a", 4), new_job("b", 2), new_job("c", 4, tenant="tenant_b"))
    assert (first.publish_now, second.publish_now, other.publish_now) == (True, False, True)
    assert {chunk.job for chunk in bench.stream.chunks} == {"job_a", "job_c"}
    assert bench.publisher.behind == {PAIR}


def test_what_comes_after_a_job_left_behind_queues_behind_it(bench: Bench) -> None:
    bench.submit(new_job("a", 4), new_job("b", 2))
    (small,) = bench.submit(new_job("small", 1))
    assert not small.publish_now
    bench.publisher.caught_up([PAIR])
    (later,) = bench.submit(new_job("later", 1))
    assert later.publish_now


def test_a_job_for_later_is_not_published_and_keeps_nobody_waiting(bench: Bench) -> None:
    (later,) = bench.submit(new_job("later", not_before=NOW + timedelta(seconds=1)))
    (due,) = bench.submit(new_job("due", not_before=NOW))
    assert (later.publish_now, due.publish_now) == (False, True)
    assert {chunk.job for chunk in bench.stream.chunks} == {"job_due"}
    assert bench.publisher.behind == frozenset()


def test_a_model_that_no_pool_serves_is_left_to_the_relay_and_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (job,) = bench.submit(new_job("a", model="gone"))
    assert not job.publish_now
    chunk = bench.publisher._messages(job)
    with caplog.at_level(logging.WARNING):
        assert [bench.publisher.publish(chunk) for _ in range(3)] == [0, 0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "no pool serves gone@1: its chunks stay queued in the ledger until one does"
    ]
    assert bench.window.chunks == 0


def test_a_stream_that_fails_costs_one_line_and_no_room(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stream.error = Unavailable("broker away")
    with caplog.at_level(logging.WARNING):
        bench.submit(new_job("a", 2), new_job("b", 2))
    assert [record.getMessage() for record in caplog.records] == [
        "pool default: 4 chunks not published, left to the relay: broker away"
    ]
    assert bench.window.chunks == 0


def test_a_pool_that_fails_does_not_keep_another_from_its_chunks(bench: Bench) -> None:
    taken = bench.stream.publish

    def only_gpu(pool: str, values: Sequence[bytes], lost: object = None) -> None:
        if pool == "default":
            raise Unavailable("broker away")
        taken(pool, values)

    bench.stream.publish = only_gpu  # type: ignore[method-assign]
    bench.submit(new_job("a"), new_job("b", model="big"))
    assert {chunk.job for chunk in bench.stream.chunks} == {"job_b"}


def test_a_replay_gives_its_room_back(bench: Bench) -> None:
    admitted = bench.publisher.admit(new_job("twin", 5))
    assert not bench.window.room(PAIR)
    bench.publisher.withdraw(admitted)
    assert bench.window.chunks == 0
    bench.publisher.withdraw(replace(admitted, publish_now=False))


def test_settling_makes_room_and_wakes_the_relay_only_for_what_is_left_behind(bench: Bench) -> None:
    first, *_ = bench.submit(new_job("a", 5), new_job("b", 2))
    bench.submit(new_job("c", 2, tenant="tenant_b"))
    bench.publisher.settled([ChunkRef("job_c", 0, 0)])
    assert bench.woken == 0
    bench.publisher.settled(refs_of(first)[:1])
    assert bench.woken == 0  # 4 of 5: a top-up of one chunk is not worth the way
    bench.publisher.settled(refs_of(first)[1:3])
    assert bench.woken == 1
    bench.publisher.caught_up([PAIR])
    bench.publisher.settled(refs_of(first)[3:])
    assert bench.woken == 1


def test_a_job_refused_while_the_window_empties_still_wakes_the_relay(bench: Bench) -> None:
    (first,) = bench.submit(new_job("a", 5))
    refused = bench.publisher.admit(new_job("b", 1))
    bench.publisher.settled(refs_of(first))
    bench.publisher.caught_up([PAIR])  # the relay looked before the commit and found nothing
    woken = bench.woken
    bench.publisher.committed([refused])
    assert bench.woken == woken + 1
    assert bench.publisher.behind == {PAIR}


def test_a_chunk_may_settle_while_it_is_being_published(bench: Bench) -> None:
    job = new_job("a", 3)
    bench.stream.during = lambda: bench.publisher.settled(refs_of(job))
    bench.submit(job)
    assert bench.window.chunks == 0


def test_children_are_published_whatever_the_room(bench: Bench) -> None:
    (job,) = bench.submit(new_job("a", 5))
    children = [replace(chunk, seq=chunk.seq + 10, alone=True) for chunk in bench.publisher._messages(job)]
    assert bench.publisher.publish(children) == 5
    assert bench.window.chunks == 10
    assert not bench.publisher.has_room


def test_on_their_way_are_those_at_the_same_fence_only(bench: Bench) -> None:
    (job,) = bench.submit(new_job("a", 2))
    chunks = bench.publisher._messages(job)
    assert bench.publisher.on_their_way(chunks) == set(refs_of(job))
    assert bench.publisher.on_their_way([replace(chunk, fence=2) for chunk in chunks]) == set()
    bench.publisher.settled(chunks)
    assert bench.publisher.on_their_way(chunks) == set()


def test_blobs_travel_as_their_names(bench: Bench) -> None:
    blob = BlobRef("payloads/a", 10_000_000, "ab" * 32)
    bench.submit(new_job("a", payload=blob))
    assert bench.stream.chunks[0].payload == blob
    assert bench.window.bytes == 256


def test_a_commit_above_a_record_is_cut_into_several() -> None:
    bench = Bench()
    bench.window.limits = WindowLimits()
    bench.submit(new_job("a", 6, payload=b"x" * 200_000))
    assert len(bench.stream.records) == 3
    assert [chunk.seq for chunk in bench.stream.chunks] == list(range(6))


def test_many_threads_leave_the_window_as_they_found_it(bench: Bench) -> None:
    bench.window.limits = WindowLimits(chunks=50, bytes=10_000)
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(200):
                job = new_job(f"{thread}_{number}", 2, tenant=f"tenant_{thread % 3}")
                (admitted,) = bench.submit(job)
                if number % 7 == 0:
                    bench.publisher.publish(bench.publisher._messages(admitted))
                bench.publisher.settled(refs_of(admitted))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert (bench.window.chunks, bench.window.bytes) == (0, 0)
