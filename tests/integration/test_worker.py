"""The whole worker with real engine children: answers, faults, stops, restarts, reloads."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jobs.frames import Column, PayloadHeader
from jobs.models.catalog import VersionState
from jobs.states import ErrorCode, JobState, Outcome
from tests.integration.worker_kit import PATIENCE, Worker, living
from tests.unit.repositories import Dims, graph, onnx_model, python_model

MODELS = Path(__file__).parents[1] / "models"
S, F, C = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED
ECHO = "class Handler:\n    def predict(self, inputs, parameters):\n        return inputs\n"
SAMPLE = "sample: [1, 2, 3]\n"

Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts workers on one data folder, with copies of test models or with a repository of the test's own."""
    made: list[Worker] = []

    def make(*models: str, **settings: Any) -> Worker:
        for name in models:
            shutil.copytree(MODELS / name, tmp_path / "models" / name, dirs_exist_ok=True)
        made.append(Worker(tmp_path / "data", tmp_path / "models", **settings))
        return made[-1]

    yield make
    pids = [pid for one in made for pid in one.engines]
    for one in made:
        one.stop()
    assert living(pids) == [], "no child is left behind"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def item(number: int, value: object = None, **more: object) -> dict[str, object]:
    return {"id": number, "value": number if value is None else value, **more}


def test_a_thousand_single_jobs_at_once_each_get_their_own_answer_a21(start: Start) -> None:
    work = start("echo")
    jobs = [work.new_job("echo", [item(number, f"value {number}")]) for number in range(1000)]
    halves = [threading.Thread(target=work.submit, args=jobs[at::2]) for at in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    assert {job.state for job in work.wait(*(job.id for job in jobs))} == {JobState.SUCCEEDED}
    for number, job in enumerate(jobs):
        assert work.answers(job.id) == {0: item(number, f"value {number}")}
    stats = work.supervisor.stats("echo", "1")
    assert stats.batch_items == 1000
    assert stats.batches < 500, "they share batches"


def test_of_one_of_each_fault_the_culprits_alone_fail(start: Start) -> None:
    work = start("poison")
    values: list[object] = list(range(32))
    values[5], values[11], values[20] = 666, 667, 668
    job = work.run("poison", [item(number, value) for number, value in enumerate(values)])
    assert job.state is JobState.PARTIALLY_FAILED
    assert work.errors(job.id) == {
        5: (ErrorCode.HANDLER_ERROR, 1),
        11: (ErrorCode.PROCESS_DIED, 1),
        20: (ErrorCode.RUN_TIMEOUT, 1),
    }
    assert work.answers(job.id) == {
        number: item(number, value) for number, value in enumerate(values) if number not in (5, 11, 20)
    }


def test_a_killer_is_tried_twice_and_its_neighbours_are_charged_nothing(start: Start) -> None:
    work = start("exit_if", "echo")
    job = work.run("exit_if", [item(1), item(2, 667), item(3)], max_attempts=3)
    assert work.errors(job.id) == {1: (ErrorCode.PROCESS_DIED, 2)}
    assert {header.attempts for header, _ in work.frames(job.id) if not header.errors} == {1}
    assert work.run("echo", [item(1)]).state is JobState.SUCCEEDED, "other models' engines are untouched"


def test_a_stopped_child_is_cut_like_one_that_hangs(start: Start) -> None:
    work = start("poison")
    pid = work.engine("poison")
    os.kill(pid, signal.SIGSTOP)
    job = work.run("poison", [item(number) for number in range(8)], max_attempts=3)
    assert job.state is JobState.SUCCEEDED
    assert work.engine("poison") != pid
    assert living([pid]) == []


def test_a_child_that_is_killed_with_nothing_to_do_is_there_again_at_once(start: Start) -> None:
    work = start("echo")
    pid = work.engine("echo")
    os.kill(pid, signal.SIGKILL)
    assert work.run("echo", [item(1)]).state is JobState.SUCCEEDED
    assert work.engine("echo") != pid


def test_a_model_that_cannot_batch_is_served_one_by_one_a22(start: Start, models: Path) -> None:
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1)
    subtract = helper.make_node("Sub", ["x", "m"], ["d"])
    add = helper.make_node("Add", ["d", "m"], ["s"])
    twice = helper.make_node("Add", ["s", "m"], ["y"])
    artifact = graph(
        [mean, subtract, add, twice],
        {"x": (TensorProto.FLOAT, ["batch", 2])},
        {"y": (TensorProto.FLOAT, ["batch", 2])},
    )
    onnx_model(models, "unsound", artifact)
    work = start()
    version = work.services.catalog.find("unsound", "1")
    assert version is not None
    assert version.batching == "unsound"
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    header = PayloadHeader("rows", ((0, 8),), columns=(Column("x", "FP32", (2,)),))
    (name,) = work.submit(work.rows_job("unsound", header, [x.tobytes()]))
    assert work.wait(name)[0].state is JobState.SUCCEEDED
    assert np.array_equal(rows(work, name), x + x), "as if each were alone"
    assert work.supervisor.stats("unsound", "1").batches == 8


def test_rows_go_through_an_onnx_model_in_batches_of_many_jobs(start: Start, models: Path) -> None:
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")
    node = helper.make_node("Add", ["x", "one"], ["y"])
    shape: Dims = ["batch", 3]
    artifact = graph([node], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)}, [one])
    onnx_model(models, "plus", artifact)
    work = start()
    jobs, arrays = [], []
    for number in range(40):
        x = np.full((number % 7 + 1, 3), number, np.float32)
        header = PayloadHeader("rows", ((0, len(x)),), columns=(Column("x", "FP32", (3,)),))
        jobs.append(work.rows_job("plus", header, [x.tobytes()]))
        arrays.append(x)
    work.wait(*work.submit(*jobs))
    for job, x in zip(jobs, arrays, strict=True):
        assert np.array_equal(rows(work, job.id), x + 1)


def rows(work: Worker, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The one FP32 output of a job, in item order."""
    found: dict[int, Any] = {}
    for header, parts in work.frames(name):
        (column,) = header.columns
        data = np.frombuffer(parts[0], np.float32).reshape(-1, *column.shape)
        found.update(zip((index for a, b in header.items for index in range(a, b)), data, strict=True))
    return np.stack([found[index] for index in range(len(found))])


def test_cancelling_while_it_runs_keeps_what_is_done_and_loses_no_item_a36(start: Start) -> None:
    work = start("slow", cancel_grace=timedelta(seconds=2))
    fast = [item(number, ms=1) for number in range(32)]
    slow = [item(number, ms=60_000) for number in range(32, 52)]
    (name,) = work.submit(work.new_job("slow", [*fast, *slow]))
    work.until(lambda: work.job(name).counts.succeeded == 32)
    work.cancel(name)
    (job,) = work.wait(name)
    assert job.state is JobState.CANCELLED
    assert (job.counts.succeeded, job.counts.cancelled) == (32, 20)
    outcomes = work.outcomes(name)
    assert [outcomes[index] for index in range(52)] == [S] * 32 + [C] * 20
    assert set(work.answers(name)) == set(range(32))


def test_a_queued_job_that_is_cancelled_never_runs(start: Start) -> None:
    work = start("slow")
    full = [item(1, ms=60)] * 32
    names = work.submit(work.new_job("slow", full), work.new_job("slow", full))
    work.until(lambda: all(work.job(name).state is JobState.RUNNING for name in names))
    (queued,) = work.submit(work.new_job("slow", [item(2, ms=0)]))
    work.cancel(queued)
    assert work.job(queued).state is JobState.CANCELLED
    assert {job.state for job in work.wait(*names)} == {JobState.SUCCEEDED}
    assert work.outcomes(queued) == {0: C}
    assert work.supervisor.stats("slow", "1").batch_items == 64


def test_a_drain_ends_what_runs_and_the_rest_goes_on_at_the_next_start(start: Start) -> None:
    work = start("slow")
    jobs = [work.new_job("slow", [item(number, ms=20)] * 16) for number in range(12)]
    work.submit(*jobs)
    work.until(lambda: any(work.job(job.id).final for job in jobs))
    pids = work.engines
    work.stop(drain=5.0)
    assert living(pids) == []
    again = start("slow")
    before = again.services.store.jobs_by_id([job.id for job in jobs])
    assert not all(job.final for job in before.values()), "the test is too fast to say anything"
    assert {job.state for job in again.wait(*(job.id for job in jobs))} == {JobState.SUCCEEDED}
    for number, job in enumerate(jobs):
        assert again.answers(job.id) == {index: item(number) for index in range(16)}
        assert {header.attempts for header, _ in again.frames(job.id)} == {1}
    ran = sum(one.supervisor.stats("slow", "1").batch_items for one in (work, again))
    assert ran == 12 * 16, "nothing ran twice"


def test_a_batch_that_outlives_the_drain_is_handed_back_and_charged_nothing(start: Start) -> None:
    work = start("slow")
    (name,) = work.submit(work.new_job("slow", [item(1, ms=3000)]))
    work.until(lambda: work.job(name).state is JobState.RUNNING)
    work.stop(drain=0.2)
    again = start("slow")
    (job,) = again.wait(name)
    assert job.state is JobState.SUCCEEDED
    assert again.frames(name)[0][0].attempts == 1


def test_items_too_large_for_a_row_travel_as_blobs_both_ways(start: Start) -> None:
    work = start("echo")
    large = item(1, "x" * 400_000)
    job = work.run("echo", [large])
    assert work.answers(job.id) == {0: large}
    assert work.frames(job.id)[0][0].blobs


def test_an_undecodable_record_is_kept_and_passed(start: Start) -> None:
    work = start("echo")
    for _ in range(4):  # one to each partition
        work.parts._stream.publish("default", [b"no record of ours"])
    assert work.run("echo", [item(1)]).state is JobState.SUCCEEDED
    store = work.services.store
    work.until(lambda: bad_records(store) == 4)


def bad_records(store: Any) -> int:
    with store.begin() as tx:
        count: int = tx._db.rows("SELECT count(*) FROM bad_records")[0][0]
    return count


def test_a_model_that_cannot_be_loaded_says_why_and_fails_its_items_if_it_wants(start: Start, models: Path) -> None:
    broken = ECHO + "    def load(self, path, parameters):\n        raise RuntimeError('no weights')\n"
    python_model(models, "waits", broken, SAMPLE)
    python_model(models, "fails", broken, SAMPLE + "unavailable: fail\n")
    python_model(models, "fine", ECHO, SAMPLE)
    work = start()
    waiting, failing, fine = work.submit(*(work.new_job(name, [1, 2]) for name in ("waits", "fails", "fine")))
    assert work.wait(fine)[0].state is JobState.SUCCEEDED
    (job,) = work.wait(failing)
    assert job.state is JobState.FAILED
    assert work.errors(failing) == {0: (ErrorCode.ENGINE_ERROR, 0), 1: (ErrorCode.ENGINE_ERROR, 0)}
    assert not work.job(waiting).final
    version = work.services.catalog.find("waits", "1")
    assert version is not None
    assert version.state is VersionState.UNAVAILABLE
    assert "no weights" in str(version.error)
    python_model(models, "waits", ECHO, SAMPLE)
    work.supervisor.reload()
    assert work.wait(waiting)[0].state is JobState.SUCCEEDED, "mended, it goes on"


def test_a_reload_brings_new_versions_and_takes_old_ones_while_jobs_run(start: Start, models: Path) -> None:
    python_model(models, "m", ECHO, SAMPLE)
    python_model(models, "gone", ECHO, SAMPLE)
    work = start()
    answer = "class Handler:\n    def predict(self, inputs, parameters):\n        return ['second'] * len(inputs)\n"
    (models / "m" / "2").mkdir()
    (models / "m" / "2" / "handler.py").write_text(answer)
    gone = work.engine("gone")
    shutil.rmtree(models / "gone")
    states = work.supervisor.reload()
    assert states == {"m@1": "ready", "m@2": "ready"}
    assert work.answers(work.run("m", [7], version="2").id) == {0: "second"}
    assert work.answers(work.run("m", [7], version="1").id) == {0: 7}
    assert work.services.catalog.models()["m"].default_version == "2"
    assert work.services.catalog.find("gone") is None
    work.until(lambda: living([gone]) == [])


def test_a_broken_new_form_leaves_the_old_one_serving(start: Start, models: Path) -> None:
    folder = python_model(models, "m", ECHO, SAMPLE)
    work = start()
    pid = work.engine("m")
    (folder / "1" / "handler.py").write_text("raise RuntimeError('half written')\n")
    states = work.supervisor.reload()
    assert "half written" in states["m@1"]
    assert work.answers(work.run("m", [7]).id) == {0: 7}
    assert work.engine("m") == pid
    (folder / "2").mkdir()
    (folder / "2" / "handler.py").write_text("raise RuntimeError('also broken')\n")
    (folder / "1" / "handler.py").write_text(ECHO)
    states = work.supervisor.reload()
    assert states["m@1"] == "ready"
    assert "also broken" in states["m@2"]
    assert work.services.catalog.models()["m"].default_version == "1", "one that can be used stays the default"


def test_a_changed_handler_takes_over(start: Start, models: Path) -> None:
    folder = python_model(models, "m", ECHO, SAMPLE)
    work = start()
    pid = work.engine("m")
    (folder / "1" / "handler.py").write_text(ECHO.replace("return inputs", "return ['new'] * len(inputs)"))
    assert work.supervisor.reload() == {"m@1": "ready"}
    assert work.answers(work.run("m", [7]).id) == {0: "new"}
    work.until(lambda: living([pid]) == [])


def test_a_worker_whose_lease_has_lapsed_starts_anew_and_the_work_ends(start: Start) -> None:
    work = start("slow")
    (name,) = work.submit(work.new_job("slow", [item(1, ms=500)]))
    work.until(lambda: work.job(name).state is JobState.RUNNING)
    before = work.supervisor.heartbeat.incarnation

    def lapse(tx: Any) -> int:
        tx.remove_worker(before)
        rescued: int = tx.rescue(timedelta(0))
        return rescued

    assert work.services.ledger.post(lapse).result(PATIENCE) == 1
    work.supervisor.heartbeat.beat()
    assert work.supervisor.heartbeat.incarnation != before
    (job,) = work.wait(name)
    assert job.state is JobState.SUCCEEDED
    assert work.frames(name)[0][0].attempts == 1


def test_what_handlers_print_is_in_the_log_and_never_without_bound(
    start: Start, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chatty = (
        "class Handler:\n    def predict(self, inputs, parameters):\n"
        "        for n in range(5000):\n            print('line', n)\n        return inputs\n"
    )
    python_model(models, "chatty", chatty, "sample: [1]\n")
    with caplog.at_level("INFO", logger="batchyard.engine"):
        work = start()
        assert work.run("chatty", [1]).state is JobState.SUCCEEDED
        work.stop()
    lines = [record.message for record in caplog.records if ": line " in record.message]
    assert lines
    assert len(lines) < 2000


def test_the_fleet_tells_of_its_worker(start: Start) -> None:
    work = start("echo")
    (worker,) = work.supervisor.workers()
    assert worker.models == ("echo@1",)
    assert living(worker.engines) == list(worker.engines)
    assert worker.incarnation.startswith("wrk_")
    assert work.supervisor.ready()
    assert work.supervisor.live_workers("echo", "1") == 1
    assert work.supervisor.live_workers("nobody", "1") == 0
    assert [row.incarnation for row in work.services.store.workers()] == [worker.incarnation]
    work.supervisor.stop(timedelta(seconds=1))
    assert work.services.store.workers() == []
    assert not work.supervisor.ready()
