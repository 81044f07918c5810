"""Items that fail, engine processes that die or hang: what they cost, and that the others are answered."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.states import JobState
from tests.integration.yard import SMALL, Yard, living
from tests.integration.yard_jobs import Answer, echoed, json_job, slow_job

SECOND = timedelta(seconds=1)
MODELS = ("raise_if", "exit_if", "hang_if", "poison", "slow")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard"), *MODELS, changes=SMALL) as made:
        yield made


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


def test_a_child_that_is_killed_with_nothing_to_do_is_there_again_at_once(yard: Yard) -> None:
    yard.until_nothing_is_held()
    pid = yard.engine("raise_if")
    os.kill(pid, signal.SIGKILL)
    job = json_job("raise_if", [1])
    yard.run(job)
    assert yard.answers(job) == echoed([1])
    assert yard.engine("raise_if") != pid


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
    assert living([pid]) == []


def test_two_instances_share_the_work_and_isolate_all_the_same(tmp_path: Path) -> None:
    two = ("batch: {max_size: 32", "instances: 2\nbatch: {max_size: 4")
    with Yard(tmp_path, "slow", "exit_if", changes={"slow": two, "exit_if": two}) as yard:
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
