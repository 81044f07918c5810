"""Contract of every store: what the relay takes."""

from datetime import timedelta

from jobs.records import ChunkRef
from tests.contracts import store_kit
from tests.contracts.store_kit import LEASE, SECOND, START, Kit, done, refs_of

kit = store_kit.kit


def test_a_lease_keeps_others_off_until_it_ends(kit: Kit) -> None:
    job = kit.submitted(1, publish_now=False)
    assert refs_of(kit.due(lease=timedelta(seconds=30))) == [ChunkRef(job.id, 0, 0)]
    kit.clock.advance(29)
    assert kit.due() == []
    kit.clock.advance(1)
    assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 0)]


def test_oldest_first_across_tenants_and_models(kit: Kit) -> None:
    jobs = []
    for number in range(6):
        fields = {"tenant": ("acme", "globex")[number % 2], "model": ("a", "b", "c")[number % 3]}
        jobs.append(kit.submitted(1, publish_now=False, **fields))
        kit.clock.advance(1)
    assert [message.job for message in kit.due(limit=4)] == [job.id for job in jobs[:4]]
    assert [message.job for message in kit.due(limit=4)] == [job.id for job in jobs[4:]]


def test_chunks_of_a_job_in_order(kit: Kit) -> None:
    job = kit.submitted(*[1] * 20, publish_now=False)
    assert refs_of(kit.due()) == [ChunkRef(job.id, seq, 0) for seq in range(20)]


def test_full_windows_are_skipped_and_stay_due(kit: Kit) -> None:
    a = kit.submitted(1, model="a", publish_now=False)
    b = kit.submitted(1, model="b", publish_now=False)
    other = kit.submitted(1, model="a", tenant="globex", publish_now=False)
    taken = kit.due(skip={("acme", "a")})
    assert {message.job for message in taken} == {b.id, other.id}
    assert refs_of(kit.due(skip=[("acme", "b")])) == [ChunkRef(a.id, 0, 0)]


def test_claimed_done_and_paused_chunks_are_not_due(kit: Kit) -> None:
    claimed, ended, paused = (kit.submitted(1, publish_now=False) for _ in range(3))
    kit.claimed(claimed)
    kit.finish(done(*kit.claimed(ended)))
    kit.adapter.sql(f"UPDATE jobs SET paused = TRUE WHERE id = '{paused.id}'")
    assert kit.due() == []
    kit.adapter.sql("UPDATE jobs SET paused = FALSE")
    assert [message.job for message in kit.due()] == [paused.id]


def test_everything_can_be_published_again(kit: Kit) -> None:
    job = kit.submitted(1, 1, 1)
    later = kit.submitted(1, not_before=START + 60 * SECOND)
    kit.claimed(job, 1)
    with kit.store.begin() as tx:
        assert tx.republish_all() == 3
    assert refs_of(kit.due(lease=LEASE)) == [ChunkRef(job.id, 0, 0), ChunkRef(job.id, 2, 0)]
    kit.clock.advance(60)
    assert ChunkRef(later.id, 0, 0) in refs_of(kit.due())


def test_nothing_is_due_in_an_empty_store(kit: Kit) -> None:
    assert kit.due() == []


def test_what_was_fetched_and_is_released_is_due_at_once(kit: Kit) -> None:
    job, claimed, moved = kit.submitted(1), kit.submitted(1), kit.submitted(1)
    kit.claimed(claimed)
    assert kit.due() == []
    with kit.store.begin() as tx:
        assert tx.release([ChunkRef(job.id, 0, 0), ChunkRef(claimed.id, 0, 0), ChunkRef(moved.id, 0, 7)]) == 1
    assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 0)]
    with kit.store.begin() as tx:
        assert tx.release([]) == 0
