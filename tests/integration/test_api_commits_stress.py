"""Clients that wait and go, in any order with the commit: none is left open, none waits for ever."""

import asyncio
import random
from typing import Any

import httpx
import pytest

from jobs.errors import Unavailable
from jobs.records import NewJob
from tests.integration.api_kit import ECHO, Kit, run


@pytest.mark.parametrize("seed", range(3))
def test_whoever_waits_or_goes_leaves_nothing_open(kit: Kit, seed: int) -> None:
    chance = random.Random(seed)
    submit = kit.ledger.submit

    def sometimes(job: NewJob, sink: Any) -> None:
        if chance.random() < 0.1:
            raise Unavailable("full")
        if chance.random() < 0.1:
            kit.ledger.post(lambda tx: 1 / 0)  # the group is made again, in savepoints
        submit(job, sink)

    async def test(client: httpx.AsyncClient) -> None:
        await client.get("/v1/jobs/job_0")
        kit.ledger.submit = sometimes  # type: ignore[method-assign]
        front = kit.app.front

        async def one(number: int) -> int | None:
            headers = {"prefer": f"wait={chance.choice((1, 2))}"} if chance.random() < 0.8 else {}
            if chance.random() < 0.3:
                headers["idempotency-key"] = f"k{number % 7}"
            asking = asyncio.create_task(client.post("/v1/jobs", json=ECHO, headers=headers))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.02)
                asking.cancel()
            try:
                return (await asking).status_code
            except asyncio.CancelledError:
                return None

        def work() -> None:
            jobs = [kit.committed.pop() for _ in range(len(kit.committed))]
            for job in jobs:
                if chance.random() < 0.8:
                    kit.finish(kit.chunks_of(job))

        async def worker() -> None:
            while True:
                await asyncio.to_thread(work)
                await asyncio.sleep(0.001)

        working = asyncio.create_task(worker())
        statuses = await asyncio.gather(*(one(number) for number in range(200)))
        assert not working.done(), working.exception()
        working.cancel()
        assert 200 in statuses
        assert set(statuses) <= {None, 200, 202, 503}
        await asyncio.to_thread(kit.ledger.call, lambda tx: None)
        await asyncio.sleep(0.05)
        assert front.jobs._commits._open == {}
        assert front.jobs._twins == {}
        assert len(front.waiters) == 0
        assert front.waiters._jobs == {}

    run(kit, test)
