"""What the API refuses, and that nothing is written then: limits, media types, scopes, queries, garbage."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api import body as body_module
from api.app import create_app
from jobs.settings import Limits, Settings
from tests.integration.api_kit import AUTH, ECHO, READER_KEY, FullLedger, Kit, run, submit


def test_limits_come_before_anything_is_kept(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    sent = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 100
            yield b"x" * 100

    async def test(client: httpx.AsyncClient) -> None:
        json_type = {"content-type": "application/json"}
        declared = await client.post("/v1/jobs", content=b" " * 1001, headers=json_type)
        assert (declared.status_code, declared.json()["code"]) == (413, "too_large")
        assert "1000" in declared.json()["detail"]
        # Streaming in, without a length: refused as soon as the limit is passed.
        assert (await client.post("/v1/jobs", content=stream(), headers=json_type)).status_code == 413
        exact = json.dumps({"model": "echo", "input": ""}).encode()
        exact += b" " * (1000 - len(exact))
        assert (await client.post("/v1/jobs", content=exact, headers=json_type)).status_code == 202

    with closing(Kit(tmp_path / "small", settings=Settings(limits=Limits(request_bytes=1000)))) as small:
        run(small, test)

    async def too_many(client: httpx.AsyncClient) -> None:
        refused = await client.post("/v1/jobs", json={"model": "nothing", "items": [{"input": 1}] * 1001})
        assert refused.status_code == 413
        assert (await client.get("/v1/jobs")).json()["data"] == []

    run(kit, too_many)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-ndjson"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_media_types_are_415(kit: Kit, headers: dict[str, str]) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/jobs", content=json.dumps(ECHO), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    run(kit, test)


def test_a_body_that_stalls_is_given_up(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "READ_SECONDS", 0.05)

    async def test(client: httpx.AsyncClient) -> None:
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.Event().wait()  # nothing more ever comes
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", AUTH["authorization"].encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": headers, "query_string": b""}
        await kit.app(scope, receive, send)
        assert sent[0]["status"] == 408
        # One that leaves instead has nobody to answer.
        sent.clear()
        parts.append({"type": "http.disconnect"})
        await kit.app(scope, receive, send)
        assert sent == []

    run(kit, test)


def test_a_full_ledger_is_503_and_writes_nothing(kit: Kit) -> None:
    kit.app = create_app(replace(kit.services, ledger=FullLedger()))

    async def test(client: httpx.AsyncClient) -> None:
        for body in (ECHO, {"model": "echo", "input": "x" * 300_000}):
            answer = await client.post("/v1/jobs", json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["retry-after"] == "2"
            assert answer.json()["retryable"] is True
        assert kit.blobs.keys("") == []
        assert len(kit.publisher.withdrawn) == 2
        assert (await client.post(f"/v1/jobs/job_{'0' * 26}/cancel")).status_code == 503

    run(kit, test)


@pytest.mark.parametrize(
    ("path", "query", "pointer"),
    [
        ("/v1/jobs", "after=nonsense", "/query/after"),
        ("/v1/jobs", "limit=0", "/query/limit"),
        ("/v1/jobs", "limit=201", "/query/limit"),
        ("/v1/jobs", "limit=x", "/query/limit"),
        ("/v1/jobs", "state=done", "/query/state"),
        ("/v1/jobs", "created_after=2026-11-30T17:00:00", "/query/created_after"),
        ("/v1/jobs", "colour=red", "/query/colour"),
        ("{job}", "wait=x", "/query/wait"),
        ("{job}", "wait=-1", "/query/wait"),
        ("{job}", "wait=", "/query/wait"),
        ("{job}", "weit=1", "/query/weit"),
        ("{job}", "wait=1e3", "/query/wait"),
        ("{job}", "wait=nan", "/query/wait"),
        ("{job}/results", "from_index=-1", "/query/from_index"),
        ("{job}/results", "from_index=x", "/query/from_index"),
        ("{job}/results", "limit=0", "/query/limit"),
        ("{job}/results", "limit=1e3", "/query/limit"),
        ("{job}/results", "state=queued", "/query/state"),
        ("{job}/results", "colour=1", "/query/colour"),
    ],
)
def test_a_wrong_query_names_its_parameter(kit: Kit, path: str, query: str, pointer: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.get(f"{path.format(job=await submit(client, 1))}?{query}")
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert [finding["pointer"] for finding in answer.json()["errors"]] == [pointer]

    run(kit, test)


@pytest.mark.parametrize("query", ["order=completion", "include=retries", "after=x"])
def test_what_does_not_exist_yet_is_refused(kit: Kit, query: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 1)
        answer = await client.get(f"{path}/results?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "not_available")
        assert "not available yet" in answer.json()["detail"]

    run(kit, test)


def test_scopes_are_enforced(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        async with kit.client(READER_KEY) as reader:
            for refused in (await reader.post("/v1/jobs", json=ECHO), await reader.post(f"{path}/cancel")):
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
                assert "jobs:write" in refused.json()["detail"]
            assert (await reader.get(path)).status_code == 200

    run(kit, test)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["model", "input", "items", "id", "parameters", "metadata", "timeouts", "outputs", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
_NEARLY = st.fixed_dictionaries(
    {"model": st.sampled_from(["echo", "mlp", "echo@2", "cold", "nope", 3, None])},
    optional={
        "input": _JSON,
        "items": st.lists(st.fixed_dictionaries({}, optional={"input": _JSON, "id": _JSON, "y": _JSON}), max_size=3),
        "priority": st.sampled_from(["high", "x", None, 1]),
        "not_before": st.text(max_size=30) | st.sampled_from(["2026-11-30T17:00:00Z", "2026-02-30T00:00:00Z"]),
        "timeouts": _JSON,
        "retry": _JSON,
        "metadata": _JSON,
        "parameters": _JSON,
        "outputs": _JSON,
        "webhook": _JSON,
        "results_expire_after_seconds": _JSON,
    },
)


def test_whatever_comes_is_taken_or_refused_and_never_an_error(kit: Kit) -> None:
    """No body gives 5xx (but for the model that was never loaded), and none that is refused is written."""

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.one_of(
            st.binary(max_size=60),
            _JSON.map(lambda value: json.dumps(value).encode()),
            _NEARLY.map(lambda value: json.dumps(value).encode()),
            _NEARLY.flatmap(lambda value: st.integers(0, 200).map(lambda cut: json.dumps(value).encode()[:cut])),
        )
    )
    def check(body: bytes) -> None:
        before = len(kit.publisher.admitted)

        async def post() -> httpx.Response:
            return await client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})

        answer = runner.run(post())
        if answer.status_code == 503:
            assert "cold" in answer.json()["detail"]
        else:
            assert answer.status_code in (202, 400), answer.text
        assert len(kit.publisher.admitted) - before == (answer.status_code == 202)
        if answer.status_code == 400:
            assert answer.json()["code"] == "invalid_input"
            assert answer.json()["errors"]
            assert "Traceback" not in answer.text

    with asyncio.Runner() as runner:
        client = kit.client()
        try:
            check()
        finally:
            runner.run(client.aclose())
