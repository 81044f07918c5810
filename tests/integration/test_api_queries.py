"""A query parameter that is unknown or stands twice is refused with its name, on every route that takes a query."""

from typing import Any

import httpx
import pytest

from tests.integration.api_kit import ECHO, Kit, run, submit


@pytest.mark.parametrize(
    ("method", "path", "pointer", "code"),
    [
        ("POST", "/v1/jobs?priority=high", "/query/priority", "unknown_parameter"),
        ("POST", "/v1/jobs?colour=1", "/query/colour", "unknown_parameter"),
        ("GET", "/v1/jobs?state=queued&state=running", "/query/state", "duplicate"),
        ("GET", "/v1/jobs?metadata.a=1&metadata.a=2", "/query/metadata.a", "duplicate"),
        ("GET", "{job}?wait=1&wait=60", "/query/wait", "duplicate"),
        ("GET", "{job}?wiat=1", "/query/wiat", "unknown_parameter"),
        ("GET", "{job}/results?limit=1&limit=2", "/query/limit", "duplicate"),
        ("POST", "{job}/cancel?force=1", "/query/force", "unknown_parameter"),
        ("GET", "/v1/jobs?" + "&".join(f"metadata.{n}=x" for n in range(101)), "/query", "too_many"),
    ],
)
def test_it_is_named_and_nothing_happens(kit: Kit, method: str, path: str, pointer: str, code: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        job = await submit(client, 1)
        answer = await client.request(method, path.format(job=job), json=ECHO if path.startswith("/v1/jobs?") else None)
        found: Any = answer.json()
        assert answer.status_code == 400
        assert [(one["pointer"], one["code"]) for one in found["errors"]] == [(pointer, code)]
        listed = (await client.get("/v1/jobs")).json()["data"]
        assert [(one["id"], one["state"]) for one in listed] == [(job.rsplit("/", 1)[1], "queued")]

    run(kit, test)


@pytest.mark.parametrize(("method", "path"), [("GET", "/admin/v1/workers"), ("POST", "/admin/v1/models/reload")])
def test_on_the_admin_listener_too(kit: Kit, method: str, path: str) -> None:
    async def test(_: httpx.AsyncClient) -> None:
        async with kit.client("bysk_admin", app=kit.admin) as client:
            answer = await client.request(method, f"{path}?foo=1")
            assert answer.status_code == 400
            assert answer.json()["errors"][0]["pointer"] == "/query/foo"

    run(kit, test)
    assert kit.fleet.reloads == 0


def test_parquet_is_refused_until_it_is_there(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        job = await submit(client, 1)
        answer = await client.get(f"{job}/results", headers={"accept": "application/vnd.apache.parquet"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/headers/accept")

    run(kit, test)
