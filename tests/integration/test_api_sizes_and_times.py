"""How large a request may be, how long a key is kept, and that an instant is one whatever zone the process lives in."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from api import events
from jobs.settings import Limits, Settings
from tests.contracts.store_kit import ManualClock
from tests.integration.api_kit import ECHO, Kit, run

JSON = {"content-type": "application/json"}


def test_the_largest_request_is_16_mib_and_takes_it(tmp_path: Path) -> None:
    assert Settings().limits == Limits(request_bytes=16 * 1024 * 1024, items=1000)
    kit = Kit(tmp_path)

    async def test(client: httpx.AsyncClient) -> None:
        body = json.dumps(ECHO).encode()
        body += b" " * (16 * 1024 * 1024 - len(body))
        assert (await client.post("/v1/jobs", content=body, headers=JSON)).status_code == 202
        answer = await client.post("/v1/jobs", content=body + b" ", headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert str(16 * 1024 * 1024) in answer.json()["detail"]

    with closing(kit):
        run(kit, test)


def test_a_key_is_kept_for_more_than_a_day(tmp_path: Path) -> None:
    clock = ManualClock()
    kit = Kit(tmp_path, clock)
    key = {"idempotency-key": "day"}

    async def test(client: httpx.AsyncClient) -> None:
        first = await client.post("/v1/jobs", json=ECHO, headers=key)
        kit.work()
        clock.advance(timedelta(hours=25))
        again = await client.post("/v1/jobs", json=ECHO, headers=key)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert again.headers["idempotent-replayed"] == "true"
        other = await client.post("/v1/jobs", json={**ECHO, "priority": "high"}, headers=key)
        assert other.status_code == 422

    with closing(kit):
        run(kit, test)


def test_progress_is_told_once_a_second_at_most() -> None:
    assert events.PROGRESS_SECONDS >= 1


@pytest.fixture(params=["America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process's own zone, really in force."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_a42_whatever_the_process_s_zone_an_instant_is_one(tmp_path: Path, zone: str) -> None:
    assert time.timezone in (5 * 3600, -int(5.5 * 3600)), f"{zone} is not in force"
    kit = Kit(tmp_path, ManualClock(datetime(2026, 10, 31, 17, 0, tzinfo=UTC)))
    instants = {
        "2026-11-01T05:30:00Z": "2026-11-01T05:30:00+00:00",
        "2026-11-01T11:15:00+05:45": "2026-11-01T05:30:00+00:00",
        "2026-11-01T01:30:00-04:00": "2026-11-01T05:30:00+00:00",
        "2026-11-01T01:30:00-05:00": "2026-11-01T06:30:00+00:00",
    }

    async def test(client: httpx.AsyncClient) -> None:
        for given in instants:
            answer = await client.post("/v1/jobs", json={**ECHO, "not_before": given})
            assert answer.status_code == 202, answer.text
            assert answer.json()["created_at"] == "2026-10-31T17:00:00.000Z"
        await kit.until_committed(len(instants))
        kept = [job.not_before for job in kit.committed]
        assert [at.astimezone(UTC).isoformat() for at in kept if at] == list(instants.values())
        answer = await client.post("/v1/jobs", json={**ECHO, "not_before": "2026-11-01T01:30:00"})
        assert [finding["pointer"] for finding in answer.json()["errors"]] == ["/not_before"]
        after = "/v1/jobs?created_after="
        assert (await client.get(f"{after}2026-10-31T17:00:00")).status_code == 400
        assert len((await client.get(f"{after}2026-10-31T12:59:59-04:00")).json()["data"]) == 4
        assert (await client.get(f"{after}2026-10-31T22:45:01%2B05:45")).json()["data"] == []

    with closing(kit):
        run(kit, test)
