"""The ways of asking, each a small state machine over connections; every answer is kept for the comparison."""

import asyncio
import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import orjson

from tests.bench.connection import Connection, request
from tests.bench.work import Work

WAIT = ("Prefer", "wait=60")


@dataclass
class Kept:
    """What came back."""

    single: list[tuple[int, bytes]] = field(default_factory=list)  # row, the job with its output
    lines: list[tuple[tuple[int, ...], bytes]] = field(default_factory=list)  # rows of a job, its results
    problems: list[str] = field(default_factory=list)  # answers that are none
    accepted: list[float] = field(default_factory=list)  # seconds until 202 (open loop)
    answered: list[float] = field(default_factory=list)  # seconds until the result (open loop)
    asked: int = 0  # items
    requests: int = 0

    def problem(self, what: str, status: int, body: bytes) -> None:
        self.problems.append(f"{what}: HTTP {status} {body[:200]!r}")


@dataclass(frozen=True)
class Prepared:
    """Requests made ready before the clock runs."""

    key: str
    model: str
    waiting: list[bytes]  # a row each, answered when its job is final
    posting: list[bytes]  # the same, answered at once
    jobs: list[tuple[tuple[int, ...], bytes]]  # rows and request of jobs of many items

    @classmethod
    def of(cls, work: Work, key: str, job_items: int) -> "Prepared":
        head = f'{{"model":"{work.model}",'
        bodies = [f'{head}"input":{text}}}'.encode() for text in work.texts]
        jobs = []
        for at in range(0, work.rows - job_items + 1, job_items):
            items = ",".join(f'{{"input":{text}}}' for text in work.texts[at : at + job_items])
            body = f'{head}"items":[{items}]}}'.encode()
            jobs.append((tuple(range(at, at + job_items)), request("POST", "/v1/jobs", key, body, (WAIT,))))
        return cls(
            key,
            work.model,
            [request("POST", "/v1/jobs", key, body, (WAIT,)) for body in bodies],
            [request("POST", "/v1/jobs", key, body) for body in bodies],
            jobs,
        )

    def reading(self, job: str) -> bytes:
        return request("GET", f"/v1/jobs/{job}?wait=60", self.key)

    def results(self, job: str) -> bytes:
        return request("GET", f"/v1/jobs/{job}/results", self.key)


class Closed:
    """Each connection asks again as soon as it is answered, until ``until`` (monotonic) or ``most`` items; ``done`` is
    set when the last answer is in."""

    def __init__(self, prepared: Prepared, kept: Kept, until: float, most: int | None = None) -> None:
        self.prepared = prepared
        self.kept = kept
        self.until = until
        self.most = most
        self.open = 0
        self.done = asyncio.Event()

    def begin(self, connections: Sequence[Connection]) -> None:
        self.open = len(connections)
        for connection in connections:
            self.next(connection)

    def next(self, connection: Connection) -> None:
        if time.monotonic() >= self.until or (self.most is not None and self.kept.asked >= self.most):
            self.open -= 1
            if not self.open:
                self.done.set()
        else:
            self.ask(connection)

    def ask(self, connection: Connection) -> None:
        raise NotImplementedError


class Waiting(Closed):
    """One item a request; the answer is the finished job (``Prefer: wait``)."""

    def __init__(self, prepared: Prepared, kept: Kept, until: float, most: int | None = None) -> None:
        super().__init__(prepared, kept, until, most)
        self.rows: Iterator[tuple[int, bytes]] = cycle(enumerate(prepared.waiting))

    def ask(self, connection: Connection) -> None:
        row, prepared = next(self.rows)
        self.kept.asked += 1
        self.kept.requests += 1

        def answered(status: int, body: bytes) -> None:
            if status == 200:
                self.kept.single.append((row, body))
            else:
                self.kept.problem("POST with Prefer: wait", status, body)
            self.next(connection)

        connection.send(prepared, answered)


class PostGet(Closed):
    """One item a job: POST, then ``GET ?wait=``."""

    def __init__(self, prepared: Prepared, kept: Kept, until: float, most: int | None = None) -> None:
        super().__init__(prepared, kept, until, most)
        self.rows: Iterator[tuple[int, bytes]] = cycle(enumerate(prepared.posting))

    def ask(self, connection: Connection) -> None:
        row, prepared = next(self.rows)
        ask_once(self.prepared, self.kept, connection, row, prepared, lambda: self.next(connection))


def ask_once(
    prepared: Prepared,
    kept: Kept,
    connection: Connection,
    row: int,
    posting: bytes,
    done: Callable[[], None],
    since: float | None = None,
) -> None:
    """POST and GET of one item; with ``since`` (monotonic) its times are kept too."""
    kept.asked += 1
    kept.requests += 2

    def accepted(status: int, body: bytes) -> None:
        if status != 202:
            kept.problem("POST", status, body)
            done()
            return
        if since is not None:
            kept.accepted.append(time.monotonic() - since)
        connection.send(prepared.reading(orjson.loads(body)["id"]), finished)

    def finished(status: int, body: bytes) -> None:
        if status == 200:
            kept.single.append((row, body))
            if since is not None:
                kept.answered.append(time.monotonic() - since)
        else:
            kept.problem("GET ?wait=", status, body)
        done()

    connection.send(posting, accepted)


class Jobs(Closed):
    """Jobs of many items: one POST that waits for the end, one read of the results."""

    def __init__(self, prepared: Prepared, kept: Kept, until: float, most: int | None = None) -> None:
        super().__init__(prepared, kept, until, most)
        self.jobs: Iterator[tuple[tuple[int, ...], bytes]] = cycle(prepared.jobs)

    def ask(self, connection: Connection) -> None:
        rows, prepared = next(self.jobs)
        self.kept.asked += len(rows)
        self.kept.requests += 2

        def finished(status: int, body: bytes) -> None:
            if status != 200:
                self.kept.problem("POST of many items", status, body)
                self.next(connection)
            else:
                connection.send(self.prepared.results(orjson.loads(body)["id"]), read)

        def read(status: int, body: bytes) -> None:
            if status == 200:
                self.kept.lines.append((rows, body))
            else:
                self.kept.problem("results", status, body)
            self.next(connection)

        connection.send(prepared, finished)


class Open:
    """Poisson arrivals at ``rate`` a second for ``seconds``: POST, then GET, timed from the *scheduled* moment, also
    when no connection is free then."""

    def __init__(self, prepared: Prepared, kept: Kept, rate: float, seconds: float) -> None:
        self.prepared = prepared
        self.kept = kept
        rng = random.Random(5)
        at, self.schedule = time.monotonic() + 0.05, deque[float]()
        end = at + seconds
        while (at := at + rng.expovariate(rate)) < end:
            self.schedule.append(at)
        self.rows = cycle(enumerate(prepared.posting))
        self.late: list[float] = []  # arrivals without a connection, a heap
        self.free: list[Connection] = []
        self.left = len(self.schedule)
        self.done = asyncio.Event()

    def begin(self, connections: Sequence[Connection]) -> None:
        self.free = list(connections)
        self._arrive()

    def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        while self.schedule and self.schedule[0] <= now:
            scheduled = self.schedule.popleft()
            if self.free:
                self._ask(self.free.pop(), scheduled)
            else:
                heapq.heappush(self.late, scheduled)
        if self.schedule:
            loop.call_later(max(0.0, self.schedule[0] - time.monotonic()), self._arrive)

    def _ask(self, connection: Connection, scheduled: float) -> None:
        row, posting = next(self.rows)
        ask_once(self.prepared, self.kept, connection, row, posting, lambda: self._free(connection), scheduled)

    def _free(self, connection: Connection) -> None:
        self.left -= 1
        if self.late:
            self._ask(connection, heapq.heappop(self.late))
        else:
            self.free.append(connection)
        if not self.left:
            self.done.set()
