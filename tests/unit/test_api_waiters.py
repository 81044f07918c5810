"""Clients that wait: what a ping tells them, what a lost ping costs, and what they do not cost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from api import waiters as module
from api.problems import Problem
from api.reader import Answer, ItemLine, Reader
from api.waiters import Waiters
from jobs.errors import StoreError
from jobs.notifier import Ping
from jobs.notifiers.process import ProcessNotifier
from jobs.records import Job
from jobs.states import JobState
from jobs.store import ResultChunk
from tests.unit.test_api_values import job


class FakeStore:
    """Jobs by id; counts the questions."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.asked: list[list[str]] = []
        self.asked_results: list[list[str]] = []
        self.broken = False
        self.hold = threading.Event()
        self.hold.set()

    def jobs_by_id(self, ids: Sequence[str]) -> dict[str, Job]:
        self.hold.wait(10)
        self.asked.append(sorted(ids))
        if self.broken:
            raise StoreError("/secret/path")
        return {job_id: self.jobs[job_id] for job_id in ids if job_id in self.jobs}

    def results_of(self, jobs: Sequence[str]) -> dict[str, list[ResultChunk]]:
        self.asked_results.append(sorted(jobs))
        return {job_id: [] for job_id in jobs}


class Fixture:
    def __init__(self, limit: int = 10_000) -> None:
        self.store = FakeStore()
        self.notifier = ProcessNotifier()
        self.reader = Reader(self.store, lambda job, chunks: ItemLine(b'{"of":"%b"}' % job.id.encode(), None))  # type: ignore[arg-type]
        self.waiters = Waiters(self.reader, self.notifier, limit)

    def running(self, job_id: str, single: bool = True) -> Job:
        made = self.store.jobs[job_id] = job(id=job_id, single=single)
        return made

    def ended(self, job_id: str) -> Job:
        made = self.store.jobs[job_id] = replace(self.store.jobs[job_id], state=JobState.SUCCEEDED)
        return made


def run(test: Callable[[Fixture], Awaitable[None]], limit: int = 10_000) -> Fixture:
    fixture = Fixture(limit)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fixture.reader.start(loop, fixture.waiters.answered)
        fixture.waiters.start(loop)
        try:
            async with asyncio.timeout(20):
                await test(fixture)
        finally:
            fixture.waiters.stop()
            fixture.reader.stop()

    asyncio.run(main())
    return fixture


def test_a_ping_that_carries_its_jobs_answers_all_with_one_query_for_their_outputs() -> None:
    async def test(f: Fixture) -> None:
        waiting = []
        for at in range(50):
            f.running(f"job_{at}")
            waiting.append(f.waiters.register(f"job_{at}"))
        f.store.hold.clear()
        f.reader.look(["job_0"])  # keeps the reader busy, so that what follows is one round
        ended = tuple(f.ended(f"job_{at}") for at in range(50))
        f.notifier.ping(Ping(tuple(j.id for j in ended), ended))
        f.store.hold.set()
        answers = [await f.waiters.wait(waiter, 5) for waiter in waiting]
        assert [a.job.id for a in answers if a] == [f"job_{at}" for at in range(50)]
        assert all(a is not None and b'"output":{"of":"%b"}' % a.job.id.encode() in a.body for a in answers)
        for waiter in waiting:
            f.waiters.release(waiter)
        assert len(f.waiters) == 0

    fixture = run(test)
    assert sum(len(ids) for ids in fixture.store.asked) <= 1  # the jobs themselves came with the ping
    assert len(fixture.store.asked_results) <= 2


def test_a_ping_without_jobs_is_looked_up() -> None:
    async def test(f: Fixture) -> None:
        f.running("job_1", single=False)
        waiter = f.waiters.register("job_1")
        f.ended("job_1")
        f.notifier.ping(Ping(("job_1", "job_of_nobody")))
        answer = await f.waiters.wait(waiter, 5)
        assert answer is not None
        assert answer.job.final

    assert run(test).store.asked == [["job_1"]]


def test_a_lost_ping_costs_a_second_and_one_query_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLOOR_SECONDS", 0.05)

    async def test(f: Fixture) -> None:
        waiting = []
        for at in range(20):
            f.running(f"job_{at}", single=False)
            waiting.append(f.waiters.register(f"job_{at}"))
            f.ended(f"job_{at}")
        answers = await asyncio.gather(*[f.waiters.wait(waiter, 10) for waiter in waiting])
        assert all(a is not None and a.job.final for a in answers)

    asked = run(test).store.asked
    assert len(asked[0]) == 20


def test_nobody_waits_longer_than_asked_and_strangers_pings_cost_nothing() -> None:
    async def test(f: Fixture) -> None:
        f.running("job_1")
        waiter = f.waiters.register("job_1")
        other = f.running("job_2")
        f.notifier.ping(Ping(("job_2",), (replace(other, state=JobState.FAILED),)))
        assert await f.waiters.wait(waiter, 0.01) is None
        f.waiters.release(waiter)
        f.waiters.release(waiter)
        assert len(f.waiters) == 0

    assert run(test).store.asked == []


def test_waiters_are_bounded() -> None:
    async def test(f: Fixture) -> None:
        kept = [f.waiters.register("job_1"), f.waiters.register("job_1")]
        with pytest.raises(Problem) as caught:
            f.waiters.register("job_2")
        assert caught.value.type.status == 503
        f.waiters.release(kept[0])
        f.waiters.register("job_2")

    run(test, limit=2)


def test_stopping_lets_everybody_go() -> None:
    async def test(f: Fixture) -> None:
        f.running("job_1")
        waiter = f.waiters.register("job_1")
        waiting = asyncio.create_task(f.waiters.wait(waiter, 60))
        await asyncio.sleep(0)
        f.waiters.stop()
        assert await waiting is None
        assert await f.waiters.wait(f.waiters.register("job_1"), 60) is None

    run(test)


def test_many_reads_are_one_query_and_an_error_reaches_each() -> None:
    async def test(f: Fixture) -> None:
        for at in range(30):
            f.running(f"job_{at}", single=False)
        f.store.hold.clear()
        first = f.reader.get("job_0")
        reads = [f.reader.get(f"job_{at}") for at in range(30)] + [f.reader.get("job_unknown")]
        f.store.hold.set()
        answers: list[Answer | None] = [await first, *await asyncio.gather(*reads)]
        assert answers[-1] is None
        assert all(a is not None and a.body for a in answers[:-1])
        assert len(f.store.asked) <= 2
        f.store.broken = True
        for outcome in await asyncio.gather(f.reader.get("job_1"), f.reader.get("job_2"), return_exceptions=True):
            assert isinstance(outcome, StoreError)
        f.store.broken = False
        assert await f.reader.get("job_1") is not None

    run(test)
