"""The edge itself: keys, unknown addresses, errors, health, models, the document, the admin listener."""

import logging
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from api import auth
from api.app import create_app
from api.front import check_serving
from api.problems import TYPES
from jobs.errors import StoreError, Unavailable
from jobs.models.catalog import Catalog
from tests.integration.api_kit import ADMIN_KEY, FullLedger, Kit, models, run

ECHO = {"model": "echo", "input": 1}


def test_s2_every_route_but_the_open_ones_needs_a_key(kit: Kit) -> None:
    routes = [route for route in kit.app.routes.router.routes if isinstance(route, Route)]
    assert len(routes) >= 12
    assert len(routes) == len(kit.app.routes.router.routes)  # nothing that the walk would not see
    open_ones = set()

    async def test(client: httpx.AsyncClient) -> None:
        for route in routes:
            path = route.path.replace("{job_id}", f"job_{'0' * 26}").replace("{model}", "echo")
            path = path.replace("{token}", "x").replace("{slug}", "gone")
            for method in sorted(route.methods or ()):
                for headers in ({}, {"authorization": "Bearer bysk_wrong"}, {"authorization": "Basic x"}):
                    answer = await client.request(method, path, headers=headers)
                    if answer.status_code == 401:
                        assert answer.headers["www-authenticate"].startswith("Bearer")
                        assert method == "HEAD" or answer.json()["code"] == "unauthenticated"
                    else:
                        open_ones.add(route.path)
        for path in ("/", "/v1/nothing", "/admin/v1/workers", "/v1/jobs/x/y"):
            for method in ("GET", "OPTIONS", "POST"):
                assert (await client.request(method, path)).status_code == 401

    run(kit, test, key=None)
    assert open_ones == {
        "/openapi.json", "/docs", "/errors", "/errors/{slug}", "/health/live", "/health/ready", "/v1/blobs/{token}",
    }  # fmt: skip


def test_a_key_stops_working_when_it_expires(kit: Kit) -> None:
    with kit.store.begin() as tx:
        kit.add_key(tx, "acme", "bysk_old", {"jobs:read"}, kit.clock() - timedelta(seconds=1))

    async def test(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/jobs")).status_code == 401

    run(kit, test, key="bysk_old")


def test_unknown_addresses_and_methods(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        unknown = await client.get("/v1/nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        assert unknown.json()["instance"] == "/v1/nothing"
        assert unknown.json()["request_id"] == unknown.headers["x-request-id"]
        wrong = await client.put("/v1/jobs")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
        assert wrong.headers["content-type"] == "application/problem+json"
        options = await client.options("/v1/jobs")
        assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")
        assert (await client.options("/v1/nothing")).status_code == 404
        head = await client.head("/v1/jobs")
        assert head.status_code == 200
        assert int(head.headers["content-length"]) > 0
        assert (await client.head(f"/v1/jobs/job_{'0' * 26}/events")).status_code == 405
        assert (await client.get("/v1/jobs/")).status_code == 404

    run(kit, test)


def test_s7_an_internal_error_says_nothing_and_is_logged_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def submit(self, *_: object) -> None:
            raise RuntimeError("canary /secret/path SELECT")

        post = submit
        last_progress = 0.0

    class BrokenStore:
        def jobs_by_id(self, ids: object) -> Any:
            raise StoreError("canary /secret/path SELECT")

        def __getattr__(self, name: str) -> Any:
            if name == "api_key":
                return kit.store.api_key
            return self.jobs_by_id

    kit.app = create_app(replace(kit.services, ledger=Broken(), store=BrokenStore()))  # type: ignore[arg-type]

    async def test(client: httpx.AsyncClient) -> None:
        some = f"/v1/jobs/job_{'0' * 26}"
        for method, path in (
            ("POST", "/v1/jobs"),
            ("GET", some),
            ("POST", f"{some}/cancel"),
            ("GET", f"{some}/events"),
        ):
            caplog.clear()
            answer = await client.request(method, path, json=ECHO if method == "POST" else None)
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
            assert "canary" not in answer.text
            assert "Traceback" not in answer.text
            logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert len(logged) == 1, [record.getMessage() for record in logged]
            assert answer.json()["request_id"] in logged[0].getMessage()

    run(kit, test)


def test_models(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        await client.post("/v1/jobs", json={"model": "mlp", "items": [{"input": {"x": [1, 2, 3, 4]}}] * 3})
        model = (await client.get("/v1/models/mlp")).json()
        assert model == {
            "name": "mlp", "default_version": "1",
            "versions": [
                {"version": "1", "state": "ready", "error": None, "engine": "python", "artifact_sha256": None},
            ],
            "input": "tensors", "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}], "batch": {"max_size": 64},
            "batching": "sound", "batching_reason": None, "pool": "default", "workers": 1, "ready": True, "held": None,
            "queue": {"items": 3, "engine_seconds": 0.15},
            "stats": {"batches": 2, "batch_items": 8, "padded_elements": 0, "elements": 0, "engine_seconds": 0.4,
                      "closed": {"idle": 2}},
        }  # fmt: skip
        listed = (await client.get("/v1/models")).json()["data"]
        assert [entry["name"] for entry in listed] == ["cold", "echo", "mlp"]
        assert listed[0]["ready"] is False
        assert [version["version"] for version in listed[1]["versions"]] == ["1", "2"]
        assert (await client.get("/v1/models/nothing")).status_code == 404

    run(kit, test)


def test_health(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        async def ready() -> int:
            return (await client.get("/health/ready")).status_code

        assert (await client.get("/health/live")).json() == {"status": "live"}
        assert await ready() == 200
        kit.fleet.is_ready = False
        assert await ready() == 503
        kit.fleet.is_ready = True
        kit.draining = True
        answer = await client.get("/health/ready")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert "on its way out" in answer.json()["detail"]
        kit.draining = False
        kit.catalog.replace_all([replace(version, described=False) for version in models()])
        assert await ready() == 503
        kit.catalog.replace_all(models())
        assert await ready() == 200

    run(kit, test, key=None)
    with pytest.raises(Unavailable, match="ledger"):
        check_serving(replace(kit.services, ledger=FullLedger()), time.monotonic() + 100)
    check_serving(replace(kit.services, catalog=Catalog()), time.monotonic())


def test_every_error_type_has_its_page(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        listed = (await client.get("/errors")).json()["data"]
        assert [entry["code"] for entry in listed] == list(TYPES)
        for kind in TYPES.values():
            told = (await client.get(kind.path)).json()
            assert (told["status"], told["code"]) == (kind.status, kind.code)
            assert len(told["what_to_do"]) > 40
            page = await client.get(kind.path, headers={"accept": "text/html"})
            assert page.headers["content-type"].startswith("text/html")
            assert kind.title in page.text
        assert (await client.get("/errors/nothing")).status_code == 404

    run(kit, test, key=None)


def test_the_document_describes_every_route_with_examples(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        described = {(path, method) for path, verbs in document["paths"].items() for method in verbs}
        routes = [route for route in kit.app.routes.router.routes if isinstance(route, Route)]
        own = {(r.path, m.lower()) for r in routes for m in r.methods or () if m != "HEAD"}
        assert own - described == {("/openapi.json", "get"), ("/docs", "get")}
        submit = document["paths"]["/v1/jobs"]["post"]
        assert len(submit["requestBody"]["content"]["application/json"]["examples"]) >= 3
        assert {"200", "202", "400", "401", "403", "413", "415", "422", "503"} <= set(submit["responses"])
        for path, verbs in document["paths"].items():
            for operation in verbs.values():
                assert ("security" in operation) != auth.is_open(path.replace("{token}", "x").replace("{slug}", "x"))
                assert operation["summary"]
        assert "ValidationError" not in str(document)
        assert (await client.get("/docs")).status_code == 200

    run(kit, test, key=None)


def test_the_admin_listener_has_its_own_key_and_nothing_else(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        (worker,) = (await client.get("/admin/v1/workers")).json()["data"]
        assert (worker["pid"], worker["models"], worker["engines"]) == (4711, ["echo@1"], [4712])
        assert worker["started_at"].endswith("Z")
        assert (await client.post("/admin/v1/models/reload")).json() == {"data": {"echo@1": "ready"}}
        assert kit.fleet.reloads == 1
        assert (await client.get("/admin/v1/models/reload")).status_code == 405
        for path in ("/v1/jobs", "/health/live", "/openapi.json", "/admin/v1/tenants", "/"):
            assert (await client.get(path)).status_code == 404

    run(kit, test, key=ADMIN_KEY, app=kit.admin)

    async def locked(client: httpx.AsyncClient) -> None:
        for path in ("/admin/v1/workers", "/v1/jobs", "/health/live"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")

    run(kit, locked, app=kit.admin)
    run(kit, locked, key=None, app=kit.admin)

    async def not_here(client: httpx.AsyncClient) -> None:
        assert (await client.get("/admin/v1/workers")).status_code == 404

    run(kit, not_here)
