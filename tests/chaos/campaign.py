"""A client that never gives up: it posts a plan of jobs with idempotency keys while the service is being killed."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from tests.oracle.client_ledger import ClientLedger, Outcome, SentItem
from tests.oracle.executions import FIRST_ID
from tests.oracle.view import KEY

RETRY_SECONDS = 0.05
Where = Callable[[], tuple[str, str] | None]


@dataclass(frozen=True, slots=True)
class PlannedJob:
    key: str
    model: str
    items: tuple[SentItem, ...]


def plan(count: int, seed: int, large: Sequence[int] = ()) -> list[PlannedJob]:
    """``count`` jobs of 1 to 16 items over echo, sum and slow; those numbered in ``large`` are echo jobs with one item
    above 256 KiB, too large for a row."""
    rng = random.Random(seed)
    return [_planned(rng, number, number in large) for number in range(count)]


def _planned(rng: random.Random, number: int, large: bool) -> PlannedJob:
    key = f"campaign-{number}"
    model = "echo" if large else rng.choice(("echo", "sum", "slow"))
    items = []
    for position in range(rng.randint(1, 16)):
        ident = FIRST_ID + number * 100 + position
        value: object = rng.randrange(1_000_000)
        if large and position == 0:
            value = f"{ident} " * 40_000
        if model == "sum":
            given = {"id": ident, "values": [rng.randrange(1000) for _ in range(rng.randint(0, 5))]}
        elif model == "slow":
            given = {"id": ident, "value": value, "ms": rng.randint(1, 4)}
        else:
            given = {"id": ident, "value": value}
        items.append(SentItem(f"item-{ident}", given))
    return PlannedJob(key, model, tuple(items))


@dataclass
class Campaign:
    """Threads that post the released part of the plan, each job until it is acknowledged or refused for good.

    ``where`` gives the address and key of a service that is up, None while there is none.
    """

    jobs: Sequence[PlannedJob]
    ledger: ClientLedger
    where: Where
    threads: int = 4
    acked: int = 0
    refused: list[str] = field(default_factory=list)
    _released: int = 0
    _taken: int = 0
    _stopping: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def release(self, count: int) -> int:
        """Lets ``count`` more jobs go; gives the number of jobs released so far."""
        with self._changed:
            self._released = min(self._released + count, len(self.jobs))
            self._changed.notify_all()
            return self._released

    def wait_acked(self, count: int, timeout: float) -> None:
        """Until that many jobs are acknowledged; AssertionError if they are not in time or one was refused."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.acked >= count or self.refused, timeout)
            assert done, f"{self.acked} of {count} jobs acknowledged in {timeout} s"
            assert not self.refused, f"refused: {self.refused}"

    def __enter__(self) -> "Campaign":
        self._workers = [threading.Thread(target=self._run, daemon=True) for _ in range(self.threads)]
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join(15)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self.ledger.sent(job.key, "default", job.model, job.items)
            while not self._stopping and not self._post(job):
                with self._changed:  # the service may be starting again
                    self._changed.wait(RETRY_SECONDS)

    def _next(self) -> PlannedJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._taken < self._released)
            if self._stopping:
                return None
            self._taken += 1
            return self.jobs[self._taken - 1]

    def _post(self, job: PlannedJob) -> bool:
        """One try. True when there is nothing left to try."""
        target = self.where()
        if target is None:
            return False
        url, key = target
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": f'"{job.key}"'}
        items = [{"id": item.id, "input": item.input} for item in job.items]
        body = {"model": job.model, "items": items, "metadata": {KEY: job.key}}
        try:
            answer = httpx.post(f"{url}/v1/jobs", json=body, headers=headers, timeout=10)
        except httpx.HTTPError:
            self.ledger.answered(job.key, Outcome.UNKNOWN)
            return False
        if answer.status_code in (200, 202):
            self.ledger.answered(job.key, Outcome.ACKED, status=answer.status_code, job=answer.json()["id"])
            with self._changed:
                self.acked += 1
                self._changed.notify_all()
            return True
        self.ledger.answered(job.key, Outcome.REFUSED, status=answer.status_code)
        if answer.status_code in (429, 503):
            return False
        with self._changed:
            self.refused.append(f"{job.key}: {answer.status_code} {answer.text[:300]}")
            self._changed.notify_all()
        return True
