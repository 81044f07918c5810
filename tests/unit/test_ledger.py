"""The ledger's writer: groups that share a commit without a timer, and nobody hurt by a stranger of the group."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.crash import CrashPoints
from jobs.errors import BatchyardError, IdempotencyMismatch, StoreError, Unavailable
from jobs.ledger import Answer, Ledger
from jobs.records import ChunkRef, Counts, Finish, Job, NewJob, Submitted
from jobs.states import JobState, Outcome
from jobs.stores.sqlite_rows import new_job_of
from tests.contracts.store_kit import START, Kit, done, make_kit, new_job

SECONDS = 20  # that anything may take before a test gives up


class FakeTransaction:
    def __init__(self, jobs: dict[str, NewJob]) -> None:
        self.jobs = jobs

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted | IdempotencyMismatch]:
        answers: list[Submitted | IdempotencyMismatch] = []
        for job in jobs:
            if job.tenant == "nobody":
                raise StoreError("no such tenant")
            if not all(isinstance(value, str) for value in job.metadata.values()):
                raise TypeError("metadata that is no text")
            key = job.idempotency_key
            first = next((known for known in self.jobs.values() if key and known.idempotency_key == key), job)
            if first.fingerprint != job.fingerprint:
                answers.append(IdempotencyMismatch("another request"))
                continue
            self.jobs[first.id] = first
            answers.append(Submitted(new_job_of(first, START), replayed=first is not job))
        return answers

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        before = dict(self.jobs)
        try:
            yield
        except BaseException:
            self.jobs.clear()
            self.jobs.update(before)
            raise


class FakeStore:
    def __init__(self) -> None:
        self.jobs: dict[str, NewJob] = {}

    @contextmanager
    def begin(self) -> Iterator[FakeTransaction]:
        transaction = FakeTransaction(dict(self.jobs))
        yield transaction
        self.jobs = transaction.jobs

    def jobs_by_id(self, ids: Sequence[str]) -> dict[str, Job]:
        return {id_: new_job_of(self.jobs[id_], START) for id_ in ids if id_ in self.jobs}


class WatchedStore:
    """Counts what it lets through, and fails where it is told to."""

    def __init__(self, inner: Any, story: list[Any]) -> None:
        self.inner = inner
        self.story = story
        self.begun = 0
        self.failing_begin: Exception | None = None
        self.failing_commit: Exception | None = None

    @contextmanager
    def begin(self) -> Iterator[Any]:
        self.begun += 1
        if self.failing_begin is not None:
            raise self.failing_begin
        with self.inner.begin() as transaction:
            yield transaction
            if self.failing_commit is not None:
                raise self.failing_commit
        self.story.append("commit")

    @property
    def commits(self) -> int:
        return self.story.count("commit")


class TellingCrash(CrashPoints):
    def __init__(self, story: list[Any]) -> None:
        super().__init__()
        self.story = story

    def passing(self, point: str) -> None:
        self.story.append(point)


class Desk:
    """A sink that keeps what it was told, call by call."""

    def __init__(self, story: list[Any]) -> None:
        self.story = story
        self.calls: queue.Queue[list[tuple[NewJob, Answer]]] = queue.Queue()

    def sink(self, answered: list[tuple[NewJob, Answer]]) -> None:
        self.story.append("sink")
        self.calls.put(answered)

    def next(self) -> list[tuple[NewJob, Answer]]:
        return self.calls.get(timeout=SECONDS)


class Bench:
    def __init__(self, inner: Any, **limits: int) -> None:
        self.story: list[Any] = []
        self.store = WatchedStore(inner, self.story)
        self.committed: list[list[str]] = []
        self.desk = Desk(self.story)
        self.ledger = Ledger(
            self.store,  # type: ignore[arg-type]
            on_committed=self.on_committed,
            crash=TellingCrash(self.story),
            **limits,
        )
        self.ledger.start()

    def on_committed(self, jobs: Sequence[NewJob]) -> None:
        self.story.append("on_committed")
        self.committed.append([job.id for job in jobs])

    def submit(self, *jobs: NewJob, desk: Desk | None = None) -> None:
        for job in jobs:
            self.ledger.submit(job, (desk or self.desk).sink)

    def written(self, *jobs: NewJob) -> list[bool]:
        found = self.store.inner.jobs_by_id([job.id for job in jobs])
        return [job.id in found for job in jobs]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The writer is in the middle of a transaction; it goes on, and what queued up is written, on leaving."""
        entered, go = threading.Event(), threading.Event()

        def wait(_: Any) -> None:
            entered.set()
            assert go.wait(SECONDS)

        blocked = self.ledger.post(wait)
        try:
            assert entered.wait(SECONDS)
            self.story.clear()
            yield
        finally:
            go.set()
        blocked.result(SECONDS)

    def settled(self) -> None:
        """Everything queued so far is written, and what waited in `held` has been counted as one commit."""
        self.ledger.stop()


Make = Callable[..., Bench]


@pytest.fixture(params=["fake", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    benches: list[Bench] = []
    kits: list[Kit] = []

    def made(**limits: int) -> Bench:
        if request.param == "fake":
            inner: Any = FakeStore()
        else:
            kits.append(make_kit("sqlite", tmp_path))
            inner = kits[-1].store
        benches.append(Bench(inner, **limits))
        return benches[-1]

    yield made
    for bench in benches:
        bench.ledger.stop()
    for kit in kits:
        kit.store.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def bad_job() -> NewJob:
    return new_job(1, tenant="nobody")


def keyed(key: str, fingerprint: bytes = b"1") -> NewJob:
    return new_job(1, idempotency_key=key, fingerprint=fingerprint)


def kinds(answered: list[tuple[NewJob, Answer]]) -> list[str]:
    return [
        type(answer).__name__ if isinstance(answer, BatchyardError) else "replayed" if answer.replayed else "inserted"
        for _, answer in answered
    ]


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


class TestErrors:
    def test_a_bad_submission_fails_alone(self, bench: Bench) -> None:
        jobs = [new_job(1), bad_job(), new_job(1), bad_job(), new_job(1)]
        with bench.held():
            bench.submit(*jobs)
            asked = bench.ledger.post(lambda tx: "made")
        answered = bench.desk.next()
        bench.settled()
        assert kinds(answered) == ["inserted", "StoreError", "inserted", "StoreError", "inserted"]
        assert [job for job, _ in answered] == jobs
        assert bench.written(*jobs) == [True, False, True, False, True]
        assert bench.committed == [[jobs[0].id, jobs[2].id, jobs[4].id]]
        assert asked.result(0) == "made"
        assert bench.store.commits == 2  # still one for the group

    def test_a_bad_submission_by_itself(self, bench: Bench) -> None:
        bench.submit(bad_job())
        assert kinds(bench.desk.next()) == ["StoreError"]
        assert bench.committed == []

    def test_an_error_that_is_not_ours_is_wrapped(self, bench: Bench) -> None:
        broken, good = new_job(1, metadata={"a": object()}), new_job(1)
        with bench.held():
            bench.submit(broken, good)
        answered = bench.desk.next()
        assert kinds(answered) == ["StoreError", "inserted"]
        assert "TypeError" in str(answered[0][1])
        bench.submit(broken)
        assert kinds(bench.desk.next()) == ["StoreError"]

    def test_a_change_that_fails_undoes_its_own_part_only(self, bench: Bench) -> None:
        first, lost, last = new_job(1), new_job(1), new_job(1)

        def fail(tx: Any, error: Exception) -> None:
            tx.submit([lost])
            raise error

        class OfItsOwn(Exception):
            pass

        submitted = new_job(1)
        with bench.held():
            bench.submit(submitted)
            made = [bench.ledger.post(lambda tx: tx.submit([first]))]
            failed = [
                bench.ledger.post(lambda tx, error=error: fail(tx, error))
                for error in (OfItsOwn("mine"), StoreError("data"), Unavailable("later"))
            ]
            made.append(bench.ledger.post(lambda tx: tx.submit([last])))
        assert kinds(bench.desk.next()) == ["inserted"]
        for future, error in zip(failed, (OfItsOwn, StoreError, Unavailable), strict=True):
            with pytest.raises(error):
                future.result(SECONDS)
        assert [len(future.result(SECONDS)) for future in made] == [1, 1]
        assert bench.written(submitted, first, lost, last) == [True, True, False, True]

    def test_call_raises_what_the_change_raised(self, bench: Bench) -> None:
        error = LookupError("this very one")

        def fail(_: object) -> None:
            raise error

        with pytest.raises(LookupError) as caught:
            bench.ledger.call(fail)
        assert caught.value is error

    @pytest.mark.parametrize("error", [Unavailable("disk full"), StoreError("corrupt"), OSError("gone")])
    def test_a_commit_that_fails_is_everybodys(self, bench: Bench, error: Exception) -> None:
        jobs = [new_job(1), new_job(1)]
        with bench.held():
            bench.submit(*jobs)
            asked = bench.ledger.post(lambda tx: "made")
            after_held = bench.ledger.post(lambda tx: setattr(bench.store, "failing_commit", error))
        answered = bench.desk.next()
        wanted = type(error).__name__ if isinstance(error, BatchyardError) else "StoreError"
        assert kinds(answered) == [wanted, wanted]
        for future in (asked, after_held):
            with pytest.raises(BatchyardError) as caught:
                future.result(SECONDS)
            assert type(caught.value).__name__ == wanted
        assert bench.written(*jobs) == [False, False]
        assert bench.committed == []
        assert "commit_publish" not in bench.story
        bench.store.failing_commit = None
        bench.submit(jobs[0])
        assert kinds(bench.desk.next()) == ["inserted"]  # the writer goes on

    def test_a_transaction_that_cannot_begin_is_tried_once(self, bench: Bench) -> None:
        bench.store.failing_begin = Unavailable("locked by another process")
        begun = bench.store.begun
        bench.submit(new_job(1))
        assert kinds(bench.desk.next()) == ["Unavailable"]
        assert bench.store.begun == begun + 1
        with pytest.raises(Unavailable):
            bench.ledger.call(lambda tx: None)
        bench.store.failing_begin = None
        assert bench.ledger.call(lambda tx: "again") == "again"

    def test_a_commit_that_failed_is_not_made_again(self, bench: Bench) -> None:
        """It may have taken effect: only who asked can say whether to ask again."""
        made: list[int] = []
        with bench.held():
            bench.ledger.post(lambda tx: setattr(bench.store, "failing_commit", StoreError("commit")))
            asked = bench.ledger.post(lambda tx: made.append(1))
        with pytest.raises(StoreError):
            asked.result(SECONDS)
        assert made == [1]


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
