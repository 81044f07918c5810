"""What README.md tells a reader to type works, as it stands there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e.stack import LocalStack

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/models.md")


def snippet(marker: str) -> str:
    """The code block behind ``<!-- snippet: marker -->``."""
    for document in DOCUMENTS:
        found = re.search(rf"<!-- snippet: {marker} -->\n```\w+\n(.*?)```", (ROOT / document).read_text(), re.S)
        if found:
            return found[1]
    raise AssertionError(f"no snippet {marker}")


def shell(script: str, folder: Path, stack: LocalStack | None = None) -> str:
    """Runs it in `folder` with the environment's commands on the path; fails as soon as a command does."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    if stack is not None:
        (folder / ".batchyard").mkdir(exist_ok=True)
        (folder / ".batchyard" / "env").write_bytes((stack.data / "env").read_bytes())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_tour_with_curl(shared_stack: LocalStack, tmp_path: Path) -> None:
    text = shell(snippet("curl"), tmp_path, shared_stack)
    waited, *rest = [json.loads(line) for line in re.sub(r"\}\s*\{", "}\n{", text).splitlines()]
    assert waited["output"] == {"id": 1, "value": 3}
    job, first, second, problem = rest
    assert job["state"] == "succeeded"
    assert [(line["id"], line["output"]["value"]) for line in (first, second)] == [("a", 3), ("b", 3)]
    assert problem["status"] == 400
    assert {finding["pointer"] for finding in problem["errors"]} >= {"/priorty", "/items/0/input/x"}


def test_the_tour_in_python(shared_stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "tour.py").write_text(snippet("python"))
    lines = shell(f"{sys.executable} tour.py", tmp_path, shared_stack).splitlines()
    assert lines[:2] == ["{'id': 1, 'value': 3}", "succeeded 100"]
    assert lines[-1] == "99 succeeded {'id': 99, 'value': 198}"


def test_the_tour_by_command(shared_stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"id": "a", "input": {"id": 1, "values": [1, 2]}}\n')
    job = shell("batchyard submit sum --items items.jsonl", tmp_path, shared_stack).split()[0]
    shell(snippet("command").replace("JOB", job), tmp_path, shared_stack)
    assert json.loads((tmp_path / "answers.jsonl").read_text())["output"] == {"id": 1, "value": 3}


@pytest.mark.parametrize("marker", ["handler"])
def test_the_handler_is_python(marker: str) -> None:
    compile(snippet(marker), marker, "exec")


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])],
        "square",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "mynet.onnx")
    (tmp_path / "x.json").write_text('{"x": [2, 3]}')
    init, run, _, submit = snippet("own-model").strip().splitlines()
    shell(init, tmp_path)
    assert "4" in shell(run, tmp_path)
    with LocalStack(models=tmp_path / "models", data=tmp_path / "data") as stack:
        answer = json.loads(shell(f"{submit} --json", tmp_path, stack).splitlines()[-1])
        assert np.allclose(answer["output"]["y"]["data"], [4, 9])
        assert stack.stop() == 0
