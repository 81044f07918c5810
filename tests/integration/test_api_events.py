"""Server-sent events of a job: its progress, its end, and what a client that comes back is told."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from api import events as events_module
from api import waiters as waiters_module
from tests.integration.api_kit import OTHER_KEY, Kit, run, submit, until


class Follower:
    """Asks for the events of a job at once. The transport gives a client an answer when it has ended;
    `heard` has what was sent until now."""

    def __init__(self, kit: Kit, path: str, **headers: str) -> None:
        self._kit = kit
        self.heard = bytearray()
        self.answer = asyncio.create_task(self._ask(f"{path}/events", headers))

    async def _ask(self, path: str, headers: dict[str, str]) -> httpx.Response:
        async with self._kit.client(app=self._overheard) as client:
            return await client.get(path, headers=headers)

    async def _overheard(self, scope: Any, receive: Any, send: Any) -> None:
        async def hear(message: Any) -> None:
            self.heard += message.get("body", b"")
            await send(message)

        await self._kit.app(scope, receive, hear)

    async def until(self, text: bytes, times: int = 1) -> None:
        await until(lambda: self.heard.count(text) >= times)


def parse_events(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    parsed = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            parsed.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return parsed


def test_events_tell_progress_and_the_end(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters_module, "FLOOR_SECONDS", 0.02)
    monkeypatch.setattr(events_module, "PROGRESS_SECONDS", 0.02)

    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 100)
        await kit.until_committed()
        job = kit.committed[0]
        following = Follower(kit, path)
        await following.until(b"id: 0\n")
        kit.finish(kit.chunks_of(job, only=[0]))
        await following.until(b"id: 64\n")
        kit.finish(kit.chunks_of(job, only=[1]))
        answer = await following.answer
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = parse_events(answer.text)
        assert [(kind, id_) for kind, id_, _ in told] == [
            ("progress", "0"), ("progress", "64"), ("state", "final"),
        ]  # fmt: skip
        assert told[1][2]["counts"]["succeeded"] == 64
        assert set(told[1][2]) == {"counts", "rate_per_second", "eta_at"}
        assert told[1][2]["rate_per_second"] > 0
        assert told[2][2] == (await client.get(path)).json()
        assert len(kit.app.front.waiters) == 0
        # Once more: what it has seen already is not told again.
        assert (await client.get(f"{path}/events", headers={"last-event-id": "final"})).status_code == 204
        again = await client.get(f"{path}/events", headers={"last-event-id": "64"})
        assert [kind for kind, _, _ in parse_events(again.text)] == ["state"]

    run(kit, test)


def test_last_event_id_is_honoured_and_silence_is_kept_alive(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(events_module, "KEEP_ALIVE_SECONDS", 0.02)

    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 100)
        await kit.until_committed()
        kit.finish(kit.chunks_of(kit.committed[0], only=[0]))
        following = Follower(kit, path, **{"last-event-id": "64"})
        await following.until(b": still here\n", times=2)
        kit.app.drain()
        assert parse_events((await following.answer).text) == []

    run(kit, test)


def test_event_clients_are_bounded(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 1)
        kit.app.front.events._limit = 0
        answer = await client.get(f"{path}/events")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        async with kit.client(OTHER_KEY) as stranger:
            assert (await stranger.get(f"{path}/events")).status_code == 404

    run(kit, test)
