"""Jobs as a client sees them: submitted once, read, listed and cancelled."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx

from jobs.clock import system_clock
from tests.integration.api_kit import AUTH, ECHO, FAILED, OTHER_KEY, Kit, lines_of, run, submit, until


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


def test_a_large_item_goes_by_blob_and_comes_back(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        large = "x" * 300_000
        answer = await client.post("/v1/jobs", json={"model": "echo", "items": [{"input": 1}, {"input": large}]})
        assert answer.status_code == 202
        await kit.until_committed()
        assert len(kit.blobs.keys("payloads/")) == 1
        kit.work()
        lines = lines_of(await client.get(f"{answer.headers['location']}/results"))
        assert [line["output"] for line in lines] == [1, large]
        # What is not written leaves nothing behind: neither a replay nor a refusal.
        key = {"idempotency-key": "large"}
        body = {"model": "echo", "input": large}
        for status in (202, 200):
            assert (await client.post("/v1/jobs", json=body, headers=key)).status_code == status
            assert len(kit.blobs.keys("payloads/")) == 2

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


def test_cancel_queued_running_and_ended(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        pings = []
        kit.notifier.subscribe(pings.append)
        path = await submit(client, 100)
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
        lines = lines_of(await client.get(f"{path}/results"))
        assert [line["index"] for line in lines] == list(range(100))
        assert [line["state"] for line in lines] == ["succeeded"] * 64 + ["cancelled"] * 36
        assert lines[99]["error"] is None
        assert (await client.post(f"/v1/jobs/job_{'0' * 26}/cancel")).status_code == 404

    run(kit, test)


def test_a36_cancel_while_a_chunk_runs_tells_the_worker(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 10)
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


def test_the_documented_routes_answer_as_the_thin_path_does(kit: Kit) -> None:
    """FastAPI behind it has the same two routes; asked past the thin path they give the same."""

    async def test(client: httpx.AsyncClient) -> None:
        path = (await client.post("/v1/jobs", json=ECHO)).headers["location"]
        key = kit.app.front.auth.cached(AUTH["authorization"].encode())

        async def behind(scope: Any, receive: Any, send: Any) -> None:
            await kit.app.routes({**scope, "batchyard.key": key, "batchyard.request_id": "req_1"}, receive, send)

        async with kit.client(app=behind) as routes:
            assert (await routes.get(path)).json() == (await client.get(path)).json()
            made = await routes.post("/v1/jobs", json=ECHO)
            assert (made.status_code, made.json()["state"]) == (202, "queued")
            assert made.headers["location"] == f"/v1/jobs/{made.json()['id']}"
            bad = await routes.post("/v1/jobs", json={"model": "echo"})
            assert (bad.status_code, bad.json()["request_id"]) == (400, "req_1")

    run(kit, test)
