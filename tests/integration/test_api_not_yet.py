"""What the API does not do yet is refused by name and place, over HTTP, and nothing is written then."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.api_kit import ECHO, Kit, run

JSON = {"content-type": "application/json"}
X = [1, 2, 3, 4]


async def refused(kit: Kit, client: httpx.AsyncClient, body: object) -> dict[str, tuple[str, str]]:
    """Pointer -> code and detail of all findings of a 400; nothing came into being."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.post("/v1/jobs", content=content, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["code"], problem["retryable"]) == ("/errors/invalid-input", "invalid_input", False)
    assert kit.publisher.admitted == []
    assert kit.committed == []
    assert (await client.get("/v1/jobs")).json()["data"] == []
    assert kit.blobs.keys("") == []
    return {finding["pointer"]: (finding["code"], finding["detail"]) for finding in problem["errors"]}


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"webhook": {"endpoint": "whe_1", "events": ["job.succeeded"]}}, ["/webhook"]),
        ({"webhook": {"url": "https://example.org"}}, ["/webhook"]),
        ({"sequence_id": "s"}, ["/sequence_id"]),
        ({"max_failed_ratio": 0.5}, ["/max_failed_ratio"]),
        ({"max_failed_ratio": 1.0}, ["/max_failed_ratio"]),
        ({"tensors": {"inputs": []}}, ["/tensors"]),
        ({"ids": ["r0"]}, ["/ids"]),
        ({"retry": {"initial_seconds": 1}}, ["/retry/initial_seconds"]),
        ({"retry": {"max_seconds": 60}}, ["/retry/max_seconds"]),
        ({"retry": {"multiplier": 2}}, ["/retry/multiplier"]),
        ({"retry": {"jitter": 0.2}}, ["/retry/jitter"]),
        (
            {"retry": {"max_attempts": 3, "initial_seconds": 1, "jitter": 0}, "sequence_id": "s", "webhook": {}},
            ["/retry/initial_seconds", "/retry/jitter", "/sequence_id", "/webhook"],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["input", "items"])
def test_a_field_without_its_feature_is_refused(kit: Kit, form: str, fields: Any, pointers: list[str]) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        asked = {"input": 1} if form == "input" else {"items": [{"input": 1}]}
        found = await refused(kit, client, {"model": "echo", **asked, **fields})
        told = {pointer: detail for pointer, (code, detail) in found.items() if code == "not_available"}
        assert sorted(told) == pointers
        assert all(detail.endswith("not available yet.") for detail in told.values())

    run(kit, test)


def test_unknown_fields_are_refused_at_every_depth(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        body = {
            "model": "echo",
            "items": [{"input": 1, "colour": 1}],
            "colour": 1,
            "timeouts": {"colour": 1},
            "retry": {"colour": 1},
        }
        found = await refused(kit, client, body)
        assert {pointer for pointer, (code, _) in found.items() if code == "unknown_field"} == {
            "/items/0/colour", "/colour", "/timeouts/colour", "/retry/colour",
        }  # fmt: skip

    run(kit, test)


def test_a08_no_items_are_refused_at_submit(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        assert set(await refused(kit, client, {"model": "echo", "items": []})) == {"/items"}

    run(kit, test)


def test_a15_no_number_that_json_lacks_comes_in(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        for literal in (b"NaN", b"Infinity", b"-Infinity", b"1e400"):
            for model, value in ((b"echo", literal), (b"mlp", b'{"x":[1,2,3,' + literal + b"]}")):
                for form in (b'"input":' + value, b'"items":[{"input":' + value + b"}]"):
                    await refused(kit, client, b'{"model":"' + model + b'",' + form + b"}")

    run(kit, test)


def test_a20_names_that_do_not_exist_are_told_with_those_that_do(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        items = [
            {"input": {"x": X}},
            {"input": {"x": X, "potato": X}},
            {"input": {}},
            {"input": {"x": ["1", 2, 3, 4]}},
            {"input": {"x": [True, 2, 3, 4]}},
            {"input": {"x": [X]}},
        ]
        body = {"model": "mlp", "items": items, "outputs": ["y", "potato"]}
        found = await refused(kit, client, body)
        code, detail = found["/outputs/1"]
        assert code == "unknown_output"
        assert "Known: y" in detail
        assert found["/items/1/input/potato"][0] == "unknown"
        assert "x" in found["/items/1/input/potato"][1]
        assert found["/items/2/input/x"][0] == "missing"
        assert found["/items/3/input/x/0"][0] == "type"
        assert found["/items/4/input/x/0"][0] == "type"
        assert found["/items/5/input/x"][0] == "shape"
        assert len(found) == 6
        # An output that exists is all that stands between this and a job.
        answer = await client.post("/v1/jobs", json={"model": "mlp", "items": items[:1], "outputs": ["y"]})
        assert answer.status_code == 202

    run(kit, test)


@pytest.mark.parametrize(
    "model", ["../echo", "..", "%2e%2e%2fecho", "echo\\", "echo\0", "/echo", "echo@..", "echo@../1", "echo@1\0", "@1"]
)
def test_s5_a_model_s_name_leads_nowhere(kit: Kit, model: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        assert (await refused(kit, client, {"model": model, "input": 1}))["/model"][0] == "unknown_model"
        escaped = "".join(f"%{byte:02x}" for byte in model.encode())
        answer = await client.get(f"/v1/models/{escaped}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    run(kit, test)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/octet-stream", "inference-header-content-length": "40"},
        {"content-type": "application/x-npy"},
        {"content-type": "application/vnd.apache.parquet"},
    ],
)
def test_forms_of_a_body_that_are_to_come_are_415(kit: Kit, headers: dict[str, str]) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/jobs", content=json.dumps(ECHO), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
        assert kit.publisher.admitted == []

    run(kit, test)


@pytest.mark.parametrize(
    ("method", "below"),
    [
        ("POST", "/pause"), ("POST", "/resume"), ("POST", "/retry"), ("GET", "/explain"), ("GET", "/items/0"),
        ("PATCH", ""), ("DELETE", ""),
    ],
)  # fmt: skip
def test_verbs_that_are_to_come_change_nothing(kit: Kit, method: str, below: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        before = (await client.get(path)).json()
        answer = await client.request(
            method, f"{path}{below}", json={"priority": "high"} if method == "PATCH" else None
        )
        assert answer.status_code == (404 if below else 405)
        assert (await client.get(path)).json() == before

    run(kit, test)


def test_what_has_no_source_yet_is_null(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        job = (await client.post("/v1/jobs", json=ECHO)).json()
        nothing = {name for name, value in job.items() if value is None}
        assert nothing == {
            "started_at", "finished_at", "deadline_at", "results_expire_at", "queue", "error", "output", "parent_job",
        }  # fmt: skip
        assert job["links"]["explain"] is None
        assert (job["paused"], job["sealed"], job["kind"]) == (False, True, "inline")

    run(kit, test)
