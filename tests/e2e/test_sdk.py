"""The SDK against a running local stack."""

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta

import pytest

from batchyard import (
    AsyncClient,
    Client,
    Conflict,
    IdempotencyMismatch,
    InvalidInput,
    Item,
    Job,
    JobNotSucceeded,
    NotFound,
    Unauthenticated,
    WaitTimeout,
)
from tests.e2e.stack import LocalStack

SECONDS = 30.0


def test_one_input_and_its_output(client: Client) -> None:
    job = client.submit("echo", input={"id": 17, "value": "ü"}).wait(SECONDS)
    assert (job.state, job.output, job.error) == ("succeeded", {"id": 17, "value": "ü"}, None)
    assert job.final
    assert job.finished_at is not None
    assert job.finished_at.tzinfo is not None
    [result] = job.results()
    assert (result.index, result.id, result.state, result.output) == (0, "0", "succeeded", job.output)


def test_submit_can_wait_by_itself(client: Client) -> None:
    assert client.submit("echo", input={"id": 1, "value": 2}, wait=SECONDS).output == {"id": 1, "value": 2}


def test_many_items_come_back_in_order_each_with_its_own_answer(client: Client) -> None:
    items = [Item({"id": n, "value": n * n}, id=f"doc-{n}") for n in range(300)]
    job = client.submit("echo", items=items, metadata={"team": "search"}, priority="high")
    results = list(job.results())
    assert [(r.index, r.id) for r in results] == [(n, f"doc-{n}") for n in range(300)]
    assert [r.output for r in results] == [{"id": n, "value": n * n} for n in range(300)]
    final = job.wait(SECONDS)
    assert (final.counts.succeeded, final.metadata, final.priority) == (300, {"team": "search"}, "high")
    assert [r.index for r in final.results(from_index=298)] == [298, 299]


def test_results_come_while_the_job_runs(client: Client) -> None:
    job = client.submit("slow", items=[{"input": {"id": n, "value": n, "ms": 20}} for n in range(96)])
    first = next(job.results())
    assert first.index == 0
    assert not job.refresh().final
    assert [r.index for r in job.results()] == list(range(96))
    assert job.refresh().final


def test_a_tensor_model_takes_arrays(client: Client) -> None:
    numpy = pytest.importorskip("numpy")
    row = numpy.linspace(-1, 1, 64, dtype=numpy.float32)
    job = client.submit("mlp", input={"x": row}).wait(SECONDS).raise_for_state()
    assert job.output["y"]["shape"] == [10]
    assert job.output["y"]["datatype"] == "FP32"
    assert all(math.isfinite(float(value)) for value in job.output["y"]["data"])


def test_one_bad_item_fails_alone(client: Client) -> None:
    values = [1, 666, 3]
    job = client.submit("raise_if", items=[Item({"id": n, "value": v}) for n, v in enumerate(values)], max_attempts=1)
    final = job.wait(SECONDS)
    assert (final.state, final.counts.succeeded, final.counts.failed) == ("partially_failed", 2, 1)
    assert [r.state for r in final.results()] == ["succeeded", "failed", "succeeded"]
    [failed] = final.results(state="failed")
    assert failed.index == 1
    assert failed.error is not None
    assert failed.error.code == "handler_error"
    with pytest.raises(JobNotSucceeded, match="partially_failed"):
        final.raise_for_state()


def test_a_number_that_json_lacks_is_a_string(client: Client) -> None:
    job = client.submit("nan_if", input={"id": 1, "value": 669}).wait(SECONDS)
    assert job.output == {"id": 1, "value": "NaN"}
    assert math.isnan(float(job.output["value"]))


def test_everything_wrong_is_told_at_once(client: Client) -> None:
    items = [Item({"x": [0.0] * 64}), Item({"x": [0.0] * 63}), Item({"z": 1})]
    with pytest.raises(InvalidInput) as caught:
        client.submit("mlp", items=items)
    assert {finding.index for finding in caught.value.findings} == {1, 2}
    assert caught.value.request_id
    assert not caught.value.retryable
    with pytest.raises(InvalidInput, match="/model"):
        client.submit("no_such_model", input=1)


def test_the_same_key_is_the_same_job(client: Client) -> None:
    first = client.submit("echo", input={"id": 1, "value": 1}, idempotency_key="sdk-twice")
    assert client.submit("echo", input={"value": 1, "id": 1}, idempotency_key="sdk-twice").id == first.id
    with pytest.raises(IdempotencyMismatch):
        client.submit("echo", input={"id": 2, "value": 1}, idempotency_key="sdk-twice")


def test_cancel_keeps_what_is_done(client: Client) -> None:
    job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 50}) for n in range(200)])
    next(job.results())
    assert job.cancel().state in ("running", "cancelled")
    final = job.wait(SECONDS)
    assert final.state == "cancelled"
    assert final.counts.succeeded + final.counts.cancelled == 200
    assert final.counts.succeeded >= 1
    assert final.counts.cancelled >= 1
    assert len(list(final.results())) == 200
    with pytest.raises(Conflict):
        final.cancel()


def test_the_three_clocks_can_be_set(client: Client) -> None:
    client.submit("slow", items=[Item({"id": n, "value": n, "ms": 30}) for n in range(100)])  # three seconds before it
    late = client.submit("slow", input={"id": 1, "value": 1, "ms": 1}, queue_seconds=0.2).wait(SECONDS)
    assert late.state == "expired"
    assert late.error is not None
    assert late.error.code == "queue_timeout"


def test_not_before_is_kept(client: Client) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    job = client.submit("echo", input={"id": 1, "value": 1}, not_before=at).wait(SECONDS)
    assert job.started_at is not None
    assert job.started_at >= at - timedelta(milliseconds=1)


def test_wait_says_how_far_the_job_is_and_gives_up_in_time(client: Client) -> None:
    job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 40}) for n in range(100)])
    told: list[Job] = []
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=job.id) as caught:
        job.wait(0.6, on_progress=told.append)
    assert time.monotonic() - began < 5
    assert caught.value.job.id == job.id
    assert told
    assert told[0].counts.total == 100
    job.cancel()


def test_events_end_with_the_job(client: Client) -> None:
    job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 20}) for n in range(64)])
    events = list(job.events())
    assert events[-1].name == "state"
    assert events[-1].data["state"] == "succeeded"
    assert all(event.name == "progress" for event in events[:-1] if event.name != "state")


def test_list_finds_by_metadata_over_pages(client: Client) -> None:
    ids = [client.submit("echo", input={"id": n, "value": n}, metadata={"run": "listed"}).id for n in range(5)]
    assert [job.id for job in client.list(metadata={"run": "listed"})] == ids[::-1]
    assert [job.id for job in client.list(metadata={"run": "listed"}, limit=2)] == ids[:2:-1]


def test_models_are_described(client: Client) -> None:
    by_name = {model.name: model for model in client.models()}
    assert by_name["echo"].ready
    mlp = client.model("mlp")
    assert mlp.raw["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [64]}]
    with pytest.raises(NotFound):
        client.model("no_such_model")


def test_strangers_get_nothing(shared_stack: LocalStack) -> None:
    with Client(shared_stack.url, "bysk_wrong", retry_for=0) as stranger, pytest.raises(Unauthenticated):
        stranger.models()
    with Client(shared_stack.url, shared_stack.key) as client, pytest.raises(NotFound):
        client.get("job_00000000000000000000000000")


def test_asyncio_has_the_same(shared_stack: LocalStack) -> None:
    async def run() -> None:
        async with AsyncClient(shared_stack.url, shared_stack.key) as client:
            jobs = await asyncio.gather(*(client.submit("echo", input={"id": n, "value": n}) for n in range(50)))
            finals = await asyncio.gather(*(job.wait(SECONDS) for job in jobs))
            assert [job.output for job in finals] == [{"id": n, "value": n} for n in range(50)]
            many = await client.submit("echo", items=[Item({"id": n, "value": n}) for n in range(100)])
            assert [result.output["id"] async for result in many.results()] == list(range(100))
            assert (await client.model("echo")).ready
            with pytest.raises(Conflict):
                await (await many.wait()).cancel()

    asyncio.run(run())
