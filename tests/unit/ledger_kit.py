"""What the ledger's tests share: fake and watched stores, sinks that keep what they are told, and a held writer."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.crash import CrashPoints
from jobs.errors import BatchyardError, IdempotencyMismatch, StoreError
from jobs.ledger import Answer, Ledger
from jobs.records import Job, NewJob, Submitted
from jobs.stores.rows import new_job_of
from tests.contracts.store_kit import START, Kit, make_kit, new_job

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
