"""The ledger's writer on the SQLite store: crashes, cancels and completions that meet in one commit."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobs.ledger import Ledger
from jobs.records import ChunkRef, Counts, Finish, NewJob
from jobs.states import JobState, Outcome
from tests.contracts.store_kit import Kit, done, make_kit, new_job
from tests.unit.ledger_kit import SECONDS, Bench, kinds


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = make_kit("sqlite", tmp_path)
    yield kit
    kit.store.close()


@pytest.fixture
def real(kit: Kit) -> Iterator[Bench]:
    bench = Bench(kit.store)
    yield bench
    bench.ledger.stop()


class TestOnSqlite:
    def test_a_group_that_failed_half_way_leaves_nothing_behind(self, kit: Kit, real: Bench) -> None:
        """The jobs were inserted already when the chunks of one turned out wrong."""
        good = [new_job(1), new_job(1)]
        bad = replace(new_job(1), chunks=new_job(1).chunks * 2)
        with real.held():
            real.submit(good[0], bad, good[1])
        assert kinds(real.desk.next()) == ["inserted", "StoreError", "inserted"]
        assert real.written(good[0], bad, good[1]) == [True, False, True]
        assert len(kit.due()) == 0
        kit.clock.advance(15)
        assert {message.job for message in kit.due()} == {job.id for job in good}

    def test_a36_a_cancel_in_the_same_commit_as_the_last_answers(self, kit: Kit, real: Bench) -> None:
        """Whichever of the two comes first: every item is counted once, and finished answers are kept."""
        for order in ("finish first", "cancel first"):
            job = kit.submitted(5, 20)
            fast, slow = kit.claimed(job)
            kit.finish(done(fast, 5, results=b"kept"))
            half = Finish(slow, bytes([Outcome.SUCCEEDED] * 8 + [Outcome.CANCELLED] * 12), b"half")

            def finish(tx: Any, half: Finish = half) -> Any:
                return tx.finish([half], kit.worker)

            def cancel(tx: Any, job: NewJob = job) -> Any:
                return tx.stop(job.tenant, job.id, JobState.CANCELLED, None, True)

            with real.held():
                if order == "finish first":
                    finished, stopped = real.ledger.post(finish), real.ledger.post(cancel)
                else:
                    stopped, finished = real.ledger.post(cancel), real.ledger.post(finish)
            accepted = finished.result(SECONDS).accepted == (True,)
            assert accepted == (order == "finish first")
            assert stopped.result(SECONDS).changed != accepted
            ended = kit.job(job)
            answers = [chunk.results for chunk in kit.store.results(job.id, 0, 25)]
            if accepted:
                assert ended.counts == Counts(25, succeeded=13, cancelled=12)
                assert answers == [b"kept", b"half"]
            else:
                assert ended.counts == Counts(25, succeeded=5, cancelled=20)
                assert answers == [b"kept", None]
            assert len(kit.events(job)) == 1

    def test_a36_a_hundred_cancels_while_running(self, kit: Kit, real: Bench) -> None:
        jobs = [kit.submitted(5, 10, 10) for _ in range(100)]
        refs = [kit.claimed(job) for job in jobs]
        start = threading.Barrier(2)

        def finish_all() -> None:
            start.wait(SECONDS)
            for fast, slow, _ in refs:
                real.ledger.call(lambda tx, fast=fast: tx.finish([done(fast, 5)], kit.worker))
                real.ledger.call(lambda tx, slow=slow: tx.finish([done(slow, 10)], kit.worker))

        finisher = threading.Thread(target=finish_all)
        finisher.start()
        start.wait(SECONDS)
        for job in jobs:
            real.ledger.call(lambda tx, job=job: tx.stop(job.tenant, job.id, JobState.CANCELLED, None, True))
        finisher.join(SECONDS)
        for job in jobs:
            ended = kit.job(job)
            assert ended.state is JobState.CANCELLED  # the third chunk never ends by itself
            assert ended.counts.succeeded in (0, 5, 15)
            assert ended.counts.succeeded + ended.counts.cancelled == 25
            assert kit.events(job) == ["job.cancelled"]

    def test_a39_a_job_is_committed_before_it_is_published(self, kit: Kit) -> None:
        seen: list[bool] = []

        def publish(jobs: Sequence[NewJob]) -> None:
            seen.extend(job.id in kit.store.jobs_by_id([job.id]) for job in jobs)  # read by another connection

        ledger = Ledger(kit.store, on_committed=publish)
        ledger.start()
        for _ in range(50):
            ledger.submit(new_job(1), lambda _: None)
        ledger.stop()
        assert seen == [True] * 50

    def test_a39_what_was_saved_and_not_published_is_the_relays(self, kit: Kit, real: Bench) -> None:
        def broken(_: object) -> None:
            raise OSError("the stream is gone")

        real.ledger._on_committed = broken
        job = new_job(2)
        real.submit(job)
        assert kinds(real.desk.next()) == ["inserted"]
        assert kit.due() == []
        kit.clock.advance(15)
        assert [message.ref for message in kit.due()] == [ChunkRef(job.id, 0, 0)]

    def test_a40_the_last_two_finish_in_the_same_commit(self, kit: Kit, real: Bench) -> None:
        job = kit.submitted(1, 1)
        with real.held():
            refs = [ChunkRef(job.id, seq, 1) for seq in (0, 1)]
            real.ledger.post(lambda tx: tx.claim([ChunkRef(job.id, seq, 0) for seq in (0, 1)], kit.worker))
            finished = [real.ledger.post(lambda tx, ref=ref: tx.finish([done(ref)], kit.worker)) for ref in refs]
        states = [future.result(SECONDS).jobs[0].state for future in finished]
        assert states == [JobState.RUNNING, JobState.SUCCEEDED]
        assert kit.events(job) == ["job.succeeded"]

    def test_a40_the_last_items_finish_on_different_workers(self, kit: Kit, real: Bench) -> None:
        jobs = [kit.submitted(1, 1) for _ in range(200)]
        refs = [kit.claimed(job) for job in jobs]
        completions: list[str] = []
        start = threading.Barrier(2)

        def finish(mine: int) -> None:
            start.wait(SECONDS)
            for of_job in refs:
                finished = real.ledger.call(lambda tx, ref=of_job[mine]: tx.finish([done(ref)], kit.worker))
                completions.extend(job.id for job in finished.jobs if job.final)

        workers = [threading.Thread(target=finish, args=(mine,)) for mine in (0, 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(SECONDS)
        assert sorted(completions) == sorted(job.id for job in jobs)  # exactly one of the two saw it complete
        assert all(kit.events(job) == ["job.succeeded"] for job in jobs)
