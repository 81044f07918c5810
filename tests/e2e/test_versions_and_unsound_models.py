"""A job keeps the version it was given at submit; a model that cannot batch is served one by one, loudly."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper

from batchyard import Client, Item
from tests.e2e.stack import LocalStack
from tests.unit.repositories import double, graph, onnx_model, python_model

SECONDS = 40.0
SAMPLE = "sample: [1, 2, 3]\n"


def by(version: int) -> str:
    return (
        f"class Handler:\n    def predict(self, inputs, parameters):\n        return [[{version}, i] for i in inputs]\n"
    )


def not_batch_first() -> bytes:
    """[T, B, C], summed along T."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    shape: list[int | str | None] = ["T", 2, 2]
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    return graph([node], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)}, [axis])


def over_the_batch() -> bytes:
    """Each row less the mean of the batch."""
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1)
    rest = helper.make_node("Sub", ["x", "mean"], ["y"])
    shape: list[int | str | None] = ["batch", 4]
    return graph([mean, rest], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)})


def reload(stack: LocalStack) -> dict[str, Any]:
    answer = httpx.post(f"{stack.admin_url}/admin/v1/models/reload", headers=stack.admin_headers, timeout=60)
    assert answer.status_code == 200, answer.text
    states: dict[str, Any] = answer.json()["data"]
    return states


def test_a_job_stays_with_the_version_it_was_submitted_to(tmp_path: Path, data: Path) -> None:
    folder = python_model(tmp_path / "models", "m", by(1), extra=SAMPLE)
    with LocalStack(data=data, models=tmp_path / "models") as stack, Client(stack.url, stack.key) as client:
        at = datetime.now(UTC) + timedelta(hours=1)
        kept = client.submit("m", items=[Item(n) for n in range(3)], not_before=at)
        waiting = client.submit("m", input=7, not_before=datetime.now(UTC) + timedelta(seconds=3))
        assert (kept.version, waiting.version) == ("1", "1")
        (folder / "2").mkdir()
        (folder / "2" / "handler.py").write_text(by(2))
        assert reload(stack) == {"m@1": "ready", "m@2": "ready"}
        assert client.model("m").default_version == "2"
        after = client.submit("m", input=7).wait(SECONDS)
        assert (after.version, after.output) == ("2", [2, 7])
        assert client.submit("m@1", input=8).wait(SECONDS).output == [1, 8]
        final = waiting.wait(SECONDS)
        assert (final.version, final.output) == ("1", [1, 7])
        (line,) = final.results()
        assert line.version == "1"
        # Over a restart too.
        assert stack.stop() == 0, stack.log
        stack.restart()
        with Client(stack.url, stack.key) as again:
            assert again.get(kept.id).version == "1"


def test_a22_unsound_models_are_told_in_the_log_and_by_the_api(tmp_path: Path, data: Path) -> None:
    root = tmp_path / "models"
    onnx_model(root, "fixed", double(1, 4))
    onnx_model(root, "reduced", over_the_batch())
    onnx_model(root, "second", not_batch_first())
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    cases = {"fixed": (rows, rows * 2), "reduced": (rows, rows * 0), "second": (rows.reshape(6, 2, 2),) * 2}
    with LocalStack(data=data, models=root) as stack, Client(stack.url, stack.key) as client:
        for name, (given, right) in cases.items():
            raw = client.model(name).raw
            assert (raw["batching"], raw["ready"]) == ("unsound", True)
            assert raw["batching_reason"]
            said = [line for line in stack.log.splitlines() if f"{name}@1" in line and "one by one" in line]
            assert any("WARNING" in line and raw["batching_reason"] in line for line in said), stack.log
            job = client.submit(name, items=[Item({"x": row.tolist()}) for row in given]).wait(SECONDS)
            assert job.state == "succeeded"
            answers = [np.array(result.output["y"]["data"], np.float32) for result in job.results()]
            np.testing.assert_array_equal(np.concatenate([answer.ravel() for answer in answers]), right.ravel())
            stats = client.model(name).raw["stats"]
            assert (stats["batches"], stats["batch_items"]) == (6, 6)


def test_one_server_s_artifacts_are_pinned_by_hash(tmp_path: Path, data: Path) -> None:
    folder = onnx_model(tmp_path / "models", "m", double())
    text = (folder / "model.yaml").read_text()
    with LocalStack(data=data, models=tmp_path / "models") as stack, Client(stack.url, stack.key) as client:
        digest = client.model("m").raw["versions"][0]["artifact_sha256"]
        (folder / "model.yaml").write_text(text.replace("model.onnx}", f"model.onnx, sha256: '{digest}'}}"))
        shutil.copytree(folder / "1", folder / "2")
        (folder / "2" / "model.onnx").write_bytes(double("batch", 3) + b"\x00")
        states = reload(stack)
        assert states["m@1"] == "ready"
        assert digest in json.dumps(states["m@2"])
        second = next(v for v in client.model("m").raw["versions"] if v["version"] == "2")
        assert second["state"] == "unavailable"
        assert "SHA-256" in second["error"]
