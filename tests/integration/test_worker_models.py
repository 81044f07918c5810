"""Models as a worker meets them: unsound ones, new and broken and vanished versions, talkative handlers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from jobs.models.catalog import VersionState
from jobs.states import JobState
from tests.integration.yard import Yard, living
from tests.integration.yard_jobs import Array, json_job, rows_job
from tests.unit.repositories import double, graph, onnx_model, python_model

SAMPLE = "sample: [{id: 1}]\n"
ECHO = """
class Handler:
    def predict(self, inputs, parameters):
        return [{"by": NAME, "id": item["id"]} for item in inputs]
"""


def not_batch_first() -> bytes:
    """[T, B, C], summed along T."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    shape: list[int | str | None] = ["T", 2, 2]
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    return graph([node], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)}, [axis])


def over_the_batch() -> bytes:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    shape: list[int | str | None] = ["batch", 4]
    return graph(nodes, {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)})


def test_a22_models_that_cannot_batch_are_found_and_still_right(tmp_path: Path) -> None:
    root = tmp_path / "models"
    onnx_model(root, "fixed", double(1, 4))
    onnx_model(root, "reduced", over_the_batch())
    onnx_model(root, "second", not_batch_first())
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    cases: list[tuple[str, Array, Array]] = [
        ("fixed", x, 2 * x),
        ("reduced", x, 0 * x),
        ("second", x.reshape(6, 2, 2), x.reshape(6, 2, 2)),
    ]
    with Yard(tmp_path) as yard:
        jobs = [rows_job(name, given) for name, given, _ in cases]
        lone = [rows_job(name, given[at : at + 1]) for name, given, _ in cases for at in range(6)]
        yard.run(*jobs, *lone)
        for job, (name, _, right) in zip(jobs, cases, strict=True):
            version = yard.version(name)
            assert version.batching == "unsound"
            assert version.batching_reason
            answers = yard.answers(job)
            np.testing.assert_array_equal([answers[at].output["y"] for at in range(6)], right)
            stats = yard.supervisor.stats(name, "1")
            assert (stats.batches, stats.batch_items) == (12, 12)
        for job, row in zip(lone, [row for _, _, right in cases for row in right], strict=True):
            np.testing.assert_array_equal(yard.answers(job)[0].output["y"], row)


def by(name: str) -> str:
    return f"NAME = {name!r}\n{ECHO}"


def test_reload_shows_what_is_new_and_keeps_what_works(tmp_path: Path) -> None:
    root = tmp_path / "models"
    folder = python_model(root, "echo", by("one"), extra=SAMPLE)
    with Yard(tmp_path) as yard:

        def answered_by(version: str) -> str:
            job = json_job("echo", [0, 1, 2], version=version)
            yard.run(job)
            (name,) = {answer.output["by"] for answer in yard.answers(job).values()}
            return str(name)

        assert answered_by("1") == "one"
        (folder / "2").mkdir()
        (folder / "2" / "handler.py").write_text(by("two"))
        assert yard.supervisor.reload() == {"echo@1": "ready", "echo@2": "ready"}
        assert answered_by("2") == "two"
        assert yard.catalog.models()["echo"].default_version == "2"
        pid = yard.engine("echo")
        assert yard.supervisor.reload() == {"echo@1": "ready", "echo@2": "ready"}
        assert yard.engine("echo") == pid, "what did not change is not started again"

        (folder / "2" / "handler.py").write_text("raise RuntimeError('broken form')\n")
        (folder / "3").mkdir()
        (folder / "3" / "handler.py").write_text("raise RuntimeError('broken version')\n")
        states = yard.supervisor.reload()
        assert states["echo@1"] == "ready"
        assert "broken form" in states["echo@2"]
        assert "broken version" in states["echo@3"]
        assert yard.version("echo", "2").state is VersionState.READY
        assert yard.version("echo", "3").state is VersionState.UNAVAILABLE
        assert yard.catalog.models()["echo"].default_version == "2"
        assert (answered_by("1"), answered_by("2")) == ("one", "two")

        (folder / "1" / "handler.py").write_text(by("another one"))
        (folder / "3" / "handler.py").write_text(by("three"))
        waiting = json_job("echo", [0], version="3")
        yard.submit(waiting)
        states = yard.supervisor.reload()
        assert (states["echo@1"], states["echo@3"]) == ("ready", "ready")
        assert (answered_by("1"), answered_by("3")) == ("another one", "three")
        yard.wait(waiting)
        yard.until(lambda: len(yard.supervisor.roster.watched()) == 3)


def test_a_version_that_cannot_be_loaded_lets_jobs_wait_or_fail_as_it_says(tmp_path: Path) -> None:
    root = tmp_path / "models"
    broken = "raise RuntimeError('no weights here')\n"
    folder = python_model(root, "waits", broken, extra=SAMPLE)
    python_model(root, "fails", broken, extra=f"unavailable: fail\n{SAMPLE}")
    with Yard(tmp_path) as yard:
        for _ in range(2):  # the second comes while it is known to be unavailable
            failing = json_job("fails", [0, 1])
            (ended,) = yard.run(failing)
            assert ended.state is JobState.FAILED
            assert {a.code for a in yard.answers(failing).values()} == {"engine_error"}
        waiting = json_job("waits", [0, 1])
        yard.submit(waiting)
        yard.until(lambda: yard.held() == 1)
        (folder / "1" / "handler.py").write_text(by("repaired"))
        yard.supervisor.reload()
        (ended,) = yard.wait(waiting)
        assert ended.state is JobState.SUCCEEDED


def test_a_version_that_is_gone_ends_and_its_engine_with_it(tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("stays", "gone"):
        python_model(root, name, by(name), extra=SAMPLE)
    with Yard(tmp_path) as yard:
        gone, stays = yard.engine("gone"), yard.engine("stays")
        shutil.rmtree(root / "gone")
        assert yard.supervisor.reload() == {"stays@1": "ready"}
        assert yard.catalog.find("gone") is None
        yard.until(lambda: living([gone]) == [])
        job = json_job("stays", [7])
        yard.run(job)
        assert yard.answers(job)[0].output == {"by": "stays", "id": 0}
        assert yard.engine("stays") == stays, "what did not change goes on"


CHATTY = """
class Handler:
    def predict(self, inputs, parameters):
        for n in range(5000):
            print("line", n)
        return inputs
"""


def test_what_handlers_print_is_in_the_log_and_never_without_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    python_model(tmp_path / "models", "chatty", CHATTY, extra=SAMPLE)
    with caplog.at_level("INFO", logger="batchyard.engine"), Yard(tmp_path) as yard:
        (ended,) = yard.run(json_job("chatty", [1]))
        assert ended.state is JobState.SUCCEEDED
        yard.stop()
    lines = [record.message for record in caplog.records if ": line " in record.message]
    assert lines
    assert len(lines) < 2000
