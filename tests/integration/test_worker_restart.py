"""A worker that stops and starts again on the same data, and what the ledger knows of it meanwhile."""

from datetime import timedelta
from pathlib import Path

import pytest

from jobs.states import JobState
from tests.integration.yard import SMALL, Yard, living
from tests.integration.yard_jobs import echoed, slow_job

SECOND = timedelta(seconds=1)


def ledger_is_at_rest(yard: Yard) -> None:
    assert yard.sql("SELECT count(*) FROM chunks WHERE state = 'running'") == [(0,)]
    assert yard.sql("SELECT count(*) FROM workers") == [(0,)]


@pytest.mark.parametrize("drain", [10.0, 0.0], ids=["drained", "at once"])
def test_what_a_stop_leaves_goes_on_at_the_next_start_uncharged(tmp_path: Path, drain: float) -> None:
    with Yard(tmp_path, "slow", changes=SMALL) as yard:
        jobs = [slow_job(40, 20, cut) for cut in (5, 8, 40)]
        yard.submit(*jobs)
        yard.until(lambda: yard.job(jobs[0]).counts.succeeded)
        yard.until_flying("slow")
        before = yard.supervisor
        yard.stop(drain)
        ledger_is_at_rest(yard)
        assert yard.held() == 0
        assert yard.sql("SELECT count(*) FROM chunks WHERE state = 'queued'") != [(0,)], "nothing was left to do"

        yard.start()
        yard.wait(*(job for job in jobs if not yard.job(job).final))
        for job in jobs:
            assert yard.job(job).state is JobState.SUCCEEDED
            assert yard.answers(job) == echoed(list(range(40)))
            assert yard.terminal_events(job) == 1
        assert yard.sql("SELECT count(*) FROM attempts") == [(0,)]
        ran = sum(supervisor.stats("slow", "1").batch_items for supervisor in (before, yard.supervisor))
        if drain:
            assert ran == 120, "what the stop waited for did not run again"
        yard.stop()
        ledger_is_at_rest(yard)


def test_a35_the_same_name_is_another_incarnation_and_a_lapsed_one_drops_what_it_held(tmp_path: Path) -> None:
    with Yard(tmp_path, "slow", changes=SMALL, worker_name="same", publish_lease=SECOND) as yard:
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
        yard.services.ledger.call(lambda tx: tx.remove_worker(second))
        assert yard.services.ledger.call(lambda tx: tx.rescue(timedelta(0))) > 0
        yard.supervisor.heartbeat.beat()
        assert yard.supervisor.heartbeat.incarnation not in (first, second)
        (ended,) = yard.wait(job)
        assert ended.state is JobState.SUCCEEDED
        assert yard.answers(job) == echoed(list(range(40)))
        assert yard.terminal_events(job) == 1
        yard.until_nothing_is_held()


def test_the_fleet_tells_of_its_worker(tmp_path: Path) -> None:
    with Yard(tmp_path, "echo") as yard:
        (worker,) = yard.supervisor.workers()
        assert worker.models == ("echo@1",)
        assert living(worker.engines) == list(worker.engines) != []
        assert worker.incarnation.startswith("wrk_")
        assert yard.supervisor.ready()
        assert yard.supervisor.live_workers("echo", "1") == 1
        assert yard.supervisor.live_workers("nobody", "1") == 0
        assert [row.incarnation for row in yard.store.workers()] == [worker.incarnation]
        yard.supervisor.stop(timedelta(seconds=1))
        assert living(worker.engines) == []
        assert yard.store.workers() == []
        assert not yard.supervisor.ready()
