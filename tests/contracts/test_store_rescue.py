"""Contract of every store: work that comes back, by hand or from the dead, and what runs alone."""

from datetime import timedelta

from msgspec.structs import replace

from jobs.records import ChunkRef, Counts
from tests.contracts import store_kit
from tests.contracts.store_kit import Kit, done, refs_of

kit = store_kit.kit

LEASE = timedelta(seconds=30)


def rescue(kit: Kit, grace: timedelta = timedelta(0)) -> int:
    with kit.store.begin() as tx:
        return tx.rescue(grace)


def test_handed_back_work_is_due_at_once_under_a_new_fence(kit: Kit) -> None:
    job = kit.submitted(2, 2)
    first, second = kit.claimed(job)
    with kit.store.begin() as tx:
        assert tx.hand_back([first, replace(second, fence=9), ChunkRef("job_unknown", 0, 1)]) == 1
    assert kit.job(job).counts == Counts(4, running=2)
    assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 2)]
    with kit.store.begin() as tx:
        assert tx.hand_back([first]) == 0
        assert tx.hand_back([]) == 0
    assert kit.claim(ChunkRef(job.id, 0, 2)) == [3]


def test_a35_same_name_new_incarnation(kit: Kit) -> None:
    """The process dies and is back within a second: the new one lives, yet the old one's work is freed."""
    kit.register("wrk_old", name="gpu-1", lease=LEASE)
    job = kit.submitted(3)
    assert kit.claim(ChunkRef(job.id, 0, 0), worker="wrk_old") == [1]
    kit.clock.advance(1)
    kit.register("wrk_new", name="gpu-1", lease=timedelta(hours=1))
    assert rescue(kit) == 0  # nobody can know yet
    kit.clock.advance(29.5)
    assert rescue(kit) == 1
    assert [worker.incarnation for worker in kit.store.workers()] == ["wrk_1", "wrk_new"]
    assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 2)]
    assert kit.adapter.sql("SELECT lapses FROM chunks") == [(1,)]
    assert kit.claim(ChunkRef(job.id, 0, 2), worker="wrk_new") == [3]
    assert kit.finish(done(ChunkRef(job.id, 0, 1), 3), worker="wrk_old").accepted == (False,)
    assert kit.finish(done(ChunkRef(job.id, 0, 3), 3), worker="wrk_new").accepted == (True,)


def test_the_rescuer_waits_its_grace(kit: Kit) -> None:
    kit.register("wrk_2", lease=LEASE)
    job = kit.submitted(1)
    kit.claim(ChunkRef(job.id, 0, 0), worker="wrk_2")
    kit.clock.advance(60)
    assert rescue(kit, grace=timedelta(seconds=31)) == 0
    assert rescue(kit, grace=timedelta(seconds=29)) == 1
    assert rescue(kit, grace=timedelta(seconds=29)) == 0


def test_a_heartbeat_keeps_work(kit: Kit) -> None:
    kit.register("wrk_2", lease=LEASE)
    job = kit.submitted(1)
    kit.claim(ChunkRef(job.id, 0, 0), worker="wrk_2")
    kit.clock.advance(29)
    with kit.store.begin() as tx:
        assert tx.heartbeat("wrk_2", LEASE)
    kit.clock.advance(29)
    assert rescue(kit) == 0
    kit.clock.advance(2)
    assert rescue(kit) == 1
    with kit.store.begin() as tx:
        assert not tx.heartbeat("wrk_2", LEASE)  # it lapsed: its claims are void


def test_work_of_an_unknown_incarnation_is_freed_at_once(kit: Kit) -> None:
    job = kit.submitted(1)
    kit.claimed(job)
    with kit.store.begin() as tx:
        tx.remove_worker(kit.worker)
    assert rescue(kit, grace=timedelta(hours=1)) == 1


def test_rescue_leaves_the_living_alone(kit: Kit) -> None:
    job = kit.submitted(1)
    (ref,) = kit.claimed(job)
    assert rescue(kit) == 0
    assert kit.finish(done(ref)).accepted == (True,)


def test_rescued_twice_counts_two_lapses(kit: Kit) -> None:
    job = kit.submitted(1)
    for fence in (0, 2):
        kit.register(f"wrk_{fence}", lease=LEASE)
        assert kit.claim(ChunkRef(job.id, 0, fence), worker=f"wrk_{fence}") == [fence + 1]
        kit.clock.advance(31)
        assert rescue(kit) == 1
    assert kit.adapter.sql("SELECT lapses, fence FROM chunks") == [(2, 4)]


def test_alone_is_remembered(kit: Kit) -> None:
    job = kit.submitted(2, 2)
    first, second = kit.claimed(job)
    with kit.store.begin() as tx:
        assert tx.mark_alone([first, replace(second, fence=0), first]) == [True, False, True]
        assert tx.mark_alone([]) == []
        tx.hand_back([first, second])
    assert [(message.seq, message.alone) for message in kit.due()] == [(0, True), (1, False)]


def test_a_done_chunk_cannot_be_marked(kit: Kit) -> None:
    job = kit.submitted(1)
    (ref,) = kit.claimed(job)
    kit.finish(done(ref))
    with kit.store.begin() as tx:
        assert tx.mark_alone([ref]) == [False]
        assert tx.hand_back([ref]) == 0
