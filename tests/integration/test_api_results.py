"""Result lines and links: what comes out, while a job runs and after it."""

import base64
import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.results import PAGE
from jobs import frames
from jobs.records import ChunkRef, Finish, NewChunk
from jobs.settings import Settings
from jobs.states import Outcome
from tests.contracts.store_kit import ManualClock
from tests.integration.api_kit import FAILED, Kit, lines_of, run, submit


def next_of(answer: httpx.Response) -> tuple[str, int]:
    return answer.headers["batchyard-complete"], int(answer.headers["batchyard-next-index"])


def test_lines_are_in_item_order_with_ids(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 100)
        await kit.until_committed()
        finishes = kit.chunks_of(kit.committed[0], lambda at, part: FAILED if at == 18 else part)
        kit.finish(finishes[::-1])
        answer = await client.get(f"{path}/results")
        lines = lines_of(answer)
        assert next_of(answer) == ("true", 100)
        assert [line["index"] for line in lines] == list(range(100))
        assert lines[17] == {
            "index": 17, "id": "doc-17", "state": "succeeded", "output": {"id": 17}, "error": None, "attempts": 1,
            "version": "1",
        }  # fmt: skip
        assert lines[18]["error"] == {
            "code": "handler_error", "message": "RuntimeError: boom", "permanent": False, "stage": "predict",
        }  # fmt: skip
        failed = await client.get(f"{path}/results?state=failed")
        assert [line["index"] for line in lines_of(failed)] == [18]
        assert next_of(failed) == ("true", 100)

    run(kit, test)


def test_reading_while_it_runs_ends_before_the_first_unfinished_item(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 150)  # chunks of 64, 64, 22
        await kit.until_committed()
        job = kit.committed[0]
        empty = await client.get(f"{path}/results")
        assert (lines_of(empty), next_of(empty)) == ([], ("false", 0))
        kit.finish(kit.chunks_of(job, only=[1]))
        assert next_of(await client.get(f"{path}/results")) == ("false", 0)
        kit.finish(kit.chunks_of(job, only=[0]))
        part = await client.get(f"{path}/results")
        assert (len(lines_of(part)), next_of(part)) == (128, ("false", 128))
        kit.finish(kit.chunks_of(job, only=[2]))
        rest = await client.get(f"{path}/results?from_index=128")
        assert [line["index"] for line in lines_of(rest)] == list(range(128, 150))
        assert next_of(rest) == ("true", 150)
        beyond = await client.get(f"{path}/results?from_index=150")
        assert (lines_of(beyond), next_of(beyond)) == ([], ("true", 150))

    run(kit, test)


def test_pages_by_from_index_and_limit_meet_without_gap_or_overlap(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 3 * PAGE + 7)
        await kit.until_committed()
        kit.work(lambda at, part: FAILED if at % 3 == 0 else part)
        for query, step in (("", 50), ("", 1000), ("&state=failed", 40)):
            seen: list[int] = []
            at, complete = 0, "false"
            while complete == "false":
                answer = await client.get(f"{path}/results?from_index={at}&limit={step}{query}")
                lines = lines_of(answer)
                assert len(lines) <= step
                seen += [line["index"] for line in lines]
                complete, at = next_of(answer)
            expected = [i for i in range(3 * PAGE + 7) if not query or i % 3 == 0]
            assert seen == expected

    run(kit, test)


def test_an_item_that_moved_on_has_the_line_of_its_child(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 3)
        await kit.until_committed()
        (finish,) = kit.chunks_of(kit.committed[0])
        payload = kit.committed[0].chunks[0].payload
        assert isinstance(payload, bytes)
        _, parts = frames.unpack_payload(payload)
        child_payload = frames.pack(frames.PayloadHeader("json", ((1, 2),), ids=("doc-1",)), [parts[1]])
        child = NewChunk(0, ((1, 2),), child_payload, alone=True, attempts=1, parent=0)
        results = b"".join(
            frames.pack(frames.ResultHeader("json", ((at, at + 1),), ids=(f"doc-{at}",)), [parts[at]]) for at in (0, 2)
        )
        outcomes = bytes([Outcome.SUCCEEDED, Outcome.MOVED, Outcome.SUCCEEDED])
        done = kit.ledger.call(
            lambda tx: tx.finish([Finish(finish.ref, outcomes, results, children=(child,))], "wrk_script")
        )
        waiting = await client.get(f"{path}/results")
        assert (len(lines_of(waiting)), next_of(waiting)) == (1, ("false", 1))
        (message,) = done.children
        (fence,) = kit.ledger.call(lambda tx: tx.claim([message.ref], "wrk_script"))
        header = frames.ResultHeader("json", ((1, 2),), ids=("doc-1",), attempts=2)
        last = Finish(
            ChunkRef(message.job, message.seq, fence or 0), bytes([Outcome.SUCCEEDED]), frames.pack(header, [b"1"])
        )
        kit.finish([last])
        lines = lines_of(await client.get(f"{path}/results"))
        assert [(line["index"], line["attempts"], line["state"]) for line in lines] == [
            (0, 1, "succeeded"), (1, 2, "succeeded"), (2, 1, "succeeded"),
        ]  # fmt: skip

    run(kit, test)


def test_a_single_input_has_one_json_object(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        made = await client.post("/v1/jobs", json={"model": "mlp", "input": {"x": [0.5, "NaN", 1, 2]}})
        path = made.headers["location"]
        early = await client.get(f"{path}/results")
        assert (early.text, next_of(early)) == ("", ("false", 0))
        kit.work()
        answer = await client.get(f"{path}/results")
        assert answer.headers["content-type"] == "application/json"
        output = {"y": {"shape": [2], "datatype": "FP32", "data": [0.5, "NaN"]}}
        # A15: strict JSON always, non-finite numbers as strings, in the job as in its results.
        assert json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))["output"] == output
        assert (await client.get(path)).json()["output"] == output

    run(kit, test)


def test_long_results_are_streamed_in_pages(kit: Kit) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 1000)
        await kit.until_committed()
        kit.work()
        pages = []
        read = kit.store.results

        def counted(job: str, from_index: int, limit: int) -> Any:
            pages.append(limit)
            return read(job, from_index, limit)

        kit.store.results = counted  # type: ignore[method-assign]
        assert [line["index"] for line in lines_of(await client.get(f"{path}/results"))] == list(range(1000))
        assert len(pages) == -(-1000 // PAGE)
        assert max(pages) == PAGE

    run(kit, test)


def test_results_past_their_retention_are_gone_but_the_job_is_not(tmp_path: Path) -> None:
    clock = ManualClock()

    async def test(client: httpx.AsyncClient) -> None:
        path = await submit(client, 1, results_expire_after_seconds=60)
        await kit.until_committed()
        kit.work()
        clock.advance(59)
        assert (await client.get(f"{path}/results")).status_code == 200
        clock.advance(2)
        answer = await client.get(f"{path}/results")
        assert (answer.status_code, answer.json()["code"]) == (410, "gone")
        assert "2026-11-30T17:01:00" in answer.json()["detail"]
        assert (await client.get(path)).json()["results_expire_at"] == "2026-11-30T17:01:00.000Z"

    with closing(Kit(tmp_path, clock)) as kit:
        run(kit, test)


def test_a_large_output_is_a_link_that_needs_no_key_until_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    content = b'"' + b"x" * 3_000_000 + b'"'

    async def test(client: httpx.AsyncClient) -> None:
        made = await client.post("/v1/jobs", json={"model": "echo", "input": 1})
        path = made.headers["location"]
        await kit.until_committed()
        ref = kit.blobs.put("results/a", content)
        blob = frames.ResultBlob("", ref.key, ref.bytes, ref.sha256)
        header = frames.ResultHeader("json", ((0, 1),), blobs={0: (blob,)})
        (finish,) = kit.chunks_of(kit.committed[0])
        kit.finish([Finish(finish.ref, finish.outcomes, frames.pack(header, [b""]))])
        job = (await client.get(path)).json()
        assert (job["state"], job["output"]) == ("succeeded", None)
        links = [(await client.get(f"{path}/results")).json()["output"]["link"]["url"]]
        async with kit.client(None) as anyone:
            answer = await anyone.get(links[0])
            assert (answer.status_code, answer.content) == (200, content)
            clock.advance(6)
            assert (await anyone.get(links[0])).json()["code"] == "gone"
            links.append((await client.get(f"{path}/results")).json()["output"]["link"]["url"])
            assert (await anyone.get(links[1])).status_code == 200
            # Guessed, mended and foreign tokens lead nowhere.
            forged = base64.urlsafe_b64encode(b"0" * 32 + b"99999999999999999 results/a").decode()
            for token in (forged, links[1].rsplit("/", 1)[1][:-4] + "AAAA", "x", "%2e%2e", "..%2f..%2fledger.db"):
                assert (await anyone.get(f"/v1/blobs/{token}")).status_code in (401, 404)
            kit.blobs.delete("results/a")
            assert (await anyone.get(links[1])).status_code == 404

    with closing(Kit(tmp_path, clock, Settings(link_life=timedelta(seconds=5)))) as kit:
        run(kit, test)
