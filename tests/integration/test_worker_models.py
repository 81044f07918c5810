"""Models as a worker meets them: unsound ones, reload, several instances, deadlines."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from jobs.models.catalog import VersionState
from jobs.states import JobState
from tests.integration.yard import (
    Answer,
    Array,
    copy_models,
    echoed,
    json_job,
    rows_job,
    running,
    slow_job,
)
from tests.unit.repositories import double, graph, onnx_model, python_model

SECOND = timedelta(seconds=1)
SMALL = {"slow": ("max_size: 32", "max_size: 5")}
ECHO = """
class Handler:
    def predict(self, inputs, parameters):
        return [{"by": NAME, "id": item["id"]} for item in inputs]
"""


# -- models


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
    with running(tmp_path / "yard", root) as yard:
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
    folder = python_model(root, "echo", by("one"), extra="sample: [{id: 1}]\n")
    with running(tmp_path / "yard", root) as yard:

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
    folder = python_model(root, "waits", broken, extra="sample: [{id: 1}]\n")
    python_model(root, "fails", broken, extra="unavailable: fail\nsample: [{id: 1}]\n")
    with running(tmp_path / "yard", root) as yard:
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


def test_two_instances_share_the_work_and_isolate_all_the_same(tmp_path: Path) -> None:
    two = ("batch: {max_size: 32", "instances: 2\nbatch: {max_size: 4")
    root = copy_models(tmp_path / "models", "slow", "exit_if", slow=two, exit_if=two)
    with running(tmp_path / "yard", root) as yard:
        runner = yard.runner("slow")
        pids = [instance.process.pid for instance in runner.instances]
        assert len(set(pids)) == 2
        slow = [slow_job(64, 5) for _ in range(2)]
        exiting = json_job("exit_if", [667 if at == 13 else at for at in range(32)])
        yard.submit(*slow, exiting)
        yard.until(lambda: all(instance.busy for instance in runner.instances))
        ended = yard.wait(*slow, exiting)
        assert [job.state for job in ended] == [JobState.SUCCEEDED] * 2 + [JobState.PARTIALLY_FAILED]
        assert [yard.answers(job) for job in slow] == [echoed(list(range(64)))] * 2
        right = echoed(list(range(32))) | {13: Answer("failed", None, "process_died", 2)}
        assert yard.answers(exiting) == right
        yard.until_nothing_is_held()


def test_a_deadline_ends_what_waits_and_what_runs(tmp_path: Path) -> None:
    root = copy_models(tmp_path / "models", "slow", **SMALL)
    with running(tmp_path / "yard", root) as yard:
        soon = datetime.now(UTC) + 0.6 * SECOND
        late = slow_job(20, 60, cut=5, deadline_at=soon)
        queued = slow_job(1, 0, queue_deadline_at=soon)
        blocking = json_job("slow", [{"id": 0, "value": 0, "ms": 1500}, {"id": 1, "value": 1, "ms": 0}])
        yard.submit(late)
        yard.until_flying("slow")
        yard.submit(blocking, queued)
        ended = yard.wait(late, queued, blocking)
        assert ended[0].state is JobState.EXPIRED
        assert ended[0].counts.succeeded + ended[0].counts.expired == 20
        assert ended[1].state in (JobState.EXPIRED, JobState.SUCCEEDED)
        assert ended[2].state is JobState.SUCCEEDED
        yard.until_nothing_is_held()
