"""Over the wire: the run and the total clock, JSON that a strict parser takes, and callers who share a batch."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.e2e.stack import LocalStack

SECONDS = 40
ROUNDS = 100


def strict(text: str) -> Any:
    """JSON as its standard has it: no NaN, no Infinity, no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), text
        return dict(pairs)

    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {text}"), object_pairs_hook=once)


def posted(stack: LocalStack, **body: Any) -> dict[str, Any]:
    """The job when it is final."""
    answer = httpx.post(
        f"{stack.url}/v1/jobs", json=body, headers={**stack.headers, "prefer": f"wait={SECONDS}"}, timeout=SECONDS + 5
    )
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = strict(answer.text)
    return job


def test_a_call_beyond_its_run_seconds_is_cut_and_charged(shared_stack: LocalStack) -> None:
    job = posted(
        shared_stack,
        model="hang_if",
        items=[{"input": {"id": 0, "value": 668}}, {"input": {"id": 1, "value": 1}}],
        timeouts={"run_seconds": 0.5},
        retry={"max_attempts": 1},
    )
    assert (job["state"], job["counts"]["succeeded"], job["counts"]["failed"]) == ("partially_failed", 1, 1)
    answer = httpx.get(f"{shared_stack.url}{job['links']['results']}", headers=shared_stack.headers)
    hung, fine = (strict(line) for line in answer.text.splitlines())
    assert (hung["state"], hung["error"]["code"], hung["attempts"]) == ("failed", "run_timeout", 1)
    assert "0.5" in hung["error"]["message"]
    assert (fine["state"], fine["output"]) == ("succeeded", {"id": 1, "value": 1})


def test_a_job_beyond_its_total_seconds_expires_and_keeps_what_it_has(shared_stack: LocalStack) -> None:
    items = [{"input": {"id": n, "value": n, "ms": 0 if n < 32 else 200}} for n in range(100)]
    job = posted(shared_stack, model="slow", items=items, timeouts={"total_seconds": 3})
    assert (job["state"], job["error"]) == ("expired", None)
    counts = job["counts"]
    assert counts["succeeded"] >= 32
    assert counts["expired"] >= 1
    assert counts["succeeded"] + counts["expired"] == 100
    assert job["created_at"] < job["deadline_at"] <= job["finished_at"]
    answer = httpx.get(f"{shared_stack.url}{job['links']['results']}", headers=shared_stack.headers)
    lines = [strict(line) for line in answer.text.splitlines()]
    assert [line["index"] for line in lines] == list(range(100))
    assert {line["error"]["code"] for line in lines if line["state"] == "expired"} == {"deadline_exceeded"}
    assert all(line["output"] == {"id": n, "value": n} for n, line in enumerate(lines) if line["error"] is None)


def test_a15_what_json_lacks_is_a_string_wherever_it_comes_out(shared_stack: LocalStack) -> None:
    single = posted(shared_stack, model="nan_if", input={"id": 1, "value": 669})
    assert single["output"] == {"id": 1, "value": "NaN"}
    many = posted(shared_stack, model="nan_if", items=[{"input": {"id": n, "value": n + 668}} for n in range(2)])
    tensor = posted(shared_stack, model="ident_fp16", input={"x": ["NaN", "Infinity", "-Infinity", 1]})
    assert tensor["output"]["y"]["data"] == ["NaN", "Infinity", "-Infinity", 1.0]
    with httpx.Client(base_url=shared_stack.url, headers=shared_stack.headers, timeout=30) as client:
        for job in (single, many, tensor):
            assert strict(client.get(f"/v1/jobs/{job['id']}").text)["state"] == "succeeded"
            events = client.get(job["links"]["events"])
            told = [line[6:] for line in events.text.splitlines() if line.startswith("data: ")]
            assert strict(told[-1])["output"] == job["output"]
        lines = [strict(line) for line in client.get(many["links"]["results"]).text.splitlines()]
        assert [line["output"]["value"] for line in lines] == [668, "NaN"]
        assert strict(client.get(single["links"]["results"]).text)["output"] == single["output"]
        strict(client.get("/v1/jobs").text)
        for literal in (b"NaN", b"-Infinity", b"1e999"):
            refused = client.post(
                "/v1/jobs",
                content=b'{"model":"nan_if","input":{"id":1,"value":' + literal + b"}}",
                headers={"content-type": "application/json"},
            )
            assert (refused.status_code, strict(refused.text)["code"]) == (400, "invalid_input")


def test_a21_three_callers_in_one_window_each_get_their_own_answer(shared_stack: LocalStack) -> None:
    async def run() -> None:
        headers = {**shared_stack.headers, "prefer": f"wait={SECONDS}"}
        async with httpx.AsyncClient(base_url=shared_stack.url, headers=headers, timeout=SECONDS + 5) as client:

            async def ask(number: int) -> None:
                row = [0.0] * 3 + [float(number)]
                body = {"model": "ident_fp16", "input": {"x": row}}
                answer = (await client.post("/v1/jobs", json=body)).json()
                assert answer["output"]["y"]["data"] == row

            for round_ in range(ROUNDS):
                await asyncio.gather(*(ask(round_ * 3 + caller) for caller in (1, 2, 3)))

    def stats() -> dict[str, Any]:
        answer = httpx.get(f"{shared_stack.url}/v1/models/ident_fp16", headers=shared_stack.headers)
        found: dict[str, Any] = answer.json()["stats"]
        return found

    before = stats()
    asyncio.run(run())
    after = stats()
    assert after["batch_items"] - before["batch_items"] == 3 * ROUNDS
    assert after["batches"] - before["batches"] < 3 * ROUNDS, "no two of them ever shared a batch"
