"""Contract of every store: claims and their fences."""

import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from jobs.records import ChunkRef
from jobs.states import JobState
from jobs.store import WorkerRow
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, done

kit = store_kit.kit


def test_a_claim_raises_the_fence_and_starts_the_job(kit: Kit) -> None:
    job = kit.submitted(64, 36)
    kit.clock.advance(2)
    assert kit.claim(ChunkRef(job.id, 1, 0)) == [1]
    read = kit.job(job)
    assert (read.state, read.started_at) == (JobState.RUNNING, START + 2 * SECOND)
    assert (read.counts.running, read.counts.queued) == (36, 64)
    kit.clock.advance(2)
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [1]
    assert kit.job(job).started_at == START + 2 * SECOND


def test_a_chunk_is_claimed_once(kit: Kit) -> None:
    job = kit.submitted(1)
    ref = ChunkRef(job.id, 0, 0)
    assert kit.claim(ref) == [1]
    assert kit.claim(ref) == [None]  # a record that came twice, to the same worker
    assert kit.claim(replace(ref, fence=1)) == [None]
    kit.register("wrk_2")
    assert kit.claim(ref, worker="wrk_2") == [None]


def test_a_chunk_named_twice_in_one_claim_is_given_once(kit: Kit) -> None:
    job = kit.submitted(1)
    ref = ChunkRef(job.id, 0, 0)
    assert kit.claim(ref, ref, ref) == [1, None, None]


def test_refusals_do_not_touch_the_others_of_a_group(kit: Kit) -> None:
    good, taken, late = kit.submitted(1), kit.submitted(1), kit.submitted(1, deadline_at=START)
    kit.claimed(taken)
    refs = [
        ChunkRef(taken.id, 0, 0),
        ChunkRef(good.id, 0, 0),
        ChunkRef("job_unknown", 0, 0),
        ChunkRef(late.id, 0, 0),
        ChunkRef(good.id, 7, 0),
    ]
    assert kit.claim(*refs) == [None, 1, None, None, None]
    assert kit.job(late).state is JobState.QUEUED


def test_a_large_group(kit: Kit) -> None:
    job = kit.submitted(*[1] * 600)
    refs = [ChunkRef(job.id, seq, seq % 2) for seq in range(600)]  # every second one under a wrong fence
    assert kit.claim(*refs) == [1, None] * 300
    assert kit.job(job).counts.running == 300


def test_an_empty_claim(kit: Kit) -> None:
    assert kit.claim() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"not_before": START + SECOND},
        {"queue_deadline_at": START},
        {"deadline_at": START},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_claim_keeps_to_the_clocks(kit: Kit, fields: dict[str, object]) -> None:
    job = kit.submitted(1, **fields)
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [None]
    assert kit.job(job).state is JobState.QUEUED


def test_the_clocks_allow_a_claim_on_the_other_side(kit: Kit) -> None:
    job = kit.submitted(
        1, not_before=START + SECOND, queue_deadline_at=START + 2 * SECOND, deadline_at=START + 3 * SECOND
    )
    kit.clock.advance(1)
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [1]


def test_a_paused_job_is_not_claimed(kit: Kit) -> None:
    job = kit.submitted(1)
    kit.adapter.sql(f"UPDATE jobs SET paused = TRUE WHERE id = '{job.id}'")
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [None]
    assert kit.job(job).paused
    kit.adapter.sql(f"UPDATE jobs SET paused = FALSE WHERE id = '{job.id}'")
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [1]


def test_a_stopped_job_is_not_claimed(kit: Kit) -> None:
    job = kit.submitted(1, 1)
    kit.claimed(job, 0)
    kit.stop(job)
    assert kit.claim(ChunkRef(job.id, 1, 0)) == [None]
    assert kit.claim(ChunkRef(job.id, 1, 1)) == [None]


def test_only_a_live_incarnation_claims(kit: Kit) -> None:
    job = kit.submitted(1)
    ref = ChunkRef(job.id, 0, 0)
    assert kit.claim(ref, worker="wrk_unknown") == [None]
    kit.register("wrk_2", lease=timedelta(seconds=30))
    kit.clock.advance(30)
    assert kit.claim(ref, worker="wrk_2") == [None]
    with kit.store.begin() as tx:
        assert tx.heartbeat("wrk_2", timedelta(seconds=30))
    assert kit.claim(ref, worker="wrk_2") == [1]


def test_a_removed_incarnation_does_not_claim(kit: Kit) -> None:
    job = kit.submitted(1)
    with kit.store.begin() as tx:
        tx.remove_worker(kit.worker)
        assert not tx.heartbeat(kit.worker, timedelta(seconds=30))
    assert kit.claim(ChunkRef(job.id, 0, 0)) == [None]


def test_two_workers_at_once_one_gets_it(kit: Kit) -> None:
    kit.register("wrk_2")
    job = kit.submitted(*[1] * 50)
    won: dict[str, int] = {}
    ready = threading.Barrier(2)

    def claim_each(worker: str) -> None:
        ready.wait(5)
        won[worker] = sum(kit.claim(ChunkRef(job.id, seq, 0), worker=worker) == [1] for seq in range(50))

    threads = [threading.Thread(target=claim_each, args=(worker,)) for worker in ("wrk_1", "wrk_2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won.values()) == 50


def test_workers_are_listed(kit: Kit) -> None:
    kit.clock.advance(1)
    kit.register("wrk_2", name="other", lease=timedelta(seconds=30))
    assert kit.store.workers()[1] == WorkerRow("wrk_2", "other", 4711, START + SECOND, START + 31 * SECOND)
    with kit.store.begin() as tx:
        tx.remove_worker("wrk_1")
    assert [worker.incarnation for worker in kit.store.workers()] == ["wrk_2"]


def test_the_queue_clock_ends_at_the_claim(kit: Kit) -> None:
    job = kit.submitted(1, queue_deadline_at=START + SECOND)
    (ref,) = kit.claimed(job)
    kit.clock.advance(5)
    with kit.store.begin() as tx:
        tx.hand_back([ref])
        assert tx.expire_due(10) == ()
    assert kit.claim(ChunkRef(job.id, 0, 2)) == [3]
    assert kit.finish(done(ChunkRef(job.id, 0, 3))).accepted == (True,)
