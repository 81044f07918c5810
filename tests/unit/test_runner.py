"""The runner's policy with a scripted engine process: isolation, restarts, stops, draining, lapses."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Unavailable
from jobs.states import ErrorCode, JobState, Outcome
from tests.unit.workbench import Workbench
from workers.held import HeldChunk
from workers.offsets import Origin

S, F, C = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED
Bench = Callable[..., Workbench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made: list[Workbench] = []

    def make(**options: Any) -> Workbench:
        made.append(Workbench(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_items_are_answered_and_the_job_told_of_once(bench: Bench) -> None:
    work = bench().start()
    name = work.submit(*range(20), cut=8)
    (job,) = work.finish(name)
    assert job.state is JobState.SUCCEEDED
    assert work.answers(name) == {index: index for index in range(20)}
    assert sum(final.id == name for ping in work.pings.told for final in ping.finals) == 1
    assert len(work.settled) == 3


def test_single_jobs_share_batches_and_each_gets_its_own_answer(bench: Bench) -> None:
    work = bench().start()
    names = [work.submit(f"value of {number}") for number in range(200)]
    work.finish(*names)
    assert [work.answers(name) for name in names] == [{0: f"value of {number}"} for number in range(200)]
    assert max(len(batch) for batch in work.child.batches) == 8


def test_a_batch_that_raises_runs_one_by_one_and_the_culprit_alone_fails(bench: Bench) -> None:
    work = bench().start()
    name = work.submit(1, 2, "raise", 4)
    (job,) = work.finish(name)
    assert job.state is JobState.PARTIALLY_FAILED
    assert work.outcomes(name) == {0: S, 1: S, 2: F, 3: S}
    header, _ = work.lines(name)[2]
    assert (header.attempts, header.errors[0].code) == (3, ErrorCode.HANDLER_ERROR)
    assert {header.attempts for index, (header, _) in work.lines(name).items() if index != 2} == {1}
    assert work.child.ran[f"{name}/2"] == 1 + 3, "once with its neighbours, then three charged tries alone"
    assert all(work.child.ran[f"{name}/{index}"] == 2 for index in (0, 1, 3))


def test_suspects_are_marked_before_any_of_them_runs_again(bench: Bench) -> None:
    work = bench()
    marked: list[bool] = []
    work.child.before_run = lambda: marked.append(work.alone_in_ledger(name))
    name = work.submit(1, "raise", 3)
    work.start()
    work.feed()
    work.until(lambda: len(marked) == 4)
    assert marked == [False, True, True, True]


@pytest.mark.parametrize(
    ("value", "code", "deaths"), [("die", ErrorCode.PROCESS_DIED, 3), ("hang", ErrorCode.RUN_TIMEOUT, 3)]
)
def test_a_killer_costs_its_neighbours_nothing_and_three_processes_at_most(
    bench: Bench, value: str, code: ErrorCode, deaths: int
) -> None:
    work = bench().start()
    name = work.submit(0, 1, 2, value, 4, 5)
    (job,) = work.finish(name)
    assert job.state is JobState.PARTIALLY_FAILED
    assert work.outcomes(name) == {0: S, 1: S, 2: S, 3: F, 4: S, 5: S}
    header, _ = work.lines(name)[3]
    assert (header.errors[0].code, header.attempts) == (code, 2)
    assert work.child.deaths == deaths
    assert all(header.attempts == 1 for index, (header, _) in work.lines(name).items() if index != 3)


@pytest.mark.parametrize("value", ["die", "hang", "raise", "die_early", "fail", "forget", "permanent"])
def test_nothing_can_spin_however_many_items_are_bad(bench: Bench, value: str) -> None:
    work = bench().start()
    names = [work.submit(*[value] * 5), work.submit(value), work.submit("good", value, max_attempts=1)]
    jobs = work.finish(*names)
    assert [job.state for job in jobs] == [JobState.FAILED, JobState.FAILED, JobState.PARTIALLY_FAILED]
    items = 8
    assert sum(work.child.ran.values()) <= items * (1 + 3)
    assert work.child.deaths <= (2 * items if value != "die_early" else 4 * items) + 4


def test_a_call_of_one_item_that_raises_is_charged_at_once(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("raise")
    work.finish(name)
    assert work.child.ran[f"{name}/0"] == 3
    assert work.lines(name)[0][0].attempts == 3


def test_a_permanent_failure_is_not_tried_again_and_its_batch_goes_on(bench: Bench) -> None:
    work = bench().start()
    name = work.submit(1, "permanent", 3)
    work.finish(name)
    assert work.outcomes(name) == {0: S, 1: F, 2: S}
    assert len(work.child.batches) == 1


def test_an_item_left_out_of_an_answer_is_not_left_open(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("forget", max_attempts=1)
    work.finish(name)
    assert work.lines(name)[0][0].errors[0].code == ErrorCode.ENGINE_ERROR


def test_what_was_queued_behind_a_dying_batch_goes_back_uncharged(bench: Bench) -> None:
    work = bench(max_size=1).start()
    first = work.submit("die_late")
    work.feed()
    assert work.child.blocked.wait(5)
    second = work.submit("innocent")
    work.feed()
    work.until(lambda: not work.child._inbox.empty())
    work.child.go.set()
    work.finish(first, second)
    assert work.lines(second)[0][0].attempts == 1
    assert work.outcomes(second) == {0: S}
    assert work.child.ran[f"{second}/0"] == 1
    assert work.lines(first)[0][0].attempts == 2


def test_a_batch_that_could_not_report_a_stage_goes_back_once_uncharged(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("die_early", max_attempts=2)
    work.finish(name)
    assert work.child.deaths == 2 * (1 + 1), "each of the two charged tries once again, uncharged"


def test_while_one_batch_runs_the_next_is_in_the_process_and_no_more(bench: Bench) -> None:
    work = bench(max_size=2).start()
    names = [work.submit("block")]
    work.feed()
    assert work.child.blocked.wait(5)
    names += [work.submit(number) for number in range(8)]
    work.feed()
    work.until(lambda: len(work.runner.instances[0]._flights) == 2)
    claimed = [held for held in work.runner.holding.chunks() if held.fence is not None]
    assert len(claimed) == 1 + 2, "what is in no batch is not claimed"
    work.child.go.set()
    work.finish(*names)


def test_cancelling_keeps_what_is_done_and_starts_nothing_more(bench: Bench) -> None:
    work = bench(max_size=2).start()
    name = work.submit(0, 1, "block", 3, 4, 5, 6, 7, cut=8)
    work.feed()
    assert work.child.blocked.wait(5)
    stopped = work.ledger.call(lambda tx: tx.stop("acme", name, JobState.CANCELLED, None, False))
    assert stopped is not None
    work.completer.post(lambda: work.runner.decider.stop_jobs(frozenset({name}), patience=60.0))
    assert work.completer.wait_idle(5)
    work.child.go.set()
    work.until(lambda: work.job(name).final)
    job = work.job(name)
    assert job.state is JobState.CANCELLED
    outcomes = work.outcomes(name)
    assert outcomes[0] is S
    assert outcomes[2] is S, "it was running, and ended in time"
    assert outcomes[7] is C
    assert job.counts.succeeded + job.counts.cancelled == 8
    assert sum(work.child.ran.values()) == job.counts.succeeded


def test_a_batch_that_does_not_end_is_given_up_before_the_ledger_forces_it(bench: Bench) -> None:
    work = bench(max_size=2).start()
    name = work.submit(0, 1, "block", 3, cut=4)
    work.feed()
    assert work.child.blocked.wait(5)
    work.ledger.call(lambda tx: tx.stop("acme", name, JobState.CANCELLED, None, False))
    work.completer.post(lambda: work.runner.decider.stop_jobs(frozenset({name}), patience=0.05))
    work.until(lambda: work.job(name).final)
    assert work.outcomes(name) == {0: S, 1: S, 2: C, 3: C}, "what was answered is kept"
    work.child.go.set()
    other = work.submit("after")
    work.finish(other)
    assert work.outcomes(name) == {0: S, 1: S, 2: C, 3: C}, "what came late changes nothing"
    assert work.completer.zombie_finishes == 0


def test_a_retry_of_a_cancelled_job_does_not_run(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("fail", "block")
    work.feed()
    assert work.child.blocked.wait(5)
    work.ledger.call(lambda tx: tx.stop("acme", name, JobState.CANCELLED, None, False))
    work.completer.post(lambda: work.runner.decider.stop_jobs(frozenset({name}), patience=60.0))
    work.child.go.set()
    work.until(lambda: work.job(name).final)
    assert work.outcomes(name) == {0: C, 1: S}
    assert work.child.ran[f"{name}/0"] == 1


def test_draining_ends_what_runs_and_hands_back_the_rest(bench: Bench) -> None:
    work = bench(max_size=2).start()
    name = work.submit("block", 1, 2, 3, 4, 5, cut=6)
    work.feed()
    assert work.child.blocked.wait(5)
    other = work.submit("later")
    work.feed()
    work.runner.drain()
    work.child.go.set()
    work.until(lambda: not work.runner.busy)
    work.completer.post(work.runner.decider.give_back)
    assert work.completer.wait_idle(5)
    ran = work.child.ran.total()
    assert 2 <= ran <= 4, "the batch that ran, and the one behind it"
    assert work.job(name).counts.succeeded == ran
    assert len(work.settled) == 2
    due = work.take()
    left = sum(message.count for message in due if message.job == name)
    assert left == 6 - ran, "the rest is due at once, uncharged"
    assert {message.attempts for message in due} <= {0}
    assert work.job(other).state is JobState.QUEUED


def test_a_batch_still_running_when_patience_ends_is_handed_back_uncharged(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("block", 1)
    work.feed()
    assert work.child.blocked.wait(5)
    work.runner.drain()
    work.completer.post(work.runner.decider.give_back)
    assert work.completer.wait_idle(5)
    (message,) = work.take()
    assert (message.job, message.attempts, message.count) == (name, 0, 2)
    work.child.go.set()
    work.until(lambda: not work.runner.busy)
    assert work.completer.wait_idle(5)
    assert work.job(name).counts.succeeded == 0, "what came late changes nothing"


def test_a_lapse_drops_everything_and_the_work_runs_under_the_next_incarnation(bench: Bench) -> None:
    work = bench().start()
    name = work.submit("block", 1)
    work.feed()
    assert work.child.blocked.wait(5)
    with work.store.begin() as tx:
        tx.remove_worker(work.incarnation)
        assert tx.rescue(timedelta(0)) == 1
    work.completer.post(work.runner.decider.drop_everything)
    assert work.completer.wait_idle(5)
    work.incarnation = "wrk_next"
    work.register("wrk_next")
    work.child.go.set()
    (job,) = work.finish(name)
    assert job.state is JobState.SUCCEEDED
    assert work.lines(name)[0][0].attempts == 1


def test_a_chunk_that_is_fetched_twice_runs_once(bench: Bench) -> None:
    work = bench()
    name = work.submit(1, 2)
    due = work.ledger.call(lambda tx: tx.take_due(10, timedelta(0)))
    again = work.ledger.call(lambda tx: tx.take_due(10, timedelta(0)))
    assert due == again
    first = [HeldChunk(message, Origin(0, 0, 1)) for message in due]
    second = [HeldChunk(message, Origin(0, 1, 1)) for message in again]
    assert work.runner.holding.take(first) == []
    assert work.runner.holding.take(second) == second
    work.start()
    work.until(lambda: work.job(name).final)
    late = [HeldChunk(message, Origin(0, 2, 1)) for message in again]
    work.runner.holding.take(late)
    work.until(lambda: late[0] in work.settled)
    assert len(work.child.batches) == 1


def test_a_version_that_cannot_be_loaded_lets_jobs_wait(bench: Bench) -> None:
    work = bench()
    work.child.fail_loads = ["no such file"]
    name = work.submit(1)
    work.start()
    work.feed()
    work.until(lambda: work.runner.outcome.is_set())
    assert work.runner.version.error == "no such file"
    assert work.job(name).state is JobState.QUEUED
    work.child._load()
    work.finish(name)
    assert work.runner.version.error is None


def test_a_version_that_says_so_fails_what_waits_for_it(bench: Bench) -> None:
    work = bench(unavailable="fail")
    work.child.fail_loads = ["no such file"]
    name = work.submit(1, 2)
    work.feed()
    work.start()
    work.until(lambda: work.job(name).final)
    header, _ = work.lines(name)[0]
    assert (header.errors[0].code, header.attempts) == (ErrorCode.ENGINE_ERROR, 0)
    assert "no such file" in header.errors[0].message


def test_an_unclaimed_chunk_past_its_queue_deadline_is_let_go(bench: Bench) -> None:
    work = bench()
    name = work.submit(1, queue_deadline_at=work.clock() + timedelta(seconds=5))
    work.feed()
    work.clock.advance(6.0)
    work.start()
    work.until(lambda: len(work.settled) == 1)
    assert work.child.batches == []
    work.ledger.call(lambda tx: tx.expire_due(10))
    assert work.job(name).state is JobState.EXPIRED


def test_a_ledger_that_cannot_write_costs_no_answer(bench: Bench) -> None:
    work = bench().start()
    call, refusals = work.ledger.call, iter([True] * 3)

    def failing(change: Any) -> Any:
        if threading.current_thread().name == "completer" and next(refusals, False):
            raise Unavailable("the disk is full")
        return call(change)

    work.ledger.call = failing  # type: ignore[method-assign]
    name = work.submit(1, 2)
    (job,) = work.finish(name)
    assert job.state is JobState.SUCCEEDED
    assert work.child.ran.total() == 2


def test_two_instances_share_a_chunk_and_its_one_claim(bench: Bench) -> None:
    work = bench(max_size=2, instances=2).start()
    names = [work.submit(*range(8), cut=8) for _ in range(20)]
    jobs = work.finish(*names)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert all(child.batches for child in work.children)
    assert sum(child.ran.total() for child in work.children) == 160
