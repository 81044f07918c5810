"""Contract of every store: cancel, deadlines and queue timeouts; no item is lost, none counted twice."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from jobs.records import ChunkRef, Counts, Finish, Job, NewChunk
from jobs.states import JobState, Outcome
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, done, new_job, payload

kit = store_kit.kit


def force(kit: Kit, grace: float = 5) -> tuple[Job, ...]:
    with kit.store.begin() as tx:
        return tx.force_stopped(timedelta(seconds=grace))


def expire(kit: Kit, limit: int = 100) -> tuple[Job, ...]:
    with kit.store.begin() as tx:
        return tx.expire_due(limit)


class TestCancel:
    def test_of_a_queued_job_ends_it(self, kit: Kit) -> None:
        job = kit.submitted(3, 2)
        stopped = kit.stop(job)
        assert (stopped.changed, stopped.running) == (True, ())
        assert stopped.job == kit.job(job)
        assert (stopped.job.state, stopped.job.counts) == (JobState.CANCELLED, Counts(5, cancelled=5))
        assert stopped.job.finished_at == START
        assert kit.events(job) == ["job.cancelled"]
        assert kit.due() == []

    def test_a36_keeps_finished_answers_and_counts_every_item_once(self, kit: Kit) -> None:
        job = kit.submitted(5, 5, 5, 5, 5)
        first, second, third = kit.claimed(job, 0, 1, 2)
        kit.finish(done(first, 5, results=b"kept"))
        stopped = kit.stop(job)
        assert stopped.job.counts == Counts(25, succeeded=5, cancelled=10, running=10)
        assert stopped.job.state is JobState.RUNNING
        assert stopped.job.stop_as is JobState.CANCELLED
        assert stopped.running == (second, third)
        assert kit.finish(done(second, 5)).accepted == (True,)
        half = Finish(third, bytes([Outcome.SUCCEEDED] * 2 + [Outcome.CANCELLED] * 3), b"half")
        (ended,) = kit.finish(half).jobs
        assert (ended.state, ended.counts) == (JobState.CANCELLED, Counts(25, succeeded=12, cancelled=13))
        assert [chunk.results for chunk in kit.store.results(job.id, 0, 25)] == [b"kept", None, b"half", None, None]

    def test_that_ends_no_item_leaves_a_succeeded_job(self, kit: Kit) -> None:
        job = kit.submitted(2)
        (ref,) = kit.claimed(job)
        kit.stop(job)
        assert kit.finish(done(ref, 2)).jobs[0].state is JobState.SUCCEEDED

    def test_forced_ends_running_chunks_and_refuses_their_writes(self, kit: Kit) -> None:
        job = kit.submitted(2, 2)
        (ref,) = kit.claimed(job, 0)
        stopped = kit.stop(job, force=True)
        assert stopped.running == ()
        assert (stopped.job.state, stopped.job.counts) == (JobState.CANCELLED, Counts(4, cancelled=4))
        assert kit.finish(done(ref, 2)).accepted == (False,)
        assert kit.finish(done(replace(ref, fence=2), 2)).accepted == (False,)
        assert kit.job(job) == stopped.job

    def test_is_forced_after_its_grace(self, kit: Kit) -> None:
        job, other = kit.submitted(2), kit.submitted(1)
        (ref,) = kit.claimed(job)
        kit.claimed(other)
        kit.stop(job)
        kit.clock.advance(5)
        assert force(kit) == ()
        kit.clock.advance(1)
        (ended,) = force(kit)
        assert (ended.id, ended.state, ended.counts) == (job.id, JobState.CANCELLED, Counts(2, cancelled=2))
        assert force(kit) == ()
        assert kit.finish(done(ref, 2)).accepted == (False,)
        assert kit.job(other).counts.running == 1

    def test_of_a_final_job_changes_nothing(self, kit: Kit) -> None:
        job = kit.submitted(1)
        kit.finish(done(*kit.claimed(job)))
        before = kit.job(job)
        stopped = kit.stop(job)
        assert (stopped.changed, stopped.job) == (False, before)
        assert kit.job(job) == before

    def test_of_another_tenants_job_finds_none(self, kit: Kit) -> None:
        job = kit.submitted(1)
        with kit.store.begin() as tx:
            assert tx.stop("globex", job.id, JobState.CANCELLED, None, False) is None
            assert tx.stop("acme", "job_unknown", JobState.CANCELLED, None, False) is None
            assert kit.job(job).stop_as is None
            assert tx.stop(None, job.id, JobState.CANCELLED, None, False) is not None

    def test_twice_keeps_the_first(self, kit: Kit) -> None:
        job = kit.submitted(1)
        (ref,) = kit.claimed(job)
        kit.stop(job)
        stopped = kit.stop(job, JobState.EXPIRED, force=True)
        assert stopped.changed
        assert (stopped.job.state, stopped.job.counts) == (JobState.CANCELLED, Counts(1, cancelled=1))
        assert kit.finish(done(ref)).accepted == (False,)

    def test_of_work_that_comes_back_ends_it(self, kit: Kit) -> None:
        job = kit.submitted(1, 1)
        first, second = kit.claimed(job)
        kit.stop(job)
        with kit.store.begin() as tx:
            assert tx.hand_back([first]) == 1
        assert kit.job(job).counts == Counts(2, cancelled=1, running=1)
        with kit.store.begin() as tx:
            tx.remove_worker(kit.worker)
            assert tx.rescue(timedelta(0)) == 1
        assert kit.job(job).state is JobState.CANCELLED
        assert kit.finish(done(second)).accepted == (False,)
        assert kit.events(job) == ["job.cancelled"]

    def test_ids_of_ended_items_can_be_read(self, kit: Kit) -> None:
        items = ((0, 2),)
        job = new_job(
            chunks=(NewChunk(0, items, payload(items, ("a", "b"))), NewChunk(1, ((2, 3),), payload(((2, 3),))))
        )
        kit.submit(job)
        kit.stop(job)
        first, second = kit.store.results(job.id, 0, 3)
        assert (first.ids, first.results, first.reason) == (("a", "b"), None, None)
        assert second.ids is None


class TestDeadline:
    def test_ends_everything_at_once(self, kit: Kit) -> None:
        job = kit.submitted(2, 2, 2, deadline_at=START + 10 * SECOND)
        first, second = kit.claimed(job, 0, 1)
        kit.finish(done(first, 2, results=b"paid for"))
        kit.clock.advance(9.999)
        assert expire(kit) == ()
        kit.clock.advance(0.001)
        (ended,) = expire(kit)
        assert ended == kit.job(job)
        assert (ended.state, ended.counts) == (JobState.EXPIRED, Counts(6, succeeded=2, expired=4))
        assert kit.finish(done(second, 2)).accepted == (False,)
        assert expire(kit) == ()
        read = kit.store.results(job.id, 0, 6)
        assert [(chunk.results, chunk.reason) for chunk in read] == [
            (b"paid for", None),
            (None, "deadline_exceeded"),
            (None, "deadline_exceeded"),
        ]

    def test_of_a_job_being_cancelled_ends_it_as_cancelled(self, kit: Kit) -> None:
        job = kit.submitted(1, deadline_at=START + SECOND)
        kit.claimed(job)
        kit.stop(job)
        kit.clock.advance(1)
        (ended,) = expire(kit)
        assert ended.state is JobState.CANCELLED

    def test_many_are_ended_a_part_at_a_time(self, kit: Kit) -> None:
        jobs = [kit.submitted(1, deadline_at=START) for _ in range(5)]
        assert [len(expire(kit, limit=2)) for _ in range(4)] == [2, 2, 1, 0]
        assert all(kit.job(job).state is JobState.EXPIRED for job in jobs)


class TestQueueTimeout:
    def test_ends_only_what_still_waits(self, kit: Kit) -> None:
        job = kit.submitted(2, 3, queue_deadline_at=START + 600 * SECOND)
        (ref,) = kit.claimed(job, 0)
        kit.clock.advance(600)
        (changed,) = expire(kit)
        assert (changed.state, changed.counts) == (JobState.RUNNING, Counts(5, expired=3, running=2))
        assert changed == kit.job(job)
        assert kit.claim(ChunkRef(job.id, 1, 0), ChunkRef(job.id, 1, 1)) == [None, None]
        (ended,) = kit.finish(done(ref, 2)).jobs
        assert ended.state is JobState.PARTIALLY_FAILED
        assert kit.store.results(job.id, 2, 1)[0].reason == "queue_timeout"

    def test_of_all_items_expires_the_job(self, kit: Kit) -> None:
        jobs = [kit.submitted(2, queue_deadline_at=START) for _ in range(3)]
        assert {job.state for job in expire(kit)} == {JobState.EXPIRED}
        assert all(kit.events(job) == ["job.expired"] for job in jobs)

    def test_and_deadline_at_once_report_a_job_once(self, kit: Kit) -> None:
        job = kit.submitted(1, 1, queue_deadline_at=START, deadline_at=START + SECOND)
        kit.clock.advance(1)
        (ended,) = expire(kit)
        assert (ended.id, ended.counts) == (job.id, Counts(2, expired=2))
        assert kit.events(job) == ["job.expired"]


@pytest.mark.parametrize("stop_as", [JobState.CANCELLED, JobState.EXPIRED])
def test_what_a_stop_ends_is_never_published(kit: Kit, stop_as: JobState) -> None:
    job = kit.submitted(1, 1, publish_now=False)
    kit.claimed(job, 0)
    kit.stop(job, stop_as)
    assert kit.due() == []
    with kit.store.begin() as tx:
        assert tx.republish_all() == 0
