"""Both clients over a scripted transport: the same calls, the same requests, the same answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from batchyard import AsyncClient, AsyncJob, Client, ConnectionFailed, Job, JobNotSucceeded, NotFound, RequestTimedOut

URL, KEY = "http://127.0.0.1:1", "bysk_test"


def wire(state: str = "running", **more: Any) -> dict[str, Any]:
    counts = {"total": 2, "succeeded": 2 if state == "succeeded" else 0, "failed": 2 if state == "failed" else 0}
    return {
        "id": "job_1",
        "kind": "inline",
        "model": "echo",
        "version": "1",
        "state": state,
        "counts": counts,
        "created_at": "2026-11-30T17:00:00.000Z",
        "metadata": {"team": "a"},
        "usage": {"engine_seconds": 0.5},
        "a_field_of_later": 1,
        **more,
    }


LINES = b"".join(
    json.dumps({"index": n, "id": str(n), "state": "succeeded", "output": n}).encode() + b"\n" for n in range(2)
)


class Api:
    """Answers like the API; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.fail: Exception | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.fail is not None:
            raise self.fail
        match request.method, request.url.path:
            case "POST", "/v1/jobs":
                return httpx.Response(202, json=wire("queued"))
            case "POST", "/v1/jobs/job_1/cancel":
                return httpx.Response(202, json=wire("cancelled"))
            case "GET", "/v1/jobs":
                return httpx.Response(200, json={"data": [wire(), wire("succeeded")], "next": None})
            case "GET", "/v1/jobs/job_1":
                return httpx.Response(200, json=wire("failed", error={"code": "handler_error", "message": "no"}))
            case "GET", "/v1/jobs/job_1/results":
                return httpx.Response(200, content=LINES, headers={"Batchyard-Complete": "true"})
            case "GET", "/v1/jobs/job_1/events":
                return httpx.Response(200, content=b'event: state\ndata: {"state":"succeeded"}\n\n')
            case "GET", "/v1/models":
                return httpx.Response(200, json={"data": [{"name": "echo", "ready": True, "versions": []}]})
            case "GET", "/v1/models/echo":
                return httpx.Response(200, json={"name": "echo", "versions": [{"version": "1", "state": "ready"}]})
        return httpx.Response(404, json={"status": 404, "code": "not_found", "detail": "there is no such job"})


Call = Callable[[Any], Any]
CALLS: dict[str, Call] = {
    "submit": lambda c: c.submit("echo", input={"id": 1}, idempotency_key="k", wait=5),
    "get": lambda c: c.get("job_1"),
    "wait": lambda c: c.wait("job_1", 60),
    "results": lambda c: c.results("job_1", 0, state="succeeded"),
    "cancel": lambda c: c.cancel("job_1"),
    "list": lambda c: c.list(state="running", limit=2),
    "models": lambda c: c.models(),
    "model": lambda c: c.model("echo"),
    "events": lambda c: c.events("job_1"),
    "missing": lambda c: c.get("job_2"),
}


def blocking(api: Api, call: Call) -> Any:
    with Client(URL, KEY, retry_for=0, transport=httpx.MockTransport(api)) as client:
        try:
            answer = call(client)
            return list(answer) if isinstance(answer, Iterator) else answer
        except NotFound as error:
            return str(error)


def with_asyncio(api: Api, call: Call) -> Any:
    async def run() -> Any:
        async with AsyncClient(URL, KEY, retry_for=0, transport=httpx.MockTransport(api)) as client:
            try:
                answer = call(client)
                if isinstance(answer, AsyncIterator):
                    return [value async for value in answer]
                return await answer if isinstance(answer, Awaitable) else answer
            except NotFound as error:
                return str(error)

    return asyncio.run(run())


def plain(answer: Any) -> Any:
    """Jobs of both kinds as what they hold."""
    if isinstance(answer, list):
        return [plain(value) for value in answer]
    return answer.raw if isinstance(answer, Job | AsyncJob) else answer


@pytest.mark.parametrize("name", CALLS)
def test_both_clients_ask_and_answer_the_same(name: str) -> None:
    one, other = Api(), Api()
    assert plain(blocking(one, CALLS[name])) == plain(with_asyncio(other, CALLS[name]))
    assert [(r.method, str(r.url), r.headers, r.content) for r in one.asked] == [
        (r.method, str(r.url), r.headers, r.content) for r in other.asked
    ]
    assert all(request.headers["Authorization"] == "Bearer bysk_test" for request in one.asked)


def test_a_job_is_frozen_and_holds_its_client() -> None:
    with Client(URL, KEY, transport=httpx.MockTransport(Api())) as client:
        job = client.submit("echo", input=1)
        assert (job.id, job.state, job.final) == ("job_1", "queued", False)
        assert job.created_at == datetime(2026, 11, 30, 17, tzinfo=UTC)
        assert job.usage.engine_seconds == 0.5
        assert job.raw["a_field_of_later"] == 1
        with pytest.raises(FrozenInstanceError):
            job.state = "failed"  # type: ignore[misc]
        assert [result.output for result in job.results()] == [0, 1]
        assert job.cancel().state == "cancelled"
        assert job.refresh().error is not None
        assert [event.name for event in job.events()] == ["state"]
        assert job.raise_for_state() is job
        with pytest.raises(JobNotSucceeded, match=r"job_1 failed: handler_error: no \(0 succeeded, 2 failed"):
            job.wait().raise_for_state()


def test_an_async_job_has_the_same_verbs() -> None:
    async def run() -> None:
        async with AsyncClient(URL, KEY, transport=httpx.MockTransport(Api())) as client:
            job = await client.submit("echo", input=1)
            assert [result.output async for result in job.results()] == [0, 1]
            assert (await job.cancel()).state == "cancelled"
            assert (await job.refresh()).state == "failed"
            assert [event.name async for event in job.events()] == ["state"]
            with pytest.raises(JobNotSucceeded):
                (await job.wait()).raise_for_state()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (httpx.ConnectError("refused"), ConnectionFailed, "nothing answers at http://127.0.0.1:1"),
        (httpx.ReadTimeout("slow"), RequestTimedOut, "no answer in time"),
        (httpx.RemoteProtocolError("cut"), ConnectionFailed, "broke: cut"),
    ],
)
def test_failures_of_the_wire_are_told_in_our_words(failure: Exception, kind: type[Exception], message: str) -> None:
    for run in (blocking, with_asyncio):
        api = Api()
        api.fail = failure
        with pytest.raises(kind, match=message) as caught:
            run(api, CALLS["get"])
        assert caught.value.__cause__ is failure


def test_leaving_an_iteration_early_closes_its_connection() -> None:
    closed: list[bool] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield LINES

        def close(self) -> None:
            closed.append(True)

    with Client(URL, KEY, transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Body()))) as client:
        lines = client.results("job_1")
        assert next(lines).index == 0
        assert closed == []
        lines.close()  # type: ignore[attr-defined]
        assert closed == [True]


def test_the_environment_is_where_a_client_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "http://elsewhere:8")
    monkeypatch.setenv("BATCHYARD_API_KEY", "bysk_env")
    with Client() as client:
        assert client.target.url == "http://elsewhere:8"
