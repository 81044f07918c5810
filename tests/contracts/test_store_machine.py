"""Any order of movements keeps the store's promises: items conserved, finality for ever, one end, fences that rise."""

import tempfile
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from jobs.records import ChunkRef, Finish, Job, NewChunk, NewJob
from jobs.states import FINAL, JobState, Outcome, final_state
from tests.contracts.store_kit import ADAPTERS, SECOND, make_kit, new_job, payload

WORKERS = ("wrk_1", "wrk_2")
DECIDED = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)


@dataclass
class Claim:
    ref: ChunkRef
    worker: str
    count: int
    first: int


@dataclass
class Seen:
    """What was observed before, to compare with."""

    finals: dict[str, Job] = field(default_factory=dict)
    fences: dict[tuple[str, int], int] = field(default_factory=dict)
    finished: set[tuple[str, int]] = field(default_factory=set)


class StoreMachine(RuleBasedStateMachine):
    adapter = "sqlite"
    claims = Bundle("claims")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kit = make_kit(self.adapter, Path(self.folder.name))
        self.jobs: dict[str, NewJob] = {}
        self.alive = dict.fromkeys(WORKERS[:1], 0)
        self.seen = Seen()

    def teardown(self) -> None:
        self.kit.store.close()
        self.folder.cleanup()

    # -- movements ----------------------------------------------------------------------------------------------------

    @rule(
        groups=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
        key=st.sampled_from([None, "a", "b"]),
        queue=st.sampled_from([None, 5, 60]),
        total=st.sampled_from([None, 5, 60]),
        start=st.sampled_from([None, 3]),
    )
    def submit(
        self, groups: list[list[int]], key: str | None, queue: int | None, total: int | None, start: int | None
    ) -> None:
        now = self.kit.clock()
        jobs = [
            new_job(
                *sizes,
                created_at=now,
                idempotency_key=key,
                fingerprint=b"1" if key else None,
                queue_deadline_at=queue and now + queue * SECOND,
                deadline_at=total and now + total * SECOND,
                not_before=start and now + start * SECOND,
            )
            for sizes in groups
        ]
        for job, answer in zip(jobs, self.kit.submit(*jobs), strict=True):
            assert answer.replayed == (answer.job.id != job.id)
            if not answer.replayed:
                self.jobs[job.id] = job

    @rule(target=claims, worker=st.sampled_from(WORKERS), limit=st.integers(1, 6), late=st.booleans())
    def claim_what_is_due(self, worker: str, limit: int, late: bool) -> object:
        if late:
            self.kit.clock.advance(15)  # past the publishing lease
        messages = self.kit.due(limit=limit, lease=5 * SECOND)
        refs = [message.ref for message in messages]
        granted = self.kit.claim(*refs, *refs[:1], worker=worker)
        assert granted[len(refs) :] == [None] * (len(granted) - len(refs))
        made = []
        for message, fence in zip(messages, granted, strict=False):
            if fence is not None:
                assert worker in self.alive
                assert fence == message.fence + 1
                (row,) = self.rows("first_item", message.ref)
                made.append(Claim(replace(message.ref, fence=fence), worker, message.count, int(str(row[0]))))
        return multiple(*made)

    @rule(
        claim=consumes(claims),
        outcomes=st.lists(st.sampled_from([*DECIDED, Outcome.MOVED]), min_size=3, max_size=3),
        delay=st.sampled_from([None, 4]),
        twice=st.booleans(),
    )
    def finish(self, claim: Claim, outcomes: list[Outcome], delay: int | None, twice: bool) -> None:
        ref = claim.ref
        standing = self.rows("state, fence, worker", ref) == [("running", ref.fence, claim.worker)]
        before = self.kit.store.jobs_by_id([ref.job])[ref.job]
        entry = Finish(ref, bytes(outcomes[: claim.count]), b"x", self.children(claim, outcomes, delay))
        answer = self.kit.finish(*[entry] * (1 + twice), worker=claim.worker)
        assert answer.accepted == ((standing, False) if twice else (standing,))
        after = self.kit.store.jobs_by_id([ref.job])[ref.job]
        if not standing:
            assert answer.jobs == ()
            assert after == before
            return
        assert (ref.job, ref.seq) not in self.seen.finished
        self.seen.finished.add((ref.job, ref.seq))
        assert answer.jobs == (after,)

    def children(self, claim: Claim, outcomes: list[Outcome], delay: int | None) -> tuple[NewChunk, ...]:
        not_before = None if delay is None else self.kit.clock() + delay * SECOND
        moved = [at for at in range(claim.count) if outcomes[at] is Outcome.MOVED]
        ranges = [((claim.first + at, claim.first + at + 1),) for at in moved]
        return tuple(
            NewChunk(0, items, payload(items), alone=True, attempts=1, parent=claim.ref.seq, not_before=not_before)
            for items in ranges
        )

    @rule(claim=consumes(claims))
    def hand_back(self, claim: Claim) -> None:
        with self.kit.store.begin() as tx:
            standing = self.rows("state, fence", claim.ref) == [("running", claim.ref.fence)]
            assert tx.hand_back([claim.ref]) == standing

    @rule(claim=claims)
    def mark_alone(self, claim: Claim) -> None:
        with self.kit.store.begin() as tx:
            standing = self.rows("state, fence", claim.ref) == [("running", claim.ref.fence)]
            assert tx.mark_alone([claim.ref]) == [standing]

    @rule(
        data=st.data(),
        stop_as=st.sampled_from([JobState.CANCELLED, JobState.EXPIRED]),
        force=st.booleans(),
    )
    def stop(self, data: st.DataObject, stop_as: JobState, force: bool) -> None:
        if not self.jobs:
            return
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        was_final = self.kit.job(job).final
        stopped = self.kit.stop(job, stop_as, force=force)
        assert stopped.changed == (not was_final)
        assert stopped.job == self.kit.job(job)
        assert len(stopped.running) == 0 if force else True

    @rule(limit=st.integers(1, 5))
    def expire(self, limit: int) -> None:
        with self.kit.store.begin() as tx:
            changed = tx.expire_due(limit)
        for job in changed:
            assert job == self.kit.store.jobs_by_id([job.id])[job.id]

    @rule(grace=st.sampled_from([0, 5]))
    def force_stopped(self, grace: int) -> None:
        with self.kit.store.begin() as tx:
            tx.force_stopped(grace * SECOND)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_goes(self, worker: str) -> None:
        self.alive.pop(worker, None)
        with self.kit.store.begin() as tx:
            tx.remove_worker(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_comes(self, worker: str) -> None:
        if worker not in self.alive:
            self.alive[worker] = 0
            self.kit.register(worker)

    @rule()
    def rescue(self) -> None:
        with self.kit.store.begin() as tx:
            tx.rescue(timedelta(0))
        rows = self.kit.adapter.sql("SELECT DISTINCT worker FROM chunks WHERE state = 'running'")
        assert {worker for (worker,) in rows} <= set(self.alive)

    @rule(seconds=st.sampled_from([1, 5, 15, 70]))
    def time_passes(self, seconds: int) -> None:
        self.kit.clock.advance(seconds)

    @rule()
    def republish(self) -> None:
        with self.kit.store.begin() as tx:
            tx.republish_all()

    @rule()
    def restart(self) -> None:
        self.kit.reopen()

    # -- promises -----------------------------------------------------------------------------------------------------

    @invariant()
    def items_are_conserved(self) -> None:
        jobs = self.kit.store.jobs_by_id(sorted(self.jobs))
        assert set(jobs) == set(self.jobs)
        by_job: dict[str, dict[str, int]] = {id_: dict.fromkeys(("queued", "running", "done"), 0) for id_ in jobs}
        decided: dict[str, bytes] = dict.fromkeys(jobs, b"")
        for id_, state, count, outcomes in self.kit.adapter.sql("SELECT job, state, count, outcomes FROM chunks"):
            by_job[id_][state] += count
            decided[id_] += outcomes or b""
        for id_, job in jobs.items():
            counts, chunks, codes = job.counts, by_job[id_], decided[id_]
            assert counts.total == self.jobs[id_].total
            assert (counts.running, counts.queued) == (chunks["running"], chunks["queued"])
            assert [codes.count(outcome) for outcome in DECIDED] == [
                counts.succeeded,
                counts.failed,
                counts.cancelled,
                counts.expired,
            ]
            assert job.final == (counts.done == counts.total)
            if job.final:
                assert job.state is final_state(
                    succeeded=counts.succeeded,
                    failed=counts.failed,
                    cancelled=counts.cancelled,
                    expired=counts.expired,
                    stop_as=job.stop_as,
                    job_error=False,
                )

    @invariant()
    def a_final_job_never_changes(self) -> None:
        jobs = self.kit.store.jobs_by_id(sorted(self.jobs))
        for id_, job in self.seen.finals.items():
            assert jobs[id_] == job
        self.seen.finals.update({id_: job for id_, job in jobs.items() if job.state in FINAL})

    @invariant()
    def each_end_is_told_once(self) -> None:
        rows = self.kit.adapter.sql("SELECT job, type FROM events WHERE terminal ORDER BY job")
        assert rows == sorted((id_, f"job.{job.state}") for id_, job in self.seen.finals.items())

    @invariant()
    def fences_never_fall(self) -> None:
        for job, seq, fence in self.kit.adapter.sql("SELECT job, seq, fence FROM chunks"):
            assert fence >= self.seen.fences.get((job, seq), 0)
            self.seen.fences[job, seq] = fence

    def rows(self, columns: str, ref: ChunkRef) -> list[tuple[object, ...]]:
        return self.kit.adapter.sql(f"SELECT {columns} FROM chunks WHERE job = '{ref.job}' AND seq = {ref.seq}")


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_any_order_of_movements(adapter: str) -> None:
    machine = type("Machine", (StoreMachine,), {"adapter": adapter})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,  # the same orders each time; more of them with another setting here
            suppress_health_check=list(HealthCheck),
        ),
    )
