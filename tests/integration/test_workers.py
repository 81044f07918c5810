"""The worker's side whole: real ledger, stream, publisher and engine children, no HTTP."""

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from jobs.records import NewChunk
from jobs.states import JobState
from tests.integration.yard import (
    Answer,
    Yard,
    copy_models,
    echoed,
    json_job,
    new_job,
    ragged_job,
    rows_job,
    running,
    slow_job,
)
from tests.models.nets import masked_mean, mlp
from tests.unit.children import json_payload

SECOND = timedelta(seconds=1)
SMALL = {"slow": ("max_size: 32", "max_size: 5")}
ECHO = """
class Handler:
    def predict(self, inputs, parameters):
        return [{"by": NAME, "id": item["id"]} for item in inputs]
"""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    root = tmp_path_factory.mktemp("models")
    copy_models(root, "echo", "mlp", "pad", "raise_if", "exit_if", "hang_if", "poison", "slow", **SMALL)
    with running(tmp_path_factory.mktemp("yard"), root) as made:
        yield made


# -- answers


def test_many_jobs_of_many_sizes_are_each_answered(yard: Yard) -> None:
    jobs = [json_job("echo", [f"{number}-{at}" for at in range(1 + number % 90)]) for number in range(200)]
    ended = yard.run(*jobs)
    assert {job.state for job in ended} == {JobState.SUCCEEDED}
    for number, job in enumerate(jobs):
        assert yard.answers(job) == echoed([f"{number}-{at}" for at in range(1 + number % 90)])
    assert all(yard.finals[job.id] == 1 for job in jobs)
    yard.until_nothing_is_held()
    assert all(yard.terminal_events(job) == 1 for job in jobs[:20])


def test_a21_single_rows_at_once_each_get_their_own_answer(yard: Yard) -> None:
    x = np.random.default_rng(3).standard_normal((1000, 64)).astype(np.float32)
    right = onnxruntime.InferenceSession(mlp(), providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    jobs = [rows_job("mlp", x[at : at + 1], single=True) for at in range(1000)]
    threads = [threading.Thread(target=yard.submit, args=jobs[part::3]) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yard.wait(*jobs)
    for at, job in enumerate(jobs):
        answers = yard.answers(job)
        assert list(answers) == [0]
        assert answers[0].output["y"].shape == (10,)
        np.testing.assert_allclose(answers[0].output["y"], right[at], rtol=1e-4, atol=1e-5)
    stats = yard.supervisor.stats("mlp", "1")
    assert stats.batch_items == 1000
    assert stats.batches < 1000, "nothing was batched"


def test_a23_more_rows_than_a_batch_holds_come_back_in_order(yard: Yard) -> None:
    x = np.random.default_rng(4).standard_normal((200, 64)).astype(np.float32)
    right = onnxruntime.InferenceSession(mlp(), providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    job = rows_job("mlp", x)
    yard.run(job)
    answers = yard.answers(job)
    np.testing.assert_allclose([answers[at].output["y"] for at in range(200)], right, rtol=1e-4, atol=1e-5)


def test_a25_alone_or_together_the_same_answer(yard: Yard) -> None:
    rng = np.random.default_rng(5)
    rows = [rng.standard_normal(length).astype(np.float32) for length in rng.permutation(np.arange(1, 129))]
    together = [ragged_job("pad", rows[at : at + 32]) for at in range(0, 128, 32)]
    yard.run(*together)
    lone = [ragged_job("pad", [row]) for row in rows[::8]]
    for job in lone:  # one after another: nothing to be batched with
        yard.run(job)
    session = onnxruntime.InferenceSession(masked_mean(), providers=["CPUExecutionProvider"])
    got = [yard.answers(job)[at].output for job in together for at in range(32)]
    for row, answer in zip(rows, got, strict=True):
        feeds = {"x": row[np.newaxis], "mask": np.ones((1, len(row)), np.float32)}
        mean, centred = session.run(["y", "centred"], feeds)
        np.testing.assert_allclose(answer["y"], mean[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(answer["centred"], centred[0], rtol=1e-4, atol=1e-5)
    for job, answer in zip(lone, got[::8], strict=True):
        alone = yard.answers(job)[0].output
        np.testing.assert_allclose(alone["y"], answer["y"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone["centred"], answer["centred"], rtol=1e-4, atol=1e-5)
    stats = yard.supervisor.stats("pad", "1")
    assert stats.padded_elements > stats.elements, "nothing was padded"


def test_an_input_in_a_blob_is_fetched_and_one_that_was_changed_fails(yard: Yard) -> None:
    item = {"id": 0, "value": "x" * 300_000}
    good = yard.blobs.put("inputs/good", json_payload([item]))
    bad = yard.blobs.put("inputs/bad", json_payload([item]))
    yard.blobs.put("inputs/bad", json_payload([{"id": 0, "value": "y" * 300_000}]))
    jobs = [
        new_job("echo", [b""], [1], chunks=(NewChunk(0, ((0, 1),), blob, ids=("a",)),), single=True)
        for blob in (good, bad)
    ]
    fine, broken = yard.run(*jobs)
    assert fine.state is JobState.SUCCEEDED
    assert fine.usage.output_bytes > 300_000
    assert broken.state is JobState.FAILED
    assert yard.answers(jobs[1]) == {0: Answer("failed", None, "source_unreadable", 1)}


# -- isolation


def test_only_the_culprits_fail(yard: Yard) -> None:
    """All at once, since most of the time is spent in pauses before another try."""
    raising = json_job("raise_if", [0, 666, 2, 3, 4, 5, 6, 7])
    exiting = json_job("exit_if", [0, 1, 2, 667, 4, 5])
    hanging = json_job("hang_if", [668, 1, 2], run_timeout=SECOND)
    once = json_job("raise_if", [666], max_attempts=1)
    poison = json_job("poison", [0, 666, 667, 3, 668, 669, 6], run_timeout=SECOND)
    neighbours = [json_job(model, list(range(7))) for model in ("raise_if", "exit_if", "poison")]
    jobs = [raising, exiting, hanging, once, poison, *neighbours]
    ended = yard.run(*jobs)

    partially = JobState.PARTIALLY_FAILED
    assert [job.state for job in ended[:5]] == [partially, partially, partially, JobState.FAILED, partially]
    right = echoed([0, 666, 2, 3, 4, 5, 6, 7]) | {1: Answer("failed", None, "handler_error", 3)}
    assert yard.answers(raising) == right
    assert yard.attempts(raising) == [(1, number, "handler_error") for number in (1, 2, 3)]

    assert yard.answers(exiting) == echoed([0, 1, 2, 667, 4, 5]) | {3: Answer("failed", None, "process_died", 2)}
    assert yard.attempts(exiting) == [(3, 1, "process_died"), (3, 2, "process_died")]

    assert yard.answers(hanging) == echoed([668, 1, 2]) | {0: Answer("failed", None, "run_timeout", 2)}
    assert yard.attempts(hanging) == [(0, 1, "run_timeout"), (0, 2, "run_timeout")]

    assert yard.answers(once) == {0: Answer("failed", None, "handler_error", 1)}
    assert yard.answers(poison) == echoed([0, 666, 667, 3, 668, "NaN", 6]) | {
        1: Answer("failed", None, "handler_error", 3),
        2: Answer("failed", None, "process_died", 2),
        4: Answer("failed", None, "run_timeout", 2),
    }
    for job in neighbours:
        assert yard.answers(job) == echoed(list(range(7)))
        assert yard.attempts(job) == []
    assert all(yard.terminal_events(job) == 1 for job in jobs)
    yard.until_nothing_is_held()


def test_a_child_that_is_killed_in_a_batch_loses_nothing(yard: Yard) -> None:
    job = slow_job(30, 20, cut=10)
    yard.submit(job)
    yard.until_flying("slow")
    pid = yard.engine("slow")
    os.kill(pid, signal.SIGKILL)
    (ended,) = yard.wait(job)
    assert ended.state is JobState.SUCCEEDED
    assert yard.answers(job) == echoed(list(range(30)))
    assert yard.attempts(job) == []
    assert yard.engine("slow") != pid


def test_a_child_that_is_stopped_is_cut_at_its_run_limit(yard: Yard) -> None:
    job = slow_job(10, 20, run_timeout=SECOND)
    yard.submit(job)
    yard.until_flying("slow")
    pid = yard.engine("slow")
    os.kill(pid, signal.SIGSTOP)
    (ended,) = yard.wait(job)
    assert ended.state is JobState.SUCCEEDED
    assert yard.answers(job) == echoed(list(range(10)))
    assert yard.attempts(job) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# -- cancelling


def cancelled_half_way(yard: Yard, cut: int) -> None:
    job = slow_job(25, 20, cut, fast=5)
    runner = yard.runner("slow")

    def five_are_decided() -> bool:
        counts = yard.job(job).counts
        undecided = sum(c.decided.undecided for c in runner.holding.chunks() if c.message.job == job.id)
        return counts.succeeded >= 5 or (counts.running == 25 and undecided <= 20)

    yard.submit(job)
    yard.until(five_are_decided)
    before = {at for at, answer in yard.answers(job).items() if answer.state == "succeeded"}
    yard.cancel(job)
    (ended,) = yard.wait(job)
    assert ended.state is JobState.CANCELLED
    counts = ended.counts
    assert counts.succeeded + counts.failed + counts.cancelled == counts.total == 25
    answers = yard.answers(job)
    kept = {at for at, answer in answers.items() if answer.state == "succeeded"}
    assert set(range(5)) | before <= kept
    assert len(kept) == counts.succeeded
    right = echoed(range(25))
    assert {at: answers[at] for at in kept} == {at: right[at] for at in kept}
    assert yard.terminal_events(job) == 1
    assert yard.finals[job.id] == 1


@pytest.mark.parametrize("cut", [5, 25])
def test_a36_what_was_finished_before_a_cancel_is_kept(yard: Yard, cut: int) -> None:
    for _ in range(5):
        cancelled_half_way(yard, cut)
    yard.until_nothing_is_held()


def test_a_cancel_does_not_wait_for_a_batch_that_takes_long(yard: Yard) -> None:
    job = slow_job(1, 4000)
    yard.submit(job)
    yard.until_flying("slow")
    yard.cancel(job)
    (ended,) = yard.wait(job, patience=3.0)
    assert (ended.state, ended.counts.cancelled) == (JobState.CANCELLED, 1)
    assert yard.answers(job) == {0: Answer("cancelled")}
    os.kill(yard.engine("slow"), signal.SIGKILL)  # so that nobody waits for it
    after = json_job("slow", [1])
    (ended,) = yard.run(after)
    assert yard.answers(after) == echoed([1])


# -- stopping and going on


def ledger_is_at_rest(yard: Yard) -> None:
    assert yard.sql("SELECT count(*) FROM chunks WHERE state = 'running'") == [(0,)]
    assert yard.sql("SELECT count(*) FROM workers") == [(0,)]


@pytest.mark.parametrize("drain", [10.0, 0.0], ids=["drained", "at once"])
def test_what_a_stop_leaves_goes_on_at_the_next_start_uncharged(tmp_path: Path, drain: float) -> None:
    yard = Yard(tmp_path / "yard", copy_models(tmp_path / "models", "slow", **SMALL))
    jobs = [slow_job(40, 20, cut) for cut in (5, 8, 40)]
    yard.submit(*jobs)
    yard.until(lambda: yard.job(jobs[0]).counts.succeeded)
    yard.until_flying("slow")
    pid = yard.engine("slow")
    yard.stop(drain)
    ledger_is_at_rest(yard)
    assert yard.held() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert yard.sql("SELECT count(*) FROM chunks WHERE state = 'queued'") != [(0,)], "nothing was left to do"

    yard.start()
    yard.wait(*(job for job in jobs if not yard.job(job).final))
    for job in jobs:
        assert yard.job(job).state is JobState.SUCCEEDED
        assert yard.answers(job) == echoed(list(range(40)))
        assert yard.terminal_events(job) == 1
    assert yard.sql("SELECT count(*) FROM attempts") == [(0,)]
    yard.stop()
    ledger_is_at_rest(yard)


def test_a35_the_same_name_is_another_incarnation_and_a_lapsed_one_drops_what_it_held(tmp_path: Path) -> None:
    yard = Yard(
        tmp_path / "yard", copy_models(tmp_path / "models", "slow", **SMALL), worker_name="same", publish_lease=SECOND
    )
    first = yard.supervisor.heartbeat.incarnation
    yard.stop()
    yard.start()
    second = yard.supervisor.heartbeat.incarnation
    (worker,) = yard.store.workers()
    assert (worker.name, worker.incarnation) == ("same", second)
    assert first != second

    job = slow_job(40, 20, cut=8)
    yard.submit(job)
    yard.until_flying("slow")
    yard.worker.services.ledger.call(lambda tx: tx.remove_worker(second))
    assert yard.worker.services.ledger.call(lambda tx: tx.rescue(timedelta(0))) > 0
    yard.supervisor.heartbeat.beat()
    assert yard.supervisor.heartbeat.incarnation not in (first, second)
    (ended,) = yard.wait(job)
    assert ended.state is JobState.SUCCEEDED
    assert yard.answers(job) == echoed(list(range(40)))
    assert yard.terminal_events(job) == 1
    yard.until_nothing_is_held()
    yard.stop()
