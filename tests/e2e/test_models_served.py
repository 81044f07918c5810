"""The test models as `batchyard up --models tests/models` serves them: all there, one process each, exact answers."""

import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from batchyard import Client, Item
from tests.e2e.stack import MODELS, LocalStack

SECONDS = 40.0
NAMES = sorted(path.parent.name for path in MODELS.glob("*/model.yaml"))
EXACT: dict[str, list[Any]] = {
    "ident_int64": [9007199254740993, -(2**63), 2**63 - 1, 0],
    "ident_uint64": [2**64 - 1, 2**63, 9007199254740993, 0],
    "ident_fp16": [65504.0, -0.5, "NaN", "-Infinity"],
    "ident_bf16": [1.0, -0.5, "Infinity", 3.0],
    "ident_bytes": ["", "a\u0000ü", {"b64": "//4="}, "\U0001f600"],
    "ident_bool": [True, False, True, True],
}


def test_every_model_is_ready_and_batches(client: Client) -> None:
    served = {model.name: model for model in client.models()}
    assert sorted(served) == NAMES
    for model in served.values():
        assert model.ready, model.raw
        assert (model.raw["batching"], model.raw["batching_reason"]) == ("sound", None)
        assert [version.state for version in model.versions] == ["ready"]


def test_each_engine_is_a_process_of_its_own_that_was_started_anew(shared_stack: LocalStack) -> None:
    answer = httpx.get(f"{shared_stack.admin_url}/admin/v1/workers", headers=shared_stack.admin_headers)
    (worker,) = answer.json()["data"]
    assert worker["pid"] == shared_stack.pid
    assert sorted(worker["models"]) == [f"{name}@1" for name in NAMES]
    assert len(set(worker["engines"])) == len(NAMES)
    assert set(worker["engines"]) <= set(shared_stack.child_pids())
    front = psutil.Process(shared_stack.pid)
    assert len(front.children()) == len(NAMES)
    for pid in worker["engines"]:
        command = psutil.Process(pid).cmdline()
        # A forked one would have its parent's command line.
        assert Path(command[0]).name == Path(sys.executable).name
        assert "workers.child.main" in command


def test_nothing_listens_beyond_this_machine(shared_stack: LocalStack) -> None:
    processes = [psutil.Process(pid) for pid in (shared_stack.pid, *shared_stack.child_pids())]
    found = [
        connection.laddr
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    ports = {int(url.rsplit(":", 1)[1]) for url in (shared_stack.url, shared_stack.admin_url)}
    assert {address.port for address in found} == ports
    assert {address.ip for address in found} == {"127.0.0.1"}


@pytest.mark.parametrize("name", EXACT)
def test_identities_are_exact_through_the_whole_service(client: Client, name: str) -> None:
    value = EXACT[name]
    final = client.submit(name, items=[Item({"x": value}), Item({"x": value[::-1]})]).wait(SECONDS)
    assert final.state == "succeeded"
    outputs = [result.output["y"] for result in final.results()]
    assert [output["data"] for output in outputs] == [value, value[::-1]]
    assert [list(map(type, output["data"])) for output in outputs] == [
        list(map(type, value)),
        list(map(type, value[::-1])),
    ]
    assert {(output["datatype"], tuple(output["shape"])) for output in outputs} == {
        (name.removeprefix("ident_").upper(), (4,))
    }


def test_the_item_that_needs_too_much_memory_fails_alone(client: Client) -> None:
    items = [Item({"id": n, "value": n, "bytes": 2**30 if n == 2 else 1000}) for n in range(5)]
    final = client.submit("need_memory", items=items, max_attempts=1).wait(SECONDS)
    assert (final.state, final.counts.succeeded, final.counts.failed) == ("partially_failed", 4, 1)
    lines = list(final.results())
    assert [line.output for line in lines if line.succeeded] == [{"id": n, "value": n} for n in (0, 1, 3, 4)]
    assert lines[2].error is not None
    assert lines[2].error.code == "out_of_memory"


def test_poison_does_all_four_and_its_neighbours_succeed(client: Client) -> None:
    values = [0, 666, 1, 667, 2, 668, 3, 669, 4]
    items = [Item({"id": n, "value": value, "ms": 1}) for n, value in enumerate(values)]
    final = client.submit("poison", items=items, max_attempts=1).wait(SECONDS)
    failed = {line.index: line.error.code for line in final.results() if line.error is not None}
    assert failed == {1: "handler_error", 3: "process_died", 5: "run_timeout"}
    right = {n: {"id": n, "value": "NaN" if value == 669 else value} for n, value in enumerate(values)}
    answers = {line.index: line.output for line in final.results() if line.succeeded}
    assert answers == {n: answer for n, answer in right.items() if n not in failed}


def test_why_batches_closed_and_what_was_padding_is_told(client: Client) -> None:
    lengths = [1, 128, 7, 64] * 16
    job = client.submit("pad", items=[Item({"x": [1.0] * length}) for length in lengths]).wait(SECONDS)
    assert job.state == "succeeded"
    assert [line.output["y"]["data"] for line in job.results()] == [[1.0]] * 64
    assert [line.output["centred"]["shape"] for line in job.results()] == [[length] for length in lengths]
    stats = client.model("pad").raw["stats"]
    assert stats["batch_items"] >= 64
    assert stats["padded_elements"] > 0
    assert stats["elements"] > 0
    assert sum(stats["closed"].values()) == stats["batches"]
    assert set(stats["closed"]) <= {"full", "delay", "deadline", "memory", "idle"}


def test_each_listener_takes_its_own_key_only(shared_stack: LocalStack) -> None:
    assert shared_stack.key.startswith("bysk_")
    assert shared_stack.admin_key.startswith("bysk_")
    assert shared_stack.key != shared_stack.admin_key
    for url, headers in (
        (f"{shared_stack.url}/v1/models", shared_stack.admin_headers),
        (f"{shared_stack.admin_url}/admin/v1/workers", shared_stack.headers),
    ):
        assert httpx.get(url, headers=headers).status_code == 401


def test_the_listeners_run_on_uvloop_and_httptools(shared_stack: LocalStack) -> None:
    loaded = [found.path for found in psutil.Process(shared_stack.pid).memory_maps()]
    for package in ("uvloop", "httptools"):
        assert any(f"/{package}/" in path for path in loaded), package
