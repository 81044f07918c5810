"""Jobs that are cancelled or run out of time while a worker has them."""

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from jobs.states import JobState
from tests.integration.yard import SMALL, Yard
from tests.integration.yard_jobs import Answer, echoed, json_job, slow_job


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard"), "slow", changes=SMALL) as made:
        yield made


def test_a_queued_job_that_is_cancelled_never_runs(yard: Yard) -> None:
    yard.until_nothing_is_held()
    before = yard.supervisor.stats("slow", "1").batch_items
    full = [slow_job(5, 300) for _ in range(2)]  # as much as an engine is given at a time
    yard.submit(*full)
    yard.until(lambda: all(yard.job(job).state is JobState.RUNNING for job in full))
    queued = slow_job(1, 0)
    yard.submit(queued)
    yard.cancel(queued)
    assert yard.job(queued).state is JobState.CANCELLED
    after = slow_job(1, 0)  # in the same lane, behind it
    yard.submit(after)
    assert {job.state for job in yard.wait(*full, after)} == {JobState.SUCCEEDED}
    assert yard.answers(queued) == {0: Answer("cancelled")}
    assert yard.supervisor.stats("slow", "1").batch_items - before == 11
    yard.until_nothing_is_held()


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


def test_a_deadline_ends_what_waits_and_what_runs(yard: Yard) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.6)
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
