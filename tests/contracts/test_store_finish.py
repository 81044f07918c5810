"""Contract of every store: finishes, counts, finality, children."""

import threading
from datetime import timedelta

import pytest
from msgspec.structs import replace

from jobs.errors import StoreError
from jobs.records import Attempt, BlobRef, ChunkRef, Counts, Finish, ItemError, NewChunk, Usage
from jobs.states import JobState, Outcome
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, done, lines, new_job, payload, refs_of

kit = store_kit.kit

S, F, C, E, M = (bytes([o]) for o in (1, 2, 3, 4, 5))


def test_the_last_chunk_makes_the_job_final(kit: Kit) -> None:
    job = kit.submitted(3, 2, results_kept=timedelta(days=7))
    first, second = kit.claimed(job)
    kit.clock.advance(1)
    answer = kit.finish(Finish(first, S * 3, lines(((0, 3),)), engine_seconds=0.5, output_bytes=30))
    assert answer.accepted == (True,)
    assert answer.jobs == (kit.job(job),)
    assert answer.jobs[0].state is JobState.RUNNING
    assert answer.jobs[0].counts == Counts(5, succeeded=3, running=2)
    assert kit.events(job) == []
    kit.clock.advance(1)
    answer = kit.finish(Finish(second, S * 2, lines(((3, 5),)), engine_seconds=0.25, output_bytes=20))
    (ended,) = answer.jobs
    assert ended == kit.job(job)
    assert (ended.state, ended.counts) == (JobState.SUCCEEDED, Counts(5, succeeded=5))
    assert (ended.finished_at, ended.results_expire_at) == (START + 2 * SECOND, START + 2 * SECOND + timedelta(days=7))
    assert ended.usage == Usage(0.75, job.input_bytes, 50)
    assert kit.events(job) == ["job.succeeded"]
    assert [chunk.results for chunk in kit.store.results(job.id, 0, 5)] == [lines(((0, 3),)), lines(((3, 5),))]


def test_many_jobs_in_one_finish(kit: Kit) -> None:
    jobs = [kit.submitted(2) for _ in range(70)]
    answer = kit.finish(*(done(kit.claimed(job)[0], 2, results=lines(((0, 2),))) for job in jobs))
    assert answer.accepted == (True,) * 70
    assert {job.id: job.state for job in answer.jobs} == {job.id: JobState.SUCCEEDED for job in jobs}
    assert all(job.counts.running == 0 for job in answer.jobs)
    read = kit.store.results_of([job.id for job in jobs])
    assert all(chunk.results == lines(((0, 2),)) for job in jobs for chunk in read[job.id])


def test_no_finishes(kit: Kit) -> None:
    answer = kit.finish()
    assert (answer.accepted, answer.jobs, answer.children) == ((), (), ())


class TestWritesThatComeTooLate:
    def test_of_a_zombie(self, kit: Kit) -> None:
        job = kit.submitted(2)
        (ref,) = kit.claimed(job)
        with kit.store.begin() as tx:
            assert tx.hand_back([ref]) == 1
        kit.register("wrk_2")
        assert kit.claim(replace(ref, fence=2), worker="wrk_2") == [3]
        before = kit.job(job)
        answer = kit.finish(done(ref, 2, Outcome.FAILED, results=b"late"))
        assert (answer.accepted, answer.jobs) == ((False,), ())
        assert kit.job(job) == before
        winner = replace(ref, fence=3)
        assert kit.finish(done(winner, 2, results=b"won"), worker="wrk_2").accepted == (True,)
        assert kit.finish(done(ref, 2, Outcome.FAILED, results=b"late")).accepted == (False,)
        assert kit.job(job).counts == Counts(2, succeeded=2)
        assert [chunk.results for chunk in kit.store.results(job.id, 0, 2)] == [b"won"]

    def test_of_a_chunk_finished_before(self, kit: Kit) -> None:
        job = kit.submitted(1, 1)
        ref, _ = kit.claimed(job)
        finish = done(ref, engine_seconds=1.0)
        assert kit.finish(finish).accepted == (True,)
        before = kit.job(job)
        assert kit.finish(finish).accepted == (False,)
        assert kit.job(job) == before

    def test_twice_in_one_group(self, kit: Kit) -> None:
        job = kit.submitted(1)
        (ref,) = kit.claimed(job)
        answer = kit.finish(done(ref), done(ref, outcome=Outcome.FAILED))
        assert answer.accepted == (True, False)
        assert kit.job(job).counts == Counts(1, succeeded=1)

    def test_of_another_incarnation_with_the_same_fence(self, kit: Kit) -> None:
        job = kit.submitted(1)
        (ref,) = kit.claimed(job)
        kit.register("wrk_2")
        assert kit.finish(done(ref), worker="wrk_2").accepted == (False,)
        assert kit.job(job).counts == Counts(1, running=1)

    def test_of_a_chunk_never_claimed(self, kit: Kit) -> None:
        job = kit.submitted(1)
        assert kit.finish(done(ChunkRef(job.id, 0, 0))).accepted == (False,)
        assert kit.job(job).state is JobState.QUEUED

    def test_among_good_ones(self, kit: Kit) -> None:
        job, other = kit.submitted(1), kit.submitted(1)
        (ref,), (old,) = kit.claimed(job), kit.claimed(other)
        with kit.store.begin() as tx:
            tx.hand_back([old])
        answer = kit.finish(done(old), done(ref), done(ChunkRef("job_unknown", 0, 1)))
        assert answer.accepted == (False, True, False)
        assert [changed.id for changed in answer.jobs] == [job.id]


def test_a40_two_chunks_that_end_together_complete_the_job_once(kit: Kit) -> None:
    for _ in range(25):
        job = kit.submitted(1, 1)
        refs = kit.claimed(job)
        finals: list[JobState] = []
        ready = threading.Barrier(2)

        def end(ref: ChunkRef, ready: threading.Barrier = ready, finals: list[JobState] = finals) -> None:
            ready.wait(5)
            finals.extend(changed.state for changed in kit.finish(done(ref)).jobs if changed.final)

        threads = [threading.Thread(target=end, args=(ref,)) for ref in refs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert finals == [JobState.SUCCEEDED]
        assert kit.events(job) == ["job.succeeded"]


def test_a40_in_one_call(kit: Kit) -> None:
    job = kit.submitted(1, 1, 1)
    answer = kit.finish(*map(done, kit.claimed(job)))
    assert [changed.state for changed in answer.jobs] == [JobState.SUCCEEDED]
    assert kit.events(job) == ["job.succeeded"]


def test_a_second_terminal_event_is_impossible(kit: Kit) -> None:
    kit.submitted()
    with pytest.raises(Exception, match=r"(?i)unique"):
        kit.adapter.sql(
            "INSERT INTO events (job, seq, type, terminal, at) SELECT job, 2, 'job.failed', TRUE, at FROM events"
        )


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (S + S, JobState.SUCCEEDED),
        (S + F, JobState.PARTIALLY_FAILED),
        (F + F, JobState.FAILED),
        (E + E, JobState.EXPIRED),
        (S + E, JobState.PARTIALLY_FAILED),
        (F + E, JobState.FAILED),
    ],
)
def test_final_states(kit: Kit, outcomes: bytes, state: JobState) -> None:
    job = kit.submitted(2)
    (ref,) = kit.claimed(job)
    (ended,) = kit.finish(Finish(ref, outcomes, b"")).jobs
    assert ended.state is state
    assert ended.counts.done == 2
    assert kit.events(job) == [f"job.{state}"]


@pytest.mark.parametrize("outcomes", [S, S * 3, S + b"\x00", S + b"\x09", S + M], ids=bytes.hex)
def test_a_finish_must_account_for_every_item(kit: Kit, outcomes: bytes) -> None:
    job = kit.submitted(2)
    (ref,) = kit.claimed(job)
    with pytest.raises(StoreError, match=job.id):
        kit.finish(Finish(ref, outcomes, b""))
    assert kit.job(job).counts == Counts(2, running=2)


class TestChildren:
    """Item 1 of three failed and goes on."""

    def moved(self, ref: ChunkRef, **fields: object) -> Finish:
        error = ItemError("handler_error", "RuntimeError: no", False, "predict")
        items = ((1, 2),)
        given = {"seq": 99, "items": items, "payload": payload(items), "alone": True, "attempts": 1, "parent": 0}
        return Finish(
            ref,
            S + M + S,
            lines(((0, 1), (2, 3))),
            children=(NewChunk(**(given | fields)),),
            attempts=(Attempt(1, 1, "wrk_1", "1", error, "Traceback …", START),),
        )

    def test_a_child_is_published_at_once_when_due(self, kit: Kit) -> None:
        job = kit.submitted(3)
        answer = kit.finish(self.moved(kit.claimed(job)[0]))
        (child,) = answer.children
        assert (child.ref, child.count, child.alone, child.attempts) == (ChunkRef(job.id, 1, 0), 1, True, 1)
        assert child.payload == payload(((1, 2),))
        assert child.queue_deadline_at is None
        assert answer.jobs[0].counts == Counts(3, succeeded=2)
        assert answer.jobs[0].state is JobState.RUNNING
        assert kit.due() == []  # whoever finished it publishes it
        kit.clock.advance(15)
        assert kit.due() == [child]

    def test_a_child_waits_for_its_backoff(self, kit: Kit) -> None:
        job = kit.submitted(3)
        answer = kit.finish(self.moved(kit.claimed(job)[0], not_before=START + 20 * SECOND))
        assert answer.children == ()
        kit.clock.advance(19)
        assert kit.due() == []
        assert kit.claim(ChunkRef(job.id, 1, 0)) == [None]
        kit.clock.advance(1)
        assert refs_of(kit.due()) == [ChunkRef(job.id, 1, 0)]

    def test_the_job_ends_with_its_last_child(self, kit: Kit) -> None:
        job = kit.submitted(3)
        (child,) = kit.finish(self.moved(kit.claimed(job)[0])).children
        assert kit.claim(child.ref) == [1]
        answer = kit.finish(done(replace(child.ref, fence=1), outcome=Outcome.FAILED, results=b"failed"))
        assert answer.jobs[0].state is JobState.PARTIALLY_FAILED
        assert answer.jobs[0].counts == Counts(3, succeeded=2, failed=1)
        read = kit.store.results(job.id, 0, 3)
        assert [(chunk.seq, chunk.items, chunk.outcomes) for chunk in read] == [
            (0, ((0, 3),), S + M + S),
            (1, ((1, 2),), F),
        ]

    def test_attempts_are_kept(self, kit: Kit) -> None:
        job = kit.submitted(3)
        kit.finish(self.moved(kit.claimed(job)[0]))
        rows = kit.adapter.sql(
            "SELECT job, item, number, worker, version, code, message, stage, traceback FROM attempts"
        )
        assert rows == [
            (job.id, 1, 1, "wrk_1", "1", "handler_error", "RuntimeError: no", "predict", "Traceback …"),
        ]

    def test_children_of_several_chunks_are_numbered_on(self, kit: Kit) -> None:
        job = kit.submitted(3, 1)
        first, second = kit.claimed(job)
        last = Finish(second, M, b"", children=(NewChunk(0, ((3, 4),), b"x", attempts=1, parent=1),))
        answer = kit.finish(self.moved(first), last)
        assert refs_of(answer.children) == [ChunkRef(job.id, 2, 0), ChunkRef(job.id, 3, 0)]

    def test_a_child_of_a_stopped_job_ends_at_once(self, kit: Kit) -> None:
        job = kit.submitted(3)
        (ref,) = kit.claimed(job)
        kit.stop(job)
        answer = kit.finish(self.moved(ref))
        assert answer.children == ()
        assert answer.jobs[0].counts == Counts(3, succeeded=2, cancelled=1)
        assert answer.jobs[0].state is JobState.CANCELLED
        assert [chunk.outcomes for chunk in kit.store.results(job.id, 1, 1)] == [S + M + S, C]

    def test_the_child_of_a_blob_keeps_its_items_id(self, kit: Kit) -> None:
        blob = BlobRef("in/1", 10_000_000, "ab" * 32)
        job = new_job(chunks=(NewChunk(0, ((0, 1),), blob, ids=("big",)),))
        kit.submit(job)
        (ref,) = kit.claimed(job)
        child = NewChunk(0, ((0, 1),), blob, attempts=1, parent=0, not_before=START + SECOND)
        kit.finish(Finish(ref, M, b"", children=(child,)))
        kit.stop(job)
        assert kit.store.results(job.id, 0, 1)[1].ids == ("big",)
