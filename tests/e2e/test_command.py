"""The `batchyard` command against a running local stack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import MODELS, ROOT, LocalStack


def command(
    stack: LocalStack, *arguments: str, stdin: str = "", folder: Path = ROOT, known: bool = True
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    if known:
        environ |= {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    return subprocess.run(
        [sys.executable, "-m", "batchyard", *arguments],
        env=environ,
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_submit_wait_results(shared_stack: LocalStack) -> None:
    item = '{"input": {"id": 1, "value": "ä"}, "id": "a"}\n'
    submitted = command(shared_stack, "submit", "echo", "--items", "-", stdin=item)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    waited = command(shared_stack, "wait", job, "--json")
    assert (waited.returncode, json.loads(waited.stdout)["state"]) == (0, "succeeded")
    lines = [json.loads(line) for line in command(shared_stack, "results", job).stdout.splitlines()]
    assert [(line["id"], line["output"]) for line in lines] == [("a", {"id": 1, "value": "ä"})]
    assert job in command(shared_stack, "list").stdout
    assert "succeeded" in command(shared_stack, "get", job).stdout


def test_one_input_waited_for_prints_its_output(shared_stack: LocalStack) -> None:
    done = command(shared_stack, "submit", "sum", "--input", '{"id": 3, "values": [1, 2, 3]}', "--wait")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"id": 3, "value": 6}), done.stderr


@pytest.mark.parametrize(("values", "code"), [([1, 666], 3), ([666], 4)])
def test_what_became_of_it_is_the_exit_code(shared_stack: LocalStack, values: list[int], code: int) -> None:
    items = "".join(json.dumps({"input": {"id": n, "value": value}}) + "\n" for n, value in enumerate(values))
    done = command(shared_stack, "submit", "raise_if", "--items", "-", "--max-attempts", "1", "--wait", stdin=items)
    assert done.returncode == code, done.stderr
    assert "handler_error" in done.stdout


def test_cancel_and_its_exit_code(shared_stack: LocalStack) -> None:
    items = "".join(json.dumps({"input": {"id": n, "value": n, "ms": 50}}) + "\n" for n in range(200))
    job = command(shared_stack, "submit", "slow", "--items", "-", stdin=items).stdout.strip()
    assert command(shared_stack, "cancel", job).returncode == 0
    assert command(shared_stack, "wait", job).returncode == 6
    again = command(shared_stack, "cancel", job)
    assert again.returncode == 1
    assert again.stderr.startswith("error: ")


def test_refusals_name_every_finding(shared_stack: LocalStack) -> None:
    done = command(shared_stack, "submit", "mlp", "--input", '{"x": [1, 2]}')
    assert done.returncode == 1
    assert "/input" in done.stderr
    assert "64" in done.stderr


def test_models(shared_stack: LocalStack) -> None:
    rows = [line.split("\t") for line in command(shared_stack, "models", "list").stdout.splitlines()]
    assert ["mlp", "1 (default)", "ready", "onnxruntime"] in [row[:4] for row in rows]
    assert "FP32" in command(shared_stack, "models", "inspect", "mlp").stdout


def test_a_model_runs_without_a_server(shared_stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"id": 5, "value": 6}')
    here = ("--models", str(MODELS))
    done = command(shared_stack, "models", "run", "echo", "--input", str(tmp_path / "x.json"), *here)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"id": 5, "value": 6}), done.stderr
    failed = command(shared_stack, "models", "run", "raise_if", "--input", '{"id": 1, "value": 666}', *here)
    assert failed.returncode == 1
    assert "handler.py" in failed.stderr


def test_doctor_looks_at_the_running_stack(shared_stack: LocalStack) -> None:
    arguments = ("doctor", "--data", str(shared_stack.data), "--models", str(MODELS))
    done = command(shared_stack, *arguments, "--json")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["running stack"]["good"], found
    assert f"pid {shared_stack.pid}" in found["data folder"]["detail"]
    assert done.returncode == 0, done.stdout


def test_the_stack_of_the_folder_is_found(shared_stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / ".batchyard").symlink_to(shared_stack.data)
    assert command(shared_stack, "list", folder=tmp_path / "below", known=False).returncode == 0
