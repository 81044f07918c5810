"""The ledger's writer: groups that share a commit without a timer, answers after it, and bounds that hold."""

import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from jobs.errors import Unavailable
from jobs.ledger import Ledger
from jobs.records import Submitted
from tests.contracts.store_kit import new_job
from tests.unit import ledger_kit
from tests.unit.ledger_kit import SECONDS, Bench, Desk, FakeStore, Make, bad_job, keyed, kinds

make, bench = ledger_kit.make, ledger_kit.bench


class TestGroups:
    def test_a_lone_submission_is_a_group(self, bench: Bench) -> None:
        job = new_job(1)
        bench.submit(job)
        answered = bench.desk.next()
        assert [given for given, _ in answered] == [job]
        assert kinds(answered) == ["inserted"]
        assert bench.written(job) == [True]
        bench.settled()
        assert bench.committed == [[job.id]]
        assert bench.store.commits == 1

    def test_what_queued_during_a_commit_shares_the_next(self, bench: Bench) -> None:
        jobs = [new_job(1) for _ in range(20)]
        with bench.held():
            bench.submit(*jobs)
            asked = [bench.ledger.post(lambda tx, n=n: n) for n in range(20)]
            assert bench.written(*jobs) == [False] * 20
        answered = bench.desk.next()
        bench.settled()
        assert [job for job, _ in answered] == jobs
        assert [future.result(0) for future in asked] == list(range(20))
        assert bench.committed == [[job.id for job in jobs]]
        assert bench.store.commits == 2  # what was held, and all the rest

    def test_a_group_has_a_greatest_length(self, make: Make) -> None:
        bench = make(max_group=3)
        jobs = [new_job(1) for _ in range(7)]
        with bench.held():
            bench.submit(*jobs)
            asked = [bench.ledger.post(lambda tx: None) for _ in range(10)]
        bench.settled()
        assert [len(group) for group in bench.committed] == [3, 3, 1]
        assert [id_ for group in bench.committed for id_ in group] == [job.id for job in jobs]
        assert all(future.done() for future in asked)
        assert bench.store.commits == 1 + 4  # the ten changes need a fourth

    def test_a_group_has_a_greatest_size(self, make: Make) -> None:
        small, large = new_job(1), new_job(200)
        size = sum(len(chunk.payload) for chunk in small.chunks if isinstance(chunk.payload, bytes))
        bench = make(max_group_bytes=2 * size)
        with bench.held():
            bench.submit(small, *(new_job(1) for _ in range(3)), large, new_job(1))
        bench.settled()
        assert [len(group) for group in bench.committed] == [2, 2, 1, 1]  # the large one by itself, yet written
        assert bench.committed[2] == [large.id]

    def test_the_sign_of_life_moves(self, bench: Bench) -> None:
        before = bench.ledger.last_progress
        bench.ledger.call(lambda tx: None)
        assert bench.ledger.last_progress >= before
        with bench.held():
            held = bench.ledger.last_progress
        bench.ledger.call(lambda tx: None)
        assert bench.ledger.last_progress > held > before


class TestAnswers:
    def test_a_sink_is_called_once_a_commit(self, bench: Bench) -> None:
        other = Desk(bench.story)
        jobs = [new_job(1) for _ in range(6)]
        with bench.held():
            for job, desk in zip(jobs, [bench.desk, other] * 3, strict=True):
                bench.submit(job, desk=desk)
        bench.settled()
        assert [job for job, _ in bench.desk.next()] == jobs[::2]
        assert [job for job, _ in other.next()] == jobs[1::2]
        assert bench.story.count("sink") == 2

    def test_committed_then_crash_point_then_published_then_told(self, bench: Bench) -> None:
        with bench.held():
            bench.submit(new_job(1), new_job(1))
        bench.settled()
        assert bench.story == ["commit", "commit", "commit_publish", "on_committed", "sink"]

    def test_only_what_was_inserted_is_published(self, bench: Bench) -> None:
        first = keyed("a")
        bench.submit(first)
        bench.desk.next()
        new, twin, again, other = keyed("b"), keyed("b"), keyed("a"), keyed("a", b"2")
        with bench.held():
            bench.submit(again, new, twin, other, bad := bad_job())
        answered = bench.desk.next()
        bench.settled()
        assert kinds(answered) == ["replayed", "inserted", "replayed", "IdempotencyMismatch", "StoreError"]
        replayed = [answer.job.id for _, answer in answered if isinstance(answer, Submitted)]
        assert replayed == [first.id, new.id, new.id]
        assert bench.committed == [[first.id], [new.id]]
        assert bench.written(first, new, twin, again, other, bad) == [True, True, False, False, False, False]

    def test_a_commit_without_insertions_publishes_nothing(self, bench: Bench) -> None:
        bench.submit(keyed("a"))
        bench.desk.next()
        bench.story.clear()
        bench.submit(keyed("a"))
        bench.desk.next()
        bench.ledger.call(lambda tx: None)
        bench.settled()
        assert bench.story == ["commit", "sink", "commit"]

    def test_a_sink_or_a_publisher_that_fails_is_logged_and_passed(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_: object) -> None:
            raise RuntimeError("boom")

        bench.ledger._on_committed = broken
        jobs = [new_job(1), new_job(1)]
        with caplog.at_level(logging.ERROR), bench.held():
            bench.ledger.submit(jobs[0], broken)
            bench.submit(jobs[1])
        assert kinds(bench.desk.next()) == ["inserted"]
        bench.settled()
        assert bench.written(*jobs) == [True, True]
        assert [record.message.split(":")[1] for record in caplog.records] == [
            " what follows a commit failed; the relay will publish these jobs",
            " a sink failed; 1 answers are lost to their client, not to the ledger",
        ]


class TestBounds:
    def test_a_full_queue_refuses_and_keeps_what_it_has(self, make: Make) -> None:
        bench = make(max_queued=3)
        jobs = [new_job(1) for _ in range(3)]
        with bench.held():
            bench.submit(*jobs)
            with pytest.raises(Unavailable, match="3 submissions wait") as refused:
                bench.submit(new_job(1))
            asked = bench.ledger.post(lambda tx: "made")  # claims and completions go on: they make room
        assert refused.value.retryable
        assert refused.value.retry_after
        assert kinds(bench.desk.next()) == ["inserted"] * 3
        assert asked.result(SECONDS) == "made"
        bench.submit(new_job(1))
        assert kinds(bench.desk.next()) == ["inserted"]

    def test_stop_writes_what_is_queued(self, make: Make) -> None:
        bench = make(max_group=2)
        jobs = [new_job(1) for _ in range(9)]
        with bench.held():
            bench.submit(*jobs)
            asked: list[Future[str]] = [bench.ledger.post(lambda tx: "made") for _ in range(9)]
            stopping = threading.Thread(target=bench.ledger.stop)
            stopping.start()
        stopping.join(SECONDS)
        assert not stopping.is_alive()
        assert bench.written(*jobs) == [True] * 9
        assert [future.result(0) for future in asked] == ["made"] * 9
        assert [len(bench.desk.calls.get_nowait()) for _ in range(5)] == [2, 2, 2, 2, 1]

    def test_a_stopped_ledger_refuses(self, bench: Bench) -> None:
        bench.ledger.stop()
        bench.ledger.stop()
        with pytest.raises(Unavailable, match="stopping"):
            bench.submit(new_job(1))
        with pytest.raises(Unavailable, match="stopping"):
            bench.ledger.call(lambda tx: None)
        with pytest.raises(Unavailable, match="stopping"):
            bench.ledger.post(lambda tx: None)

    def test_one_that_was_not_started_refuses(self) -> None:
        ledger = Ledger(FakeStore())  # type: ignore[arg-type]
        with pytest.raises(Unavailable):
            ledger.submit(new_job(1), lambda _: None)
        ledger.stop()

    def test_a_call_on_its_own_thread_would_never_end(self, bench: Bench) -> None:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            bench.ledger.call(lambda tx: bench.ledger.call(lambda tx: None))

    def test_a_change_that_is_being_made_cannot_be_cancelled(self, bench: Bench) -> None:
        entered, go = threading.Event(), threading.Event()

        def wait(_: Any) -> str:
            entered.set()
            assert go.wait(SECONDS)
            return "made"

        asked = bench.ledger.post(wait)
        assert entered.wait(SECONDS)
        assert not asked.cancel()
        go.set()
        assert asked.result(SECONDS) == "made"

    def test_a_cancelled_change_is_not_made(self, bench: Bench) -> None:
        made: list[int] = []
        with bench.held():
            asked = bench.ledger.post(lambda tx: made.append(1))
            assert asked.cancel()
        bench.settled()
        assert made == []
