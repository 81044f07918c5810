"""What only the Postgres adapter shows: many writers at once, on one order of locks."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Undone
from jobs.ledger import Ledger
from jobs.records import ChunkRef, Finish, NewChunk, NewJob, Submitted
from jobs.states import JobState, Outcome
from jobs.store import Store, Transaction
from tests.contracts.store_kit import LEASE, SECOND, Kit, done, make_kit, new_job, payload, refs_of

SECONDS = 20.0  # that anything may take before a test gives up


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = make_kit("postgres", tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def other(kit: Kit) -> Iterator[Kit]:
    """Another process on the same ledger."""
    made = Kit(kit.adapter, kit.clock, kit.adapter.open(kit.clock))
    yield made
    made.store.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def wait_for_a_waiter(kit: Kit, count: int = 1) -> None:
    """Until as many transactions wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    wait_until(lambda: kit.adapter.sql(waiting) == [(count,)])


class TestOneJobTwoWriters:
    def test_no_count_is_lost_and_it_ends_once(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        job = kit.submitted(*[1] * 40)
        refs = kit.claimed(job)

        def finish_all(writer: Kit, order: list[ChunkRef]) -> tuple[int, int]:
            answers = [writer.finish(done(ref)) for ref in order]
            ends = sum(changed.final for answer in answers for changed in answer.jobs)
            return sum(sum(answer.accepted) for answer in answers), ends

        both = [pool.submit(finish_all, kit, refs), pool.submit(finish_all, other, refs[::-1])]
        accepted, ends = zip(*(future.result(SECONDS) for future in both), strict=True)
        assert sum(accepted) == 40
        assert sum(ends) == 1
        assert kit.job(job).counts.succeeded == 40
        assert kit.events(job) == ["job.succeeded"]

    def test_a_claim_waits_for_a_stop_and_is_refused(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        job = kit.submitted(1)
        with kit.store.begin() as tx:
            tx.stop(None, job.id, JobState.CANCELLED, None, False)
            claim = pool.submit(other.claim, ChunkRef(job.id, 0, 0))
            wait_for_a_waiter(kit)
        assert claim.result(SECONDS) == [None]

    def test_a_stop_ends_a_child_that_comes_meanwhile(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        job = kit.submitted(1)
        (ref,) = kit.claimed(job)
        child = NewChunk(0, ((0, 1),), payload(((0, 1),)), attempts=1, parent=0)
        with kit.store.begin() as tx:
            tx.finish([Finish(ref, bytes([Outcome.MOVED]), b"", (child,))], kit.worker)
            stop = pool.submit(other.stop, job)
            wait_for_a_waiter(kit)
        assert stop.result(SECONDS).job.state is JobState.CANCELLED
        assert kit.job(job).counts.cancelled == 1


class TestOneKeyTwoWriters:
    def keyed(self, key: str = "k", body: bytes = b"1") -> NewJob:
        return new_job(1, idempotency_key=key, fingerprint=body)

    def test_the_winner_that_commits_meanwhile_answers(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        with kit.store.begin() as tx:
            (first,) = tx.submit([self.keyed()])
            second = pool.submit(other.submit, self.keyed())
            wait_for_a_waiter(kit)
        assert isinstance(first, Submitted)
        assert second.result(SECONDS) == [Submitted(first.job, replayed=True)]
        assert kit.adapter.sql("SELECT count(*) FROM chunks") == [(1,)]

    def test_one_that_fails_leaves_the_key_to_the_next(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        with suppress(KeyError), kit.store.begin() as tx:
            tx.submit([self.keyed()])
            second = pool.submit(other.submit, self.keyed())
            wait_for_a_waiter(kit)
            raise KeyError
        (answer,) = second.result(SECONDS)
        assert not answer.replayed

    def test_groups_that_share_keys_in_any_order(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        for number in range(10):
            keys = [f"{number}/{key}" for key in range(30)]
            groups = [random.Random(seed).sample(keys, 30) for seed in range(4)]
            futures = [
                pool.submit((kit, other)[at % 2].submit, *map(self.keyed, group)) for at, group in enumerate(groups)
            ]
            ids = [{answer.job.id for answer in future.result(SECONDS)} for future in futures]
            assert all(seen == ids[0] for seen in ids)


class TestUpkeepBesideOthers:
    def test_relays_take_different_chunks_and_do_not_wait(self, kit: Kit, other: Kit) -> None:
        for _ in range(6):
            kit.submitted(1, publish_now=False)
        with kit.store.begin() as tx:
            first = refs_of(tx.take_due(3, LEASE))
            second = refs_of(other.due())
        assert (len(first), len(second)) == (3, 3)
        assert set(first).isdisjoint(second)

    def test_a_heartbeat_just_before_a_rescue_keeps_the_claims(
        self, kit: Kit, other: Kit, pool: ThreadPoolExecutor
    ) -> None:
        kit.register("wrk_late", lease=SECOND)
        job = kit.submitted(1)
        kit.claim(ChunkRef(job.id, 0, 0), worker="wrk_late")
        kit.clock.advance(60)
        with kit.store.begin() as tx:
            assert tx.heartbeat("wrk_late", timedelta(seconds=30))
            rescue = pool.submit(rescued, other.store)
            wait_for_a_waiter(kit)
        assert rescue.result(SECONDS) == 0
        assert kit.job(job).counts.running == 1

    def test_a_heartbeat_just_after_a_rescue_learns_of_it(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        kit.register("wrk_late", lease=SECOND)
        job = kit.submitted(1)
        kit.claim(ChunkRef(job.id, 0, 0), worker="wrk_late")
        kit.clock.advance(60)
        with kit.store.begin() as tx:
            assert tx.rescue(timedelta(0)) == 1
            beat = pool.submit(in_one(other.store, lambda tx: tx.heartbeat("wrk_late", LEASE)))
            wait_for_a_waiter(kit)
        assert beat.result(SECONDS) is False


def rescued(store: Store) -> int:
    with store.begin() as tx:
        return tx.rescue(timedelta(0))


def in_one(store: Store, change: Callable[[Transaction], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with store.begin() as tx:
            return change(tx)

    return run


class TestDeadlock:
    """Two groups that take the same jobs in opposite orders."""

    def crossing(self, jobs: list[NewJob], meet: threading.Barrier) -> Callable[[Transaction], None]:
        def change(tx: Transaction) -> None:
            for job in jobs:
                tx.stop(None, job.id, JobState.CANCELLED, None, False)
                with suppress(threading.BrokenBarrierError):  # only the first time both are there
                    meet.wait(1.0)

        return change

    def test_one_is_undone_and_says_so(self, kit: Kit, other: Kit, pool: ThreadPoolExecutor) -> None:
        jobs = [kit.submitted(1), kit.submitted(1)]
        meet = threading.Barrier(2)
        both = [
            pool.submit(in_one(kit.store, self.crossing(jobs, meet))),
            pool.submit(in_one(other.store, self.crossing(jobs[::-1], meet))),
        ]
        errors = [error for future in both if (error := future.exception(SECONDS)) is not None]
        assert [type(error) for error in errors] == [Undone]
        assert [kit.job(job).state for job in jobs] == [JobState.CANCELLED] * 2

    def test_the_ledger_makes_it_again(self, kit: Kit, other: Kit) -> None:
        jobs = [kit.submitted(1), kit.submitted(1)]
        meet = threading.Barrier(2)
        ledgers = self.ledgers(kit, other)
        futures: list[Future[None]] = [
            ledgers[0].post(self.crossing(jobs, meet)),
            ledgers[1].post(self.crossing(jobs[::-1], meet)),
        ]
        assert [future.result(SECONDS) for future in futures] == [None, None]
        self.check(kit, jobs, ledgers)

    def test_the_ledger_makes_it_again_beside_one_that_fails(self, kit: Kit, other: Kit) -> None:
        """That one has all of its group made in savepoints; the deadlock is still nobody's own failure."""
        jobs = [kit.submitted(1), kit.submitted(1)]
        meet = threading.Barrier(2)
        ledgers = self.ledgers(kit, other)
        go = threading.Event()
        held = [ledger.post(lambda _: go.wait(SECONDS)) for ledger in ledgers]  # so that the others share a group
        wait_until(lambda: all(future.running() for future in held))
        bad = [ledger.post(lambda _: 1 // 0) for ledger in ledgers]
        good = [
            ledgers[0].post(self.crossing(jobs, meet)),
            ledgers[1].post(self.crossing(jobs[::-1], meet)),
        ]
        go.set()
        assert [type(future.exception(SECONDS)) for future in bad] == [ZeroDivisionError] * 2
        assert [future.result(SECONDS) for future in good] == [None, None]
        self.check(kit, jobs, ledgers)

    def ledgers(self, *kits: Kit) -> list[Ledger]:
        made = [Ledger(kit.store) for kit in kits]
        for ledger in made:
            ledger.start()
        return made

    def check(self, kit: Kit, jobs: list[NewJob], ledgers: list[Ledger]) -> None:
        for ledger in ledgers:
            ledger.stop()
        for job in jobs:
            assert kit.events(job) == ["job.cancelled"]
