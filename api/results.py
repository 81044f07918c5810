"""Result lines read from the ledger a page at a time, so that a reply of any length holds one page in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from api.reader import ItemLine
from jobs.blob import BlobStore
from jobs.clock import Clock
from jobs.errors import Gone, NotFound
from jobs.records import Job
from jobs.states import JobState, Outcome
from jobs.store import ResultChunk, Store
from jobs.tensors import results

PAGE = 128
"""Items read at once; a multiple of the usual chunk sizes, so that few chunks are read twice."""

LINE_STATES = ("succeeded", "failed", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class Span:
    """What a reply holds: lines of items [start, stop) in `state` (None: all), known before its first byte is sent."""

    start: int
    stop: int
    state: str | None
    complete: bool  # the job has ended and nothing follows `stop`


class Results:
    """Every method reads the ledger: to be called in the reading pool."""

    def __init__(self, store: Store, blobs: BlobStore, link_life: timedelta, clock: Clock) -> None:
        self._store = store
        self._blobs = blobs
        self._link_life = link_life
        self._clock = clock

    def job(self, tenant: str, job_id: str) -> Job:
        """NotFound for a job that this tenant does not have; Gone for one whose results are past their retention."""
        job = self._store.job(tenant, job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id[:80]}.")
        if job.results_expire_at is not None and job.results_expire_at <= self._clock():
            raise Gone(f"The results of job {job.id} were kept until {job.results_expire_at.isoformat()}.")
        return job

    def span(self, job: Job, start: int, limit: int | None, state: str | None) -> Span:
        """Where the reply ends: before the first item that is not decided, or once it has `limit` lines."""
        total = job.counts.total
        if start >= total:
            return Span(start, start, state, job.final)
        if job.final and (limit is None or state is None):
            stop = total if limit is None else min(total, start + limit)
            return Span(start, stop, state, stop >= total)
        wanted = None if state is None else Outcome[state.upper()]
        lines = 0
        at = start
        while at < total:
            page_end = min(total, at + PAGE - at % PAGE)
            outcomes = self._outcomes(job.id, at)
            while at < page_end and at in outcomes and (limit is None or lines < limit):
                lines += wanted is None or outcomes[at] is wanted
                at += 1
            if at < page_end:
                break
        return Span(start, at, state, job.final and at >= total)

    def _outcomes(self, job_id: str, at: int) -> dict[int, Outcome]:
        """Outcomes of the decided items of the page that begins at or before `at`."""
        decided: dict[int, Outcome] = {}
        for chunk in self._store.results(job_id, at, PAGE - at % PAGE):
            positions = (index for begin, end in chunk.items for index in range(begin, end))
            for index, outcome in zip(positions, chunk.outcomes, strict=True):
                if outcome not in (Outcome.PENDING, Outcome.MOVED):
                    decided[index] = Outcome(outcome)
        return decided

    def pages(self, job: Job, span: Span) -> Iterator[bytes]:
        """JSON Lines, a page of items at a time (a page may be empty where `state` leaves everything out)."""
        at = span.start
        while at < span.stop:
            stop = min(span.stop, at + PAGE - at % PAGE)
            chunks = self._store.results(job.id, at, stop - at)
            lines = results.lines(job.version, chunks, self._sign, from_index=at, limit=stop - at, state=span.state)
            yield b"".join(part for line in lines for part in (line.text, b"\n"))
            at = stop

    def single(self, job: Job, chunks: Sequence[ResultChunk]) -> ItemLine:
        """What the one item of a job ended with; an output that lies in a blob is not repeated in the job."""
        signed: list[str] = []

        def sign(key: str) -> tuple[str, datetime]:
            signed.append(key)
            return "", self._clock()

        said = results.only(chunks[0], sign) if len(chunks) == 1 else None
        if said is None:
            said = next(((line.output, line.error) for line in results.lines(job.version, chunks, sign, limit=1)), None)
        output, error = said or (None, None)
        inline = job.state is JobState.SUCCEEDED and not signed
        return ItemLine(output if inline else None, error)

    def _sign(self, key: str) -> tuple[str, datetime]:
        return self._blobs.sign(key, self._link_life), self._clock() + self._link_life
