"""Contract of every store: submission."""

import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from jobs.errors import IdempotencyMismatch, StoreError
from jobs.records import BlobRef, ChunkMessage, ChunkRef, Counts, NewChunk, Submitted, Usage
from jobs.states import JobState, Priority
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, new_job, payload, refs_of

kit = store_kit.kit


def test_a_job_reads_as_it_was_submitted(kit: Kit) -> None:
    job = new_job(
        64,
        36,
        priority=Priority.HIGH,
        metadata={"team": "search", "ü": 'a"b\u0000'},
        deadline_at=START + 60 * SECOND,
        not_before=START + SECOND,
        input_bytes=81234,
    )
    (answer,) = kit.submit(job)
    assert not answer.replayed
    read = kit.job(job)
    assert read == answer.job
    assert (read.id, read.tenant, read.kind, read.model, read.version) == (job.id, "acme", "inline", "echo", "1")
    assert (read.state, read.priority) == (JobState.QUEUED, Priority.HIGH)
    assert read.counts == Counts(100)
    assert read.counts.queued == 100
    assert (read.sealed, read.paused, read.single) == (True, False, False)
    assert (read.created_at, read.deadline_at, read.not_before) == (START, job.deadline_at, job.not_before)
    assert (read.started_at, read.finished_at, read.results_expire_at, read.error) == (None, None, None, None)
    assert read.metadata == job.metadata
    assert read.usage == Usage(input_bytes=81234)


def test_a_chunk_comes_out_as_it_went_in(kit: Kit) -> None:
    job = kit.submitted(
        64,
        queue_deadline_at=START + 600 * SECOND,
        deadline_at=START + 3600 * SECOND,
        traceparent="00-ab-cd-01",
        publish_now=False,
    )
    assert kit.due() == [
        ChunkMessage(
            job=job.id,
            seq=0,
            fence=0,
            tenant="acme",
            model="echo",
            version="1",
            priority=Priority.NORMAL,
            count=64,
            alone=False,
            attempts=0,
            max_attempts=3,
            run_timeout=timedelta(seconds=30),
            created_at=START,
            queue_deadline_at=START + 600 * SECOND,
            deadline_at=START + 3600 * SECOND,
            traceparent="00-ab-cd-01",
            payload=payload(((0, 64),)),
        )
    ]


def test_a_payload_may_lie_in_a_blob(kit: Kit) -> None:
    blob = BlobRef("in/1", 10_000_000, "ab" * 32)
    job = new_job(chunks=(NewChunk(0, ((0, 1),), blob, ids=("big",)),), publish_now=False)
    kit.submit(job)
    assert kit.due()[0].payload == blob


def test_all_byte_values_survive(kit: Kit) -> None:
    data = bytes(range(256)) * 3
    kit.submit(new_job(chunks=(NewChunk(0, ((0, 1),), data),), publish_now=False))
    assert kit.due()[0].payload == data


@pytest.mark.parametrize("size", [1, 2, 3, 64, 255, 256, 257, 600])
def test_groups_of_any_size(kit: Kit, size: int) -> None:
    jobs = [new_job(2, 1, publish_now=False) for _ in range(size)]
    answers = kit.submit(*jobs)
    assert [answer.job.id for answer in answers] == [job.id for job in jobs]
    assert len(kit.due(limit=10_000)) == 2 * size
    assert kit.store.jobs_by_id([job.id for job in jobs]) == {a.job.id: a.job for a in answers}


def test_an_empty_group(kit: Kit) -> None:
    assert kit.submit() == []


def test_a08_a_job_without_items_has_succeeded(kit: Kit) -> None:
    job = kit.submitted(results_kept=timedelta(days=7))
    read = kit.job(job)
    assert (read.state, read.counts, read.finished_at) == (JobState.SUCCEEDED, Counts(0), START)
    assert read.results_expire_at == START + timedelta(days=7)
    assert kit.events(job) == ["job.succeeded"]


class TestIdempotency:
    def keyed(self, key: str = "k", body: bytes = b"1", **fields: object) -> store_kit.NewJob:
        return new_job(1, idempotency_key=key, fingerprint=body, **fields)

    def test_twins_in_one_group_are_one_job(self, kit: Kit) -> None:
        twins = [self.keyed(), self.keyed(), self.keyed("other"), self.keyed()]
        answers = kit.submit(*twins)
        assert [answer.job.id for answer in answers] == [twins[0].id, twins[0].id, twins[2].id, twins[0].id]
        assert [answer.replayed for answer in answers] == [False, True, False, True]
        assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(2,)]

    def test_a_replay_gives_the_first_job_as_it_is_now(self, kit: Kit) -> None:
        first, again = self.keyed(), self.keyed()
        kit.submit(first)
        kit.claimed(first)
        (answer,) = kit.submit(again)
        assert answer.replayed
        assert answer.job == kit.job(first)
        assert answer.job.state is JobState.RUNNING
        assert answer.job.counts.running == 1
        assert kit.store.job("acme", again.id) is None

    def test_another_body_is_refused_in_the_group_and_later(self, kit: Kit) -> None:
        with kit.store.begin() as tx:
            answers = tx.submit([self.keyed(), self.keyed(body=b"2")])
        assert isinstance(answers[1], IdempotencyMismatch)
        with kit.store.begin() as tx:
            answers = tx.submit([self.keyed(body=b"3"), self.keyed("fresh")])
        assert isinstance(answers[0], IdempotencyMismatch)
        assert isinstance(answers[1], Submitted)
        assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(2,)]

    def test_another_tenants_key_is_unrelated(self, kit: Kit) -> None:
        kit.submit(self.keyed())
        (answer,) = kit.submit(self.keyed(body=b"2", tenant="globex"))
        assert not answer.replayed

    def test_the_job_of_a_key(self, kit: Kit) -> None:
        job = self.keyed()
        kit.submit(job)
        assert kit.store.job_of_key("acme", "k") == kit.job(job)
        assert kit.store.job_of_key("globex", "k") is None
        assert kit.store.job_of_key("acme", "l") is None

    def test_many_at_once_make_one_row(self, kit: Kit) -> None:
        ids: list[str] = []

        def post() -> None:
            ids.append(kit.submit(self.keyed())[0].job.id)

        threads = [threading.Thread(target=post) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 20
        assert len(set(ids)) == 1
        assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(1,)]


class TestWhatIsPublishedWhen:
    def test_a39_a_chunk_whose_publisher_died_is_due_after_its_lease(self, kit: Kit) -> None:
        job = kit.submitted(1)
        kit.reopen()  # the process died between commit and publish
        assert kit.due() == []
        kit.clock.advance(15)
        assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 0)]

    def test_what_nobody_publishes_at_once_is_due_at_once(self, kit: Kit) -> None:
        job = kit.submitted(1, publish_now=False)
        assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 0)]

    def test_a_scheduled_job_is_due_when_it_may_start(self, kit: Kit) -> None:
        job = kit.submitted(1, not_before=START + timedelta(hours=1))
        kit.clock.advance(3599)
        assert kit.due() == []
        kit.clock.advance(1)
        assert refs_of(kit.due()) == [ChunkRef(job.id, 0, 0)]


def test_an_unknown_tenant_is_an_error_and_nothing_is_written(kit: Kit) -> None:
    with pytest.raises(StoreError), kit.store.begin() as tx:
        tx.submit([new_job(1), new_job(1, tenant="nobody")])
    assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(0,)]


def test_an_id_is_used_once(kit: Kit) -> None:
    job = kit.submitted(1)
    with pytest.raises(StoreError), kit.store.begin() as tx:
        tx.submit([replace(job, metadata={"second": "yes"})])
    assert kit.job(job).metadata == {}
