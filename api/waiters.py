"""Clients that wait for a job to end: register, then read.

A ping of the notifier answers them; should one be lost, one query a second for all that wait does. A waiter costs a
future, a timer and a place in a dictionary; no thread and no query of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from api.problems import Problem
from api.reader import Answer, Ended, Reader
from jobs.notifier import Notifier, Ping

FLOOR_SECONDS = 1.0
MAX_WAITERS = 10_000
MAX_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class Waiter:
    """One client's wait for one job. ``future`` gets the answer of the ended job, or None when time is up."""

    job_id: str
    future: asyncio.Future[Answer | None]


@dataclass(slots=True)
class _Waited:
    waiters: list[Waiter] = field(default_factory=list)
    rounds: int = 0  # floor queries that have passed since the first of them came
    latest: Answer | None = None


class Waiters:
    """Everything but what `_told` does happens on the event loop."""

    def __init__(self, reader: Reader, notifier: Notifier, limit: int = MAX_WAITERS) -> None:
        self._reader = reader
        self._notifier = notifier
        self._limit = limit
        self._count = 0
        self._jobs: dict[str, _Waited] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._floor: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return self._count

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unsubscribe = self._notifier.subscribe(self._told)
        self._floor = loop.call_later(FLOOR_SECONDS, self._look)

    def stop(self) -> None:
        """Lets every client go: they are answered with what is known now."""
        self._closed = True
        self._unsubscribe()
        if self._floor is not None:
            self._floor.cancel()
        for waited in list(self._jobs.values()):
            for waiter in list(waited.waiters):
                _settle(waiter.future, None)

    @property
    def closed(self) -> bool:
        return self._closed

    def register(self, job_id: str) -> Waiter:
        """To be followed by a read of the job, then `wait`, and in any case `release`."""
        assert self._loop is not None
        if self._count >= self._limit:
            raise Problem("unavailable", "Too many clients are waiting already; ask without waiting.")
        waiter = Waiter(job_id, self._loop.create_future())
        self._jobs.setdefault(job_id, _Waited()).waiters.append(waiter)
        self._count += 1
        return waiter

    def release(self, waiter: Waiter) -> None:
        waited = self._jobs.get(waiter.job_id)
        if waited is None or waiter not in waited.waiters:
            return
        waited.waiters.remove(waiter)
        self._count -= 1
        if not waited.waiters:
            del self._jobs[waiter.job_id]

    async def wait(self, waiter: Waiter, seconds: float) -> Answer | None:
        """The answer once the job has ended; None when `seconds` are up or the process is on its way out."""
        assert self._loop is not None
        if self._closed and not waiter.future.done():
            return None
        timer = self._loop.call_later(seconds, _settle, waiter.future, None)
        try:
            return await waiter.future
        finally:
            timer.cancel()

    def latest(self, waiter: Waiter) -> Answer | None:
        """What the last query for all told about the job (None: nothing yet)."""
        waited = self._jobs.get(waiter.job_id)
        return None if waited is None else waited.latest

    def _told(self, ping: Ping) -> None:
        """On the thread that committed. A waiter that registers after this look reads what was committed before it."""
        jobs = self._jobs
        if not jobs:
            return
        if ping.finals:
            ended = [Ended(job, ping.results.get(job.id)) for job in ping.finals if job.id in jobs]
            here = [one for one in ended if one.at_hand]
            if here:
                # Nothing to be read: told at once, without a turn of the reader's thread.
                self._call_soon(partial(self._ended, here))
            if len(here) < len(ended):
                self._reader.ended(one for one in ended if not one.at_hand)
        else:
            self._reader.look(job_id for job_id in ping.jobs if job_id in jobs)

    def _call_soon(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        # A loop that is closed has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def _ended(self, ended: Sequence[Ended]) -> None:
        chunks = {one.job.id: [one.chunk] for one in ended if one.chunk is not None}
        self.answered(self._reader.render([one.job for one in ended], at_hand=chunks))

    def answered(self, answers: dict[str, Answer]) -> None:
        """The reader's answers, on the event loop."""
        for job_id, answer in answers.items():
            waited = self._jobs.get(job_id)
            if waited is None:
                continue
            waited.latest = answer
            if answer.job.final:
                for waiter in waited.waiters:
                    _settle(waiter.future, answer)

    def _look(self) -> None:
        assert self._loop is not None
        self._floor = self._loop.call_later(FLOOR_SECONDS, self._look)
        due = []
        for job_id, waited in self._jobs.items():
            if waited.rounds:
                due.append(job_id)
            waited.rounds += 1
        self._reader.look(due)


def _settle(future: asyncio.Future[Answer | None], answer: Answer | None) -> None:
    if not future.done():
        future.set_result(answer)
