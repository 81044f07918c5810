"""Answers that somebody waits for: Prefer: wait on a submission, ?wait= on a job."""

import asyncio

import httpx
import pytest

from api import waiters
from tests.integration.api_kit import ECHO, Kit, run, until


@pytest.mark.parametrize("carry", [True, False])
def test_prefer_wait_gives_the_finished_job(kit: Kit, carry: bool) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        asking = asyncio.create_task(client.post("/v1/jobs", json=ECHO, headers={"prefer": "wait=100"}))
        await kit.until_committed()
        kit.work(carry=carry)
        answer = await asking
        assert answer.status_code == 200
        assert answer.headers["preference-applied"] == "wait=60"
        assert answer.json()["output"] == {"id": 17, "value": 3}
        assert len(kit.app.front.waiters) == 0

    run(kit, test)


def test_prefer_wait_in_vain_is_202(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/jobs", json=ECHO, headers={"prefer": "respond-async, wait=1"})
        assert answer.status_code == 202
        assert answer.headers["preference-applied"] == "wait=1"
        assert answer.json()["state"] == "queued"
        assert "location" in answer.headers

    run(kit, test)


@pytest.mark.parametrize("ping", [True, False])
def test_get_wait_is_woken_by_the_ping_or_by_the_floor(kit: Kit, monkeypatch: pytest.MonkeyPatch, ping: bool) -> None:
    monkeypatch.setattr(waiters, "FLOOR_SECONDS", 3600.0 if ping else 0.02)

    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        # A wait that nothing ends is longer than `run` gives a test.
        asking = asyncio.create_task(client.get(f"{path}?wait=60"))
        await until(lambda: len(kit.app.front.waiters) == 1)
        kit.work(ping=ping)
        assert (await asking).json()["state"] == "succeeded"
        assert (await client.get(f"{path}?wait=30")).json()["state"] == "succeeded"

    run(kit, test)


def test_a21_answers_of_one_batch_go_to_their_own_callers(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        async with kit.working():
            for round_ in range(30):
                bodies = [{"model": "echo", "input": {"id": round_ * 3 + at, "value": at}} for at in range(3)]
                answers = await asyncio.gather(
                    *[client.post("/v1/jobs", json=body, headers={"prefer": "wait=20"}) for body in bodies]
                )
                assert [answer.json()["output"] for answer in answers] == [body["input"] for body in bodies]

    run(kit, test)
