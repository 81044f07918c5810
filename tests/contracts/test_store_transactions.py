"""Contract of every store: transactions are whole, savepoints inside them too."""

import pytest

from jobs.errors import StoreError
from jobs.records import ChunkRef
from jobs.states import JobState
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, new_job

kit = store_kit.kit


class Boom(Exception):
    pass


def test_an_exception_undoes_all_of_it(kit: Kit) -> None:
    job = kit.submitted(1)
    with pytest.raises(Boom), kit.store.begin() as tx:  # noqa: PT012
        tx.submit([new_job(1)])
        tx.stop(None, job.id, JobState.CANCELLED, None, False)
        raise Boom
    assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(1,)]
    assert kit.job(job).state is JobState.QUEUED
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [1]


def test_a_savepoint_undoes_its_own_part(kit: Kit) -> None:
    first, lost, last = new_job(1), new_job(1), new_job(1)
    with kit.store.begin() as tx:
        tx.submit([first])
        with pytest.raises(Boom), tx.savepoint():  # noqa: PT012
            tx.submit([lost])
            raise Boom
        with tx.savepoint():
            tx.submit([last])
    assert set(kit.store.jobs_by_id([first.id, lost.id, last.id])) == {first.id, last.id}


def test_savepoints_nest(kit: Kit) -> None:
    outer, inner, after = new_job(1), new_job(1), new_job(1)
    with kit.store.begin() as tx, tx.savepoint():
        tx.submit([outer])
        with pytest.raises(Boom), tx.savepoint():  # noqa: PT012
            tx.submit([inner])
            raise Boom
        tx.submit([after])
    assert set(kit.store.jobs_by_id([outer.id, inner.id, after.id])) == {outer.id, after.id}


def test_a_store_error_inside_a_savepoint_leaves_the_rest(kit: Kit) -> None:
    good = new_job(1)
    with kit.store.begin() as tx:
        with pytest.raises(StoreError), tx.savepoint():
            tx.submit([new_job(1, tenant="nobody")])
        tx.submit([good])
    assert kit.job(good).state is JobState.QUEUED


def test_the_clock_is_the_stores(kit: Kit) -> None:
    assert kit.store.now() == START
    kit.clock.advance(1)
    assert kit.store.now() == START + SECOND


def test_what_was_committed_is_there_after_a_restart(kit: Kit) -> None:
    job = kit.submitted(2)
    (ref,) = kit.claimed(job)
    before = kit.job(job)
    kit.reopen()
    assert kit.job(job) == before
    with kit.store.begin() as tx:
        assert tx.hand_back([ref]) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET succeeded = 3",  # beyond the total
        "UPDATE jobs SET failed = -1",
        "UPDATE jobs SET succeeded = 2",  # complete, yet not final
        "UPDATE jobs SET state = 'succeeded'",  # final, yet not complete
        "UPDATE jobs SET state = 'done'",
        "UPDATE jobs SET stop_as = 'cancelled'",
        "UPDATE chunks SET state = 'running'",  # by nobody
        "UPDATE chunks SET state = 'done'",  # without outcomes
        "UPDATE chunks SET outcomes = 'aa'",
        "UPDATE chunks SET fence = -1",
        "UPDATE payloads SET data = NULL",
    ],
)
def test_constraints_hold_against_any_writer(kit: Kit, change: str) -> None:
    kit.submitted(2)
    with pytest.raises(Exception, match=r"(?i)constraint"):
        kit.adapter.sql(change)
