"""Every command in each of its forms: --help, --json, and the exit code that goes with what happened."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from batchyard.command.local import up
from batchyard.command.main import app
from tests.e2e.stack import MODELS, ROOT, LocalStack

COMMANDS = (
    ("up",), ("submit",), ("get",), ("wait",), ("results",), ("cancel",), ("list",), ("doctor",), ("version",),
    ("models", "list"), ("models", "inspect"), ("models", "init"), ("models", "run"),
)  # fmt: skip


def command(
    *arguments: str, stack: LocalStack | None = None, stdin: str = "", folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    if stack is not None:
        environ |= {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    return subprocess.run(
        [sys.executable, "-m", "batchyard", *arguments],
        env={**environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def in_json(stack: LocalStack, *arguments: str, code: int = 0, stdin: str = "") -> Any:
    done = command(*arguments, "--json", stack=stack, stdin=stdin)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_a_json_form_and_refuses_what_it_does_not_know(name: tuple[str, ...]) -> None:
    runner = CliRunner()
    told = runner.invoke(app, [*name, "--help"])
    assert told.exit_code == 0
    assert " ".join(name) in told.output.split("\n")[0] + told.output.split("\n")[1]
    assert "--json" in told.output
    refused = runner.invoke(app, [*name, "--colour"])
    assert refused.exit_code == 2
    assert "--colour" in refused.output


def test_up_is_on_8000_and_8001_and_keeps_its_data_in_the_folder() -> None:
    given = {parameter.name: parameter.default for parameter in inspect.signature(up).parameters.values()}
    assert (given["port"], given["admin_port"], given["data"]) == (8000, 8001, Path(".batchyard"))


def test_an_expired_job_is_exit_code_5_and_every_command_tells_it_in_json(shared_stack: LocalStack) -> None:
    item = '{"id": 1, "value": 1, "ms": 20000}'
    job = in_json(shared_stack, "submit", "slow", "--input", item, "--total-seconds", "0.3")["id"]
    assert in_json(shared_stack, "wait", job, code=5)["state"] == "expired"
    assert in_json(shared_stack, "get", job)["error"]["code"] == "deadline_exceeded"
    (line,) = in_json(shared_stack, "results", job)
    assert (line["state"], line["output"]) == ("expired", None)
    assert job in [listed["id"] for listed in in_json(shared_stack, "list", "--state", "expired")]


def test_cancel_and_its_refusal(shared_stack: LocalStack) -> None:
    item = '{"id": 1, "value": 1, "ms": 20000}'
    job = in_json(shared_stack, "submit", "slow", "--input", item)["id"]
    assert in_json(shared_stack, "cancel", job)["id"] == job
    assert in_json(shared_stack, "wait", job, code=6)["state"] == "cancelled"
    again = command("cancel", job, "--json", stack=shared_stack)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: Conflict: ")


def test_models_in_json(shared_stack: LocalStack) -> None:
    assert {model["name"] for model in in_json(shared_stack, "models", "list")} >= {"echo", "mlp"}
    assert in_json(shared_stack, "models", "inspect", "mlp")["batch"] == {"max_size": 64}
    unknown = command("models", "inspect", "no_such_model", "--json", stack=shared_stack)
    assert (unknown.returncode, unknown.stdout) == (1, "")


def test_models_init_and_run_need_no_server(tmp_path: Path) -> None:
    shape = ["batch", 2]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "negated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "f.onnx")
    made = command("models", "init", "mine", "--onnx", "f.onnx", "--json", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    written = tmp_path / json.loads(made.stdout)["written"]
    assert written == tmp_path / "models" / "mine" / "model.yaml"
    assert "datatype: FP32, shape: [2]" in written.read_text()
    (tmp_path / "x.json").write_text('{"x": [1, -2]}')
    ran = command("models", "run", "mine", "--input", "x.json", "--json", folder=tmp_path)
    assert json.loads(ran.stdout)["y"] == {"shape": [2], "datatype": "FP32", "data": [-1.0, 2.0]}
    for arguments in (("init", "mine", "--onnx", "f.onnx"), ("init", "other", "--onnx", "gone.onnx")):
        refused = command("models", *arguments, folder=tmp_path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("error: ")
        assert "Traceback" not in refused.stderr
    raised = command("models", "run", "raise_if", "--models", str(MODELS), "--input", '{"id": 1, "value": 666}')
    assert (raised.returncode, raised.stdout) == (1, "")
    assert raised.stderr.startswith("Traceback")
    assert 'raise_if/1/handler.py", line' in raised.stderr


def test_up_says_ready_in_json_too(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    stack = LocalStack(data=tmp_path / "data", models=tmp_path / "models", arguments=("--json",))
    try:
        stack.start(wait=False)
        stack.wait_log("Ctrl-C stops", 30)
        assert stack.stop() == 0, stack.log
        (line,) = stack.lines
        assert json.loads(line) == {"ready": stack.env["BATCHYARD_URL"]}
    finally:
        stack.close()
