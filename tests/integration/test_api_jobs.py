"""POST /v1/jobs, GET /v1/jobs/{id}, list and cancel: real ledger and store, a scripted worker."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api import body as body_module
from api.app import create_app
from jobs import frames
from jobs.clock import system_clock
from jobs.settings import Limits, Settings
from tests.integration.api_kit import AUTH, OTHER_KEY, READER_KEY, FullLedger, Kit, until

ECHO = {"model": "echo", "input": {"id": 17, "value": 3}}
FAILED = frames.ResultError("handler_error", "RuntimeError: boom", False, "predict")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.close()


def run(kit: Kit, test: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), kit.client() as client:
            await test(client)

    asyncio.run(main())


def test_submit_read_and_the_answer_in_the_job(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/jobs", json={**ECHO, "metadata": {"team": "search"}})
        job = answer.json()
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert answer.headers["x-request-id"].startswith("req_")
        assert (job["state"], job["output"], job["queue"], job["counts"]["queued"]) == ("queued", None, None, 1)
        assert job["links"]["results"] == f"/v1/jobs/{job['id']}/results"
        await kit.until_committed()
        kit.work()
        job = (await client.get(answer.headers["location"])).json()
        assert (job["state"], job["output"], job["error"]) == ("succeeded", {"id": 17, "value": 3}, None)
        assert job["metadata"] == {"team": "search"}
        assert job["finished_at"].endswith("Z")

    run(kit, test)


def test_a_failed_single_input_shows_its_error(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        kit.work(lambda index, part: FAILED)
        job = (await client.get(path)).json()
        assert (job["state"], job["output"]) == ("failed", None)
        assert job["error"] == {
            "code": "handler_error", "message": "RuntimeError: boom", "permanent": False, "stage": "predict",
        }  # fmt: skip
        listed = (await client.get("/v1/jobs")).json()["data"]
        assert listed == [job]

    run(kit, test)


@pytest.mark.parametrize("carry", [True, False])
def test_prefer_wait_gives_the_finished_job(kit: Kit, carry: bool) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        kit.on_commit = lambda jobs: None
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
def test_get_wait_is_woken_by_the_ping_or_by_the_floor(kit: Kit, ping: bool) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        began = time.monotonic()
        asking = asyncio.create_task(client.get(f"{path}?wait=30"))
        await until(lambda: len(kit.app.front.waiters) == 1)
        kit.work(ping=ping)
        assert (await asking).json()["state"] == "succeeded"
        assert time.monotonic() - began < 5
        assert (await client.get(f"{path}?wait=30")).json()["state"] == "succeeded"

    run(kit, test)


@pytest.mark.parametrize("query", ["wait=x", "wait=-1", "wait=", "weit=1", "wait=1e3", "wait=nan"])
def test_a_wrong_wait_is_refused(kit: Kit, query: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        assert (await client.get(f"{path}?{query}")).status_code == 400

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


def test_idempotency_replay_mismatch_and_tenants(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        headers = {"idempotency-key": '"k-1"'}
        first = await client.post("/v1/jobs", json=ECHO, headers=headers)
        assert (first.status_code, "idempotent-replayed" in first.headers) == (202, False)
        kit.work()
        spelled = b'{ "input": {"value":3, "id":17},\n "model":"echo" }'
        again = await client.post(
            "/v1/jobs", content=spelled, headers={"idempotency-key": "k-1", "content-type": "application/json"}
        )
        assert again.status_code == 200
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json()["id"] == first.json()["id"]
        assert again.json()["output"] == {"id": 17, "value": 3}
        waited = await client.post("/v1/jobs", json=ECHO, headers={**headers, "prefer": "wait=5"})
        assert (waited.status_code, waited.json()["state"]) == (200, "succeeded")
        other = await client.post("/v1/jobs", json={"model": "echo", "input": 5}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
        assert kit.publisher.withdrawn
        async with kit.client(OTHER_KEY) as stranger:
            unrelated = await stranger.post("/v1/jobs", json=ECHO, headers=headers)
            assert unrelated.status_code == 202
            assert unrelated.json()["id"] != first.json()["id"]
        for key in ("", "x" * 256):
            wrong = await client.post("/v1/jobs", json=ECHO, headers={"idempotency-key": key})
            assert wrong.json()["errors"][0]["pointer"] == "/headers/idempotency-key"
        assert len((await client.get("/v1/jobs")).json()["data"]) == 1

    run(kit, test)


def test_a38_twins_in_flight_are_one_job_and_hear_the_same(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        for round_ in range(20):
            key = {"idempotency-key": f"twins-{round_}"}
            answers = await asyncio.gather(*[client.post("/v1/jobs", json=ECHO, headers=key) for _ in range(20)])
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert (await client.post("/v1/jobs", json=ECHO, headers=key)).status_code == 200
        listed = (await client.get("/v1/jobs", params={"limit": 200})).json()
        assert len(listed["data"]) == 20  # rows, not replies

    run(kit, test)


def test_limits_come_before_anything_is_kept(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = Kit(tmp_path / "small", settings=Settings(limits=Limits(request_bytes=1000)))
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

    try:
        run(small, test)
    finally:
        small.close()

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

    async def stall() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async def test(client: httpx.AsyncClient) -> None:
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.sleep(30)
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


def test_a_large_item_goes_by_blob_and_comes_back(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        large = "x" * 300_000
        answer = await client.post("/v1/jobs", json={"model": "echo", "items": [{"input": 1}, {"input": large}]})
        assert answer.status_code == 202
        await kit.until_committed()
        assert len(kit.blobs.keys("payloads/")) == 1
        kit.work()
        lines = (await client.get(f"{answer.headers['location']}/results")).text.splitlines()
        assert json.loads(lines[1])["output"] == large
        # What is not written leaves nothing behind: neither a replay nor a refusal.
        key = {"idempotency-key": "large"}
        body = {"model": "echo", "input": large}
        for status in (202, 200):
            assert (await client.post("/v1/jobs", json=body, headers=key)).status_code == status
            assert len(kit.blobs.keys("payloads/")) == 2

    run(kit, test)


def test_a_full_ledger_is_503_and_writes_nothing(kit: Kit) -> None:
    from dataclasses import replace

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


def test_jobs_of_others_are_not_found(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        async with kit.client(OTHER_KEY) as stranger:
            for asked in ("", "?wait=5", "/results", "/events"):
                assert (await stranger.get(f"{path}{asked}")).status_code == 404
            assert (await stranger.post(f"{path}/cancel")).status_code == 404
            assert (await stranger.get("/v1/jobs")).json() == {"data": [], "next": None}
        for unknown in (f"/v1/jobs/job_{'0' * 26}", "/v1/jobs/job_x", "/v1/jobs/%00", "/v1/jobs/../../etc"):
            assert (await client.get(unknown)).status_code == 404

    run(kit, test)


def test_list_filters_and_pages(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        ids = []
        for at in range(5):
            body = {"model": "echo", "input": at, "metadata": {"team": "a" if at % 2 else "b"}}
            ids.append((await client.post("/v1/jobs", json=body)).json()["id"])
        kit.work()
        ids.append((await client.post("/v1/jobs", json={"model": "mlp", "input": {"x": [1, 2, 3, 4]}})).json()["id"])

        async def listed(**query: Any) -> list[str]:
            answer = await client.get("/v1/jobs", params=query)
            assert answer.status_code == 200, answer.text
            return [job["id"] for job in answer.json()["data"]]

        assert await listed() == ids[::-1]
        assert await listed(state="queued") == [ids[5]]
        assert await listed(model="echo", **{"metadata.team": "a"}) == [ids[3], ids[1]]
        since = (system_clock() - timedelta(hours=1)).isoformat()
        assert len(await listed(created_after=since)) == 6
        answer = await client.get(f"/v1/jobs?created_after={since}")  # the plus of the zone not escaped
        assert len(answer.json()["data"]) == 6
        assert await listed(created_after=(system_clock() + timedelta(hours=1)).isoformat()) == []
        seen, after = [], None
        while True:
            page = (await client.get("/v1/jobs", params={"limit": 4} | ({"after": after} if after else {}))).json()
            seen += [job["id"] for job in page["data"]]
            after = page["next"]
            if after is None:
                break
        assert seen == ids[::-1]

    run(kit, test)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("after=nonsense", "/query/after"),
        ("limit=0", "/query/limit"),
        ("limit=201", "/query/limit"),
        ("limit=x", "/query/limit"),
        ("state=done", "/query/state"),
        ("created_after=2026-11-30T17:00:00", "/query/created_after"),
        ("colour=red", "/query/colour"),
    ],
)
def test_a_wrong_list_query_names_its_parameter(kit: Kit, query: str, pointer: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.get(f"/v1/jobs?{query}")
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert [finding["pointer"] for finding in answer.json()["errors"]] == [pointer]

    run(kit, test)


def test_cancel_queued_running_and_ended(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        pings = []
        kit.notifier.subscribe(pings.append)
        items = {"model": "echo", "items": [{"input": at} for at in range(100)]}
        path = (await client.post("/v1/jobs", json=items)).headers["location"]
        await kit.until_committed()
        kit.finish(kit.chunks_of(kit.committed[0], only=[0]))
        waiting = asyncio.create_task(client.get(f"{path}?wait=30"))
        await until(lambda: len(kit.app.front.waiters) == 1)
        answer = await client.post(f"{path}/cancel")
        assert answer.status_code == 202
        job = answer.json()
        # Finished answers are kept, every item is accounted for.
        assert (job["state"], job["counts"]["succeeded"], job["counts"]["cancelled"]) == ("cancelled", 64, 36)
        assert (await waiting).json()["state"] == "cancelled"
        assert pings[-1].stopped == (job["id"],)
        again = await client.post(f"{path}/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert (await client.get(path)).json() == job
        lines = [json.loads(line) for line in (await client.get(f"{path}/results")).text.splitlines()]
        assert [line["index"] for line in lines] == list(range(100))
        assert [line["state"] for line in lines] == ["succeeded"] * 64 + ["cancelled"] * 36
        assert lines[99]["error"] is None
        assert (await client.post(f"/v1/jobs/job_{'0' * 26}/cancel")).status_code == 404

    run(kit, test)


def test_a36_cancel_while_a_chunk_runs_tells_the_worker(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        items = {"model": "echo", "items": [{"input": at} for at in range(10)]}
        path = (await client.post("/v1/jobs", json=items)).headers["location"]
        await kit.until_committed()
        finishes = kit.chunks_of(kit.committed[0])
        first = await client.post(f"{path}/cancel")
        assert first.status_code == 202
        assert first.json()["state"] == "running"
        assert (await client.post(f"{path}/cancel")).status_code == 202  # asked again: still stopping
        kit.finish(finishes)
        job = (await client.get(path)).json()
        assert sum(job["counts"][name] for name in ("succeeded", "cancelled")) == 10

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


def test_the_documented_routes_answer_as_the_thin_path_does(kit: Kit) -> None:
    """FastAPI behind it has the same two routes; asked past the thin path they give the same."""

    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        key = kit.app.front.auth.cached(AUTH["authorization"].encode())

        async def behind(scope: Any, receive: Any, send: Any) -> None:
            await kit.app.routes({**scope, "batchyard.key": key, "batchyard.request_id": "req_1"}, receive, send)

        transport = httpx.ASGITransport(behind)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as routes:
            assert (await routes.get(path)).json() == (await client.get(path)).json()
            made = await routes.post("/v1/jobs", json=ECHO)
            assert (made.status_code, made.json()["state"]) == (202, "queued")
            assert made.headers["location"] == f"/v1/jobs/{made.json()['id']}"
            bad = await routes.post("/v1/jobs", json={"model": "echo"})
            assert (bad.status_code, bad.json()["request_id"]) == (400, "req_1")

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


def test_whatever_comes_is_taken_or_refused_and_never_an_error(tmp_path: Path) -> None:
    """No body gives 5xx (but for the model that was never loaded), and none that is refused is written."""
    kit = Kit(tmp_path)

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
            kit.close()
