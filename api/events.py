"""Server-sent events of one job: progress at most once a second, its end, and nothing of its own to query.

A client shares the one query a second that serves all waiters. ``id`` is the number of decided items while the job runs
and ``final`` at its end, so a client that comes back is told only what it has not seen.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import msgspec

from api import timestamps
from api.problems import Problem
from api.reader import Answer
from api.views import CountsView, counts_view
from api.waiters import Waiters
from jobs.clock import Clock
from jobs.records import Job

MAX_CLIENTS = 1000
PROGRESS_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
FINAL = "final"

_KEEP_ALIVE = b": still here\n\n"


class _Progress(msgspec.Struct):
    counts: CountsView
    rate_per_second: float | None
    eta_at: str | None


_encoder = msgspec.json.Encoder()


class Events:
    """Counts its clients: a stream is held open for as long as a job runs."""

    def __init__(self, waiters: Waiters, clock: Clock, limit: int = MAX_CLIENTS) -> None:
        self._waiters = waiters
        self._clock = clock
        self._limit = limit
        self._clients = 0

    def check_room(self) -> None:
        if self._clients >= self._limit:
            raise Problem("unavailable", "Too many clients follow events already; ask for the job instead.")

    async def stream(self, answer: Answer, last_id: str | None) -> AsyncIterator[bytes]:
        """Events of a job as first read; ends with its `state` event, or when the process is on its way out."""
        waiter = self._waiters.register(answer.job.id)
        self._clients += 1
        try:
            rate = _Rate()
            seen = last_id
            silent = 0.0
            current: Answer | None = answer
            yield b"retry: 1000\n\n"
            while current is None or not current.job.final:
                event = None if current is None else self._progress(current.job, rate, seen)
                if event is not None and current is not None:
                    yield event
                    seen, silent = str(current.job.counts.done), 0.0
                elif silent >= KEEP_ALIVE_SECONDS:
                    yield _KEEP_ALIVE
                    silent = 0.0
                ended = await self._pause(waiter.future)
                if ended is None and self._waiters.closed:
                    return
                silent += PROGRESS_SECONDS
                current = ended or self._waiters.latest(waiter)
            yield b"event: state\nid: " + FINAL.encode() + b"\ndata: " + current.body + b"\n\n"
        finally:
            self._clients -= 1
            self._waiters.release(waiter)

    async def _pause(self, ended: asyncio.Future[Answer | None]) -> Answer | None:
        done, _ = await asyncio.wait((ended,), timeout=PROGRESS_SECONDS)
        return ended.result() if done else None

    def _progress(self, job: Job, rate: "_Rate", seen: str | None) -> bytes | None:
        """None where nothing was decided since the last event that the client has."""
        done = job.counts.done
        now = self._clock()
        speed = rate.add(now, done)
        if seen is not None and seen.isdigit() and len(seen) < 18 and done <= int(seen):
            return None
        left = job.counts.total - done
        eta = None
        if speed and left / speed < 10 * 366 * 86400:
            eta = timestamps.show(now + timedelta(seconds=left / speed))
        data = _encoder.encode(_Progress(counts_view(job.counts), speed, eta))
        return b"event: progress\nid: %d\ndata: %b\n\n" % (done, data)


class _Rate:
    """Items a second, smoothed over what this client has seen; None until there is something to go by."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._done = 0
        self._speed: float | None = None

    def add(self, now: datetime, done: int) -> float | None:
        if self._at is None:
            self._at, self._done = now, done
            return None
        seconds = (now - self._at).total_seconds()
        if seconds > 0:
            latest = max(0, done - self._done) / seconds
            self._speed = latest if self._speed is None else 0.5 * self._speed + 0.5 * latest
            self._at, self._done = now, done
        return None if self._speed is None else round(self._speed, 3)
