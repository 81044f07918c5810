"""The whole worker with real engine children: what is on the edges of the usual way."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.states import JobState, Outcome
from tests.integration.worker_kit import Worker, living
from tests.unit.repositories import python_model

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


def test_a_child_that_is_killed_with_nothing_to_do_is_there_again_at_once(start: Start) -> None:
    work = start("echo")
    pid = work.engine("echo")
    os.kill(pid, signal.SIGKILL)
    assert work.run("echo", [item(1)]).state is JobState.SUCCEEDED
    assert work.engine("echo") != pid


def test_a_version_that_is_gone_ends_and_its_engine_with_it(start: Start, models: Path) -> None:
    python_model(models, "stays", ECHO, SAMPLE)
    python_model(models, "gone", ECHO, SAMPLE)
    work = start()
    gone, stays = work.engine("gone"), work.engine("stays")
    shutil.rmtree(models / "gone")
    assert work.supervisor.reload() == {"stays@1": "ready"}
    assert work.services.catalog.find("gone") is None
    work.until(lambda: living([gone]) == [])
    assert work.answers(work.run("stays", [7]).id) == {0: 7}
    assert work.engine("stays") == stays, "what did not change goes on"


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
