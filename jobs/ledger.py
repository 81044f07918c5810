"""The writer of the ledger: one thread through which every change goes, in groups that share a commit.

There is no timer. The thread takes what queued up while its last commit ran: a group grows under load and holds one
entry when nothing else waits. Submissions of a group are one insertion; when something in it fails, the group is undone
and made again, each member in a savepoint of its own.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jobs.crash import CrashPoints
from jobs.errors import BatchyardError, StoreError, Unavailable, Undone
from jobs.records import NewJob, Submitted
from jobs.store import Store, Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

Answer = Submitted | BatchyardError
Sink = Callable[[list[tuple[NewJob, Answer]]], None]

YIELDS = 3

TIMES_MADE = 5
"""How often a group is made that the store undoes in favour of another."""

IDLE_SECONDS = 0.5
"""How often an idle writer shows that it lives."""


@dataclass(slots=True)
class _Submission:
    job: NewJob
    sink: Sink
    bytes: int


@dataclass(slots=True)
class _Change:
    make: Callable[[Transaction], Any]
    future: "Future[Any]"


@dataclass(slots=True)
class _Group:
    submissions: list[_Submission] = field(default_factory=list)
    changes: list[_Change] = field(default_factory=list)


def _nothing(jobs: Sequence[NewJob]) -> None:
    pass


class Ledger:
    """`on_committed` is called on the writer's thread after each commit, with the jobs that it inserted (no replays),
    before anybody is answered: keep it cheap. Reads do not come here; they go to the store."""

    def __init__(
        self,
        store: Store,
        *,
        on_committed: Callable[[Sequence[NewJob]], None] = _nothing,
        crash: CrashPoints | None = None,
        max_group: int = 256,
        max_group_bytes: int = 2 * 1024 * 1024,
        max_queued: int = 10_000,
    ) -> None:
        self._store = store
        self._on_committed = on_committed
        self._crash = crash or CrashPoints()
        self._max_group = max_group
        self._max_group_bytes = max_group_bytes
        self._max_queued = max_queued
        self._waiting = threading.Condition()
        self._submissions: deque[_Submission] = deque()
        self._changes: deque[_Change] = deque()
        self._accepting = False
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._last_progress = time.monotonic()

    def start(self) -> None:
        self._accepting = True
        self._thread.start()

    def stop(self) -> None:
        """Refuses what comes from now on, writes what is queued, then returns."""
        with self._waiting:
            self._accepting = False
            self._waiting.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, job: NewJob, sink: Sink) -> None:
        """Queues a submission. `sink` gets all of its answers of one commit in one call, on the writer's thread.

        Raises Unavailable when the queue is full or the ledger has stopped.
        """
        size = sum(len(chunk.payload) for chunk in job.chunks if isinstance(chunk.payload, bytes))
        with self._waiting:
            if not self._accepting:
                raise Unavailable("the ledger is stopping")
            if len(self._submissions) >= self._max_queued:
                raise Unavailable(f"{self._max_queued} submissions wait for the ledger already")
            self._submissions.append(_Submission(job, sink, size))
            self._waiting.notify()

    def post(self, change: Callable[[Transaction], T]) -> "Future[T]":
        """Queues a change; the future is set once it is committed, or with what it raised.

        The change does nothing beside the transaction: it is made twice when another of its group fails.
        """
        future: Future[T] = Future()
        with self._waiting:
            if not self._accepting:
                raise Unavailable("the ledger is stopping")
            self._changes.append(_Change(change, future))
            self._waiting.notify()
        return future

    def call(self, change: Callable[[Transaction], T]) -> T:
        """Makes a change and waits for its commit; raises what the change raised."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("Ledger.call on the ledger's own thread would wait for itself; use post")
        return self.post(change).result()

    @property
    def last_progress(self) -> float:
        """Monotonic seconds of the writer's last sign of life."""
        return self._last_progress

    def _write(self) -> None:
        while (group := self._next_group()) is not None:
            self._last_progress = time.monotonic()
            if group.submissions or group.changes:
                self._commit(group)

    def _next_group(self) -> _Group | None:
        """What waits, within the limits of a group; an empty one when nothing came for a while; None at the end."""
        with self._waiting:
            if not self._submissions and not self._changes:
                if not self._accepting:
                    return None
                self._waiting.wait(IDLE_SECONDS)
        self._let_others_queue()
        with self._waiting:
            group = _Group()
            size = 0
            while self._submissions and len(group.submissions) < self._max_group:
                size += self._submissions[0].bytes
                if group.submissions and size > self._max_group_bytes:
                    break
                group.submissions.append(self._submissions.popleft())
            while self._changes and len(group.changes) < self._max_group:
                group.changes.append(self._changes.popleft())
            return group

    def _let_others_queue(self) -> None:
        """Gives up the interpreter a few times: clients that are about to submit do so before a commit that they would
        have to sit out. Under load that makes groups half as large again; alone it costs microseconds."""
        if self._submissions:
            for _ in range(YIELDS):
                time.sleep(0)

    def _commit(self, group: _Group) -> None:
        changes = [change for change in group.changes if change.future.set_running_or_notify_cancel()]
        try:
            answers, results = self._transact_again(group, changes)
        except Exception as error:
            known = error if isinstance(error, BatchyardError) else StoreError(f"{type(error).__name__}: {error}")
            log.error("ledger: a group of %d was not committed: %s", len(group.submissions) + len(changes), known)
            answers = [known] * len(group.submissions)
            results = [(None, known)] * len(changes)
        else:
            self._tell_committed(group, answers)
        _answer_changes(changes, results)
        _answer_submissions(group.submissions, answers)

    def _transact_again(
        self, group: _Group, changes: Sequence[_Change]
    ) -> tuple[list[Answer], list[tuple[Any, Exception | None]]]:
        for _ in range(TIMES_MADE - 1):
            try:
                return self._transact(group, changes)
            except Undone as error:
                log.info("ledger: a group of %d is made again: %s", len(group.submissions) + len(changes), error)
        return self._transact(group, changes)

    def _transact(
        self, group: _Group, changes: Sequence[_Change]
    ) -> tuple[list[Answer], list[tuple[Any, Exception | None]]]:
        """At first without savepoints: nearly always nothing fails, and each one is two more statements for which the
        driver lets go of the interpreter. When something does, all is undone and made again, each in a savepoint."""
        begun = made = False
        try:
            with self._store.begin() as transaction:
                begun = True
                jobs = [submission.job for submission in group.submissions]
                answers: list[Answer] = list(transaction.submit(jobs)) if jobs else []
                results: list[tuple[Any, Exception | None]] = [(change.make(transaction), None) for change in changes]
                made = True
            return answers, results
        except Undone:
            raise  # the fault of none of its members
        except Exception:
            if made or not begun:
                raise  # made: by the commit, and nobody knows whether it took effect
        with self._store.begin() as transaction:
            return _submit(transaction, group.submissions), [_make(transaction, change) for change in changes]

    def _tell_committed(self, group: _Group, answers: Sequence[Answer]) -> None:
        inserted = [
            submission.job
            for submission, answer in zip(group.submissions, answers, strict=True)
            if isinstance(answer, Submitted) and not answer.replayed
        ]
        if not inserted:
            return
        self._crash.passing("commit_publish")
        try:
            self._on_committed(inserted)
        except Exception:
            log.exception("ledger: what follows a commit failed; the relay will publish these jobs")


def _submit(transaction: Transaction, submissions: Sequence[_Submission]) -> list[Answer]:
    """All in one insertion; where the data of one is at fault, one by one, so that no stranger fails with it."""
    if not submissions:
        return []
    jobs = [submission.job for submission in submissions]
    try:
        with transaction.savepoint():
            return list(transaction.submit(jobs))
    except Unavailable:
        raise
    except Exception as error:
        if len(jobs) == 1:
            return [_refusal(error)]
    return [_submit_one(transaction, job) for job in jobs]


def _submit_one(transaction: Transaction, job: NewJob) -> Answer:
    try:
        with transaction.savepoint():
            return transaction.submit([job])[0]
    except Unavailable:
        raise
    except Exception as error:
        return _refusal(error)


def _refusal(error: Exception) -> BatchyardError:
    if isinstance(error, BatchyardError):
        return error
    log.error("ledger: a submission failed", exc_info=error)
    return StoreError(f"the job could not be written: {type(error).__name__}: {error}")


def _make(transaction: Transaction, change: _Change) -> tuple[Any, Exception | None]:
    try:
        with transaction.savepoint():
            return change.make(transaction), None
    except Undone:
        raise
    except Exception as error:
        return None, error


def _answer_changes(changes: Sequence[_Change], results: Sequence[tuple[Any, Exception | None]]) -> None:
    for change, (value, error) in zip(changes, results, strict=True):
        if error is None:
            change.future.set_result(value)
        else:
            change.future.set_exception(error)


def _answer_submissions(submissions: Sequence[_Submission], answers: Sequence[Answer]) -> None:
    by_sink: dict[Sink, list[tuple[NewJob, Answer]]] = {}
    for submission, answer in zip(submissions, answers, strict=True):
        by_sink.setdefault(submission.sink, []).append((submission.job, answer))
    for sink, answered in by_sink.items():
        try:
            sink(answered)
        except Exception:
            log.exception(
                "ledger: a sink failed; %d answers are lost to their client, not to the ledger", len(answered)
            )
