"""The life of a local stack: start, second start, stop, kill, and that the work goes on."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from batchyard import Client, Item, WaitTimeout
from tests.e2e.stack import MODELS, ROOT, LocalStack

SECONDS = 40.0


@pytest.fixture
def stack(data: Path) -> Iterator[LocalStack]:
    made = LocalStack(data=data)
    yield made
    made.close()


def few(tmp_path: Path, *names: str) -> Path:
    """A repository of some of the test models, so that a start is quick."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in names:
        subprocess.run(["cp", "-r", str(MODELS / name), str(folder / name)], check=True)
    return folder


def test_ready_env_and_a_clean_end(stack: LocalStack) -> None:
    stack.start()
    assert stack.lines == [f"ready {stack.url}\n"]
    assert stack.url.startswith("http://127.0.0.1:")
    assert set(stack.env) == {"BATCHYARD_URL", "BATCHYARD_API_KEY", "BATCHYARD_ADMIN_URL", "BATCHYARD_ADMIN_KEY"}
    assert stack.env["BATCHYARD_URL"] == stack.url
    assert stat.S_IMODE((stack.data / "env").stat().st_mode) == 0o600
    assert stat.S_IMODE(stack.data.stat().st_mode) == 0o700
    assert stack.child_pids()
    assert httpx.get(f"{stack.url}/health/ready").status_code == 200
    assert httpx.get(f"{stack.admin_url}/admin/v1/workers").status_code == 401
    answer = httpx.get(f"{stack.admin_url}/admin/v1/workers", headers=stack.admin_headers)
    assert answer.status_code == 200, answer.text
    began = time.monotonic()
    assert stack.stop() == 0, stack.log
    assert time.monotonic() - began < 15
    assert stack.wait_gone() == []
    assert "Traceback" not in stack.log


def test_keys_stay_over_a_restart_and_jobs_too(tmp_path: Path, data: Path) -> None:
    stack = LocalStack(data=data, models=few(tmp_path, "echo"))
    with stack:
        keys = (stack.key, stack.admin_key)
        with Client(stack.url, stack.key) as client:
            job = client.submit("echo", input={"id": 1, "value": 2}).wait(SECONDS)
        assert stack.interrupt() == 0, stack.log
        stack.restart()
        assert (stack.key, stack.admin_key) == keys
        with Client(stack.url, stack.key) as client:
            assert client.get(job.id).output == {"id": 1, "value": 2}


def test_a_second_start_is_refused_with_the_pid_of_the_first(tmp_path: Path, data: Path) -> None:
    models = few(tmp_path, "echo")
    with LocalStack(data=data, models=models) as stack:
        second = LocalStack(data=data, models=models)
        second.start(wait=False)
        assert second.wait_exit(30) == 1
        assert f"is in use by process {stack.pid}" in second.log
        assert "Traceback" not in second.log
        assert httpx.get(f"{stack.url}/health/ready").status_code == 200


def test_a_taken_port_is_told(data: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = LocalStack(data=data, models=few(tmp_path, "echo"), arguments=("--port", str(port)))
        stack.start(wait=False)
        assert stack.wait_exit(30) == 1
    assert f"port {port}" in stack.log
    assert "--port" in stack.log
    assert "Traceback" not in stack.log


def test_a_stop_finishes_what_runs_and_the_rest_goes_on_at_the_next_start(tmp_path: Path, data: Path) -> None:
    with LocalStack(data=data, models=few(tmp_path, "slow")) as stack:
        with Client(stack.url, stack.key) as client:
            job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 20}) for n in range(400)])
            next(job.results())
        assert stack.stop() == 0, stack.log
        assert stack.wait_gone() == []
        stack.restart()
        with Client(stack.url, stack.key) as client:
            final = client.wait(job.id, SECONDS)
            assert final.state == "succeeded"
            assert [r.output["id"] for r in final.results()] == list(range(400))
            assert {r.attempts for r in final.results()} == {1}


def test_work_goes_on_after_a_kill(tmp_path: Path, data: Path) -> None:
    with LocalStack(data=data, models=few(tmp_path, "slow")) as stack:
        with Client(stack.url, stack.key) as client:
            job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 20}) for n in range(200)])
            next(job.results())
        assert stack.kill() == -signal.SIGKILL
        assert stack.wait_gone() == [], "an engine child outlived its front process"
        began = time.monotonic()
        stack.restart()
        with Client(stack.url, stack.key) as client:
            assert client.wait(job.id, SECONDS).state == "succeeded"
        assert time.monotonic() - began < 25, "the dead incarnation's chunks were not freed at once"


def test_a_killed_engine_child_comes_back(tmp_path: Path, data: Path) -> None:
    with LocalStack(data=data, models=few(tmp_path, "echo")) as stack:
        [child] = stack.child_pids()
        os.kill(child, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=10)
        with Client(stack.url, stack.key) as client:
            assert client.submit("echo", input={"id": 1, "value": 1}).wait(SECONDS).succeeded
        assert stack.child_pids() != [child]


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_served(tmp_path: Path, data: Path) -> None:
    models = few(tmp_path, "echo", "sum")
    handler = next((models / "sum").rglob("handler.py"))
    handler.write_text("raise RuntimeError('vocabulary not found')\n")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "model.yaml").write_text("schema: 1\nname: broken\nengin: python\n")
    with LocalStack(data=data, models=models) as stack:
        assert "sum@1" in stack.log
        assert "vocabulary not found" in stack.log
        assert "broken" in stack.log
        assert "engin" in stack.log
        with Client(stack.url, stack.key) as client:
            assert client.submit("echo", input={"id": 1, "value": 1}).wait(SECONDS).succeeded
            assert not client.model("sum").ready


def test_the_second_signal_is_immediate(tmp_path: Path, data: Path) -> None:
    with LocalStack(data=data, models=few(tmp_path, "slow")) as stack:
        with Client(stack.url, stack.key) as client:
            job = client.submit("slow", input={"id": 1, "value": 1, "ms": 20_000}, run_seconds=60)
            with pytest.raises(WaitTimeout):
                job.wait(2)
            assert client.get(job.id).state == "running"
        os.kill(stack.pid, signal.SIGTERM)
        stack.wait_log("stopping", SECONDS)  # two signals at once would be one
        os.kill(stack.pid, signal.SIGTERM)
        began = time.monotonic()
        assert stack.wait_exit(10) != 0
        assert time.monotonic() - began < 3
        assert stack.wait_gone() == []


def test_doctor_before_anything_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "batchyard", "doctor", "--port", str(taken.getsockname()[1])]
        command += ["--data", str(tmp_path / "data"), "--models", str(tmp_path / "none")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TO DO  port of the API" in done.stdout
    assert "TO DO  models: " in done.stdout
    assert "ok     Python: 3." in done.stdout
    assert "ok     disk speed" in done.stdout
    assert not (tmp_path / "data").exists()


def test_a_ledger_that_is_none_is_told_without_a_traceback(data: Path, tmp_path: Path) -> None:
    data.mkdir()
    (data / "ledger.db").write_text("no database at all, but long enough for a header of one " * 4)
    stack = LocalStack(data=data, models=few(tmp_path, "echo"))
    stack.start(wait=False)
    assert stack.wait_exit(30) == 1
    assert "ledger.db cannot be brought up to date: file is not a database" in stack.log
    assert "Traceback" not in stack.log


def test_a_stop_does_not_wait_for_waiting_clients(tmp_path: Path, data: Path) -> None:
    with LocalStack(data=data, models=few(tmp_path, "slow")) as stack:
        with Client(stack.url, stack.key) as client:
            at = datetime.now(UTC) + timedelta(hours=1)
            job = client.submit("slow", input={"id": 1, "value": 1, "ms": 1}, not_before=at)
            with httpx.Client(headers=stack.headers, timeout=90) as asked, ThreadPoolExecutor() as pool:
                waiting = pool.submit(asked.get, f"{stack.url}/v1/jobs/{job.id}?wait=60")
                with pytest.raises(WaitTimeout):
                    job.wait(0.5)  # the other wait is under way by then
                began = time.monotonic()
                assert stack.stop() == 0, stack.log
                assert waiting.result(5).json()["state"] == "queued"
        assert time.monotonic() - began < 5


def test_a_reader_goes_on_over_a_kill_and_a_restart(tmp_path: Path, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stack = LocalStack(data=data, models=few(tmp_path, "slow"), arguments=("--port", str(port)))
    with stack, Client(stack.url, stack.key, retry_for=SECONDS) as client, ThreadPoolExecutor() as pool:
        job = client.submit("slow", items=[Item({"id": n, "value": n, "ms": 20}) for n in range(200)])
        results = job.results()
        first = next(results)
        rest = pool.submit(list, results)
        waited = pool.submit(job.wait, SECONDS)
        assert stack.kill() == -signal.SIGKILL
        stack.restart()
        assert waited.result(SECONDS).state == "succeeded"
        assert [first.index, *(result.index for result in rest.result(SECONDS))] == list(range(200))
