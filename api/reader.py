"""Reads of the ledger for the event loop: one thread that takes all reads waiting at that moment at once.

However many clients ask, a round costs one query for jobs and one for the outputs of those of them that have a single
item. The bodies are made here too, and the loop is told once a round.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from api.views import render_job
from jobs.errors import BatchyardError, Unavailable
from jobs.records import Job
from jobs.states import JobState
from jobs.store import ResultChunk, Store

log = logging.getLogger("batchyard.api")

MAX_ROUND = 1000
ON_LOOP_BYTES = 16 * 1024


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A job and, for one that was asked for or has ended, its JSON."""

    job: Job
    body: bytes


class ItemLine(msgspec.Struct, frozen=True, gc=False):
    """What the line of a job's only item says: JSON of its output (None: not inline) and of its error."""

    output: bytes | None
    error: bytes | None


_Single = Callable[[Job, Sequence[ResultChunk]], ItemLine]


class Ended(NamedTuple):
    """A job that ended, and the chunk that holds its one item if that is at hand."""

    job: Job
    chunk: ResultChunk | None

    @property
    def at_hand(self) -> bool:
        """Its JSON can be made on the event loop: nothing is to be read, and what there is is small."""
        if self.chunk is None or self.chunk.results is None:
            return not has_line(self.job)
        return len(self.chunk.results) <= ON_LOOP_BYTES


class _Asked(NamedTuple):
    job_id: str
    answer: asyncio.Future[Answer | None]


_Entry = _Asked | Ended | str


class Reader:
    """``read_single`` gives the outcome of a one-item job from its chunks; ``told`` gets, on the event loop, the
    answers that no call awaits (jobs that ended while somebody waits, and those of `look`)."""

    def __init__(self, store: Store, read_single: _Single) -> None:
        self._store = store
        self._read_single = read_single
        self._queue: queue.SimpleQueue[_Asked | list[Ended] | list[str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: Callable[[dict[str, Answer]], None] = lambda answers: None

    def start(self, loop: asyncio.AbstractEventLoop, told: Callable[[dict[str, Answer]], None]) -> None:
        self._loop, self._told = loop, told
        self._thread = threading.Thread(target=self._run, name="api-reader", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def get(self, job_id: str) -> asyncio.Future[Answer | None]:
        """The job as it now is, with its JSON; None if there is none. To be called on the event loop."""
        assert self._loop is not None
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._queue.put(_Asked(job_id, future))
        return future

    def ended(self, jobs: Iterable[Ended]) -> None:
        """These ended: `told` shall have their answers. From any thread; no query for the jobs themselves, nor for the
        results that are given along."""
        self._put(list(jobs))

    def look(self, ids: Iterable[str]) -> None:
        """`told` shall have these jobs as they now are. From any thread."""
        self._put(list(ids))

    def _put(self, entries: list[Ended] | list[str]) -> None:
        # At once: one by one, the reader would wake for the first and make a round of every few.
        if entries:
            self._queue.put(entries)

    def _run(self) -> None:
        while True:
            entry = self._queue.get()
            entries: list[_Entry] = []
            while entry is not None:
                if isinstance(entry, list):
                    entries += entry
                else:
                    entries.append(entry)
                if len(entries) >= MAX_ROUND:
                    break
                try:
                    entry = self._queue.get_nowait()
                except queue.Empty:
                    break
            if entries:
                self._round(entries)
            if entry is None:
                return

    def _round(self, entries: Sequence[_Entry]) -> None:
        asked = [entry for entry in entries if isinstance(entry, _Asked)]
        try:
            answers = self._answers(entries, asked)
            error = None
        except BatchyardError as failure:
            answers, error = {}, failure
        except Exception:
            log.exception("reading jobs failed")
            answers, error = {}, Unavailable("Jobs cannot be read at the moment.")
        for_told = [entry for entry in entries if isinstance(entry, str)]
        for_told += [entry.job.id for entry in entries if isinstance(entry, Ended)]
        told = {job_id: answers[job_id] for job_id in for_told if job_id in answers}
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, asked, answers, told, error)
        except RuntimeError:
            log.debug("the event loop is closed; %d reads have nobody left to answer", len(entries))

    def _answers(self, entries: Sequence[_Entry], asked: Sequence[_Asked]) -> dict[str, Answer]:
        ended = [entry for entry in entries if isinstance(entry, Ended)]
        jobs = {entry.job.id: entry.job for entry in ended}
        at_hand = {entry.job.id: [entry.chunk] for entry in ended if entry.chunk is not None}
        wanted = {entry for entry in entries if isinstance(entry, str)} | {job_id for job_id, _ in asked}
        wanted -= jobs.keys()
        if wanted:
            jobs.update(self._store.jobs_by_id(list(wanted)))
        return self.render(jobs.values(), {job_id for job_id, _ in asked}, at_hand)

    def render(
        self,
        jobs: Iterable[Job],
        all_of: set[str] | None = None,
        at_hand: Mapping[str, Sequence[ResultChunk]] | None = None,
    ) -> dict[str, Answer]:
        """Answers of these jobs; those that run on are left without a body unless they are in `all_of`. Results that
        are not `at_hand` are read."""
        jobs = list(jobs)
        chunks = dict(at_hand or {})
        singles = [job.id for job in jobs if has_line(job) and job.id not in chunks]
        if singles:
            chunks |= self._store.results_of(singles)
        answers = {}
        for job in jobs:
            line = self._line(job, chunks[job.id]) if job.id in chunks and has_line(job) else None
            if line is not None:
                body = render_job(job, line.output, line.error)
            elif job.final or all_of is None or job.id in all_of:
                body = render_job(job)
            else:
                body = b""
            answers[job.id] = Answer(job, body)
        return answers

    def _line(self, job: Job, chunks: Sequence[ResultChunk]) -> ItemLine | None:
        """None where the result cannot be read: that must not cost the other clients of the round their answer."""
        try:
            return self._read_single(job, chunks)
        except Exception:
            log.exception("the result of job %s cannot be read", job.id)
            return None

    def _deliver(
        self,
        asked: Sequence[_Asked],
        answers: dict[str, Answer],
        told: dict[str, Answer],
        error: BatchyardError | None,
    ) -> None:
        for job_id, future in asked:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answers.get(job_id))
        if told:
            self._told(told)


def has_line(job: Job) -> bool:
    """Whether a job's JSON carries what its one item ended with."""
    return job.single and job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.EXPIRED)
