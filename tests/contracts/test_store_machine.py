"""Any order of movements keeps the store's promises: items conserved, finality for ever, one end, fences that rise."""

import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from jobs import frames, ranges
from jobs.records import ChunkRef, Finish, Job, NewChunk, NewJob
from jobs.states import FINAL, JobState, Outcome, final_state
from tests.contracts.store_kit import ADAPTERS, SECOND, lines, make_kit, new_job, payload

WORKERS = ("wrk_1", "wrk_2")
DECIDED = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)
OUTCOMES = st.lists(st.sampled_from([*DECIDED[:2], *DECIDED, Outcome.MOVED]), min_size=3, max_size=3)
DELAY = st.sampled_from([None, 4])


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
    chunks: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    finished: dict[tuple[str, int], int] = field(default_factory=dict)  # the fence of the finish


class StoreMachine(RuleBasedStateMachine):
    """Rules pick from what exists by number, so that each step does something."""

    adapter = "sqlite"

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kit = make_kit(self.adapter, Path(self.folder.name))
        self.kit.register("wrk_2")
        self.alive = set(WORKERS)
        self.jobs: dict[str, NewJob] = {}
        self.claims: list[Claim] = []  # also those that no longer stand
        self.seen = Seen()
        for _ in range(2):
            self.submit([[3, 2], [1]], None, None, None, None)

    def teardown(self) -> None:
        self.check_lines(sorted(self.jobs))
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
                publish_now=False,
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

    @rule(
        worker=st.sampled_from(WORKERS), limit=st.integers(1, 6), outcomes=OUTCOMES, delay=DELAY, held=st.integers(0, 6)
    )
    def work(self, worker: str, limit: int, outcomes: list[Outcome], delay: int | None, held: int) -> None:
        """Claims what is due and finishes all but `held` chunks of it at once."""
        before = len(self.claims)
        self.claim(worker, limit)
        fresh = len(self.claims) - before
        for at in range(held, fresh, 3):
            self.finish(list(range(at, min(at + 3, fresh))), outcomes, delay, False)

    def claim(self, worker: str, limit: int) -> None:
        messages = self.kit.due(limit=limit, lease=SECOND)
        for message in messages:
            job = self.kit.store.jobs_by_id([message.job])[message.job]
            assert job.stop_as is None
            assert job.not_before is None or job.not_before <= self.kit.clock()
        refs = [message.ref for message in messages]
        granted = self.kit.claim(*refs, *refs[:1], worker=worker)
        assert granted[len(refs) :] == [None] * (len(granted) - len(refs))
        for message, fence in zip(messages, granted, strict=False):
            if fence is None:
                continue
            assert worker in self.alive
            ref = replace(message.ref, fence=fence)
            assert fence > message.fence
            assert self.standing(ref, worker)
            ((first,),) = self.rows("first_item", ref)
            self.claims.append(Claim(ref, worker, message.count, int(str(first))))

    @rule(
        picked=st.lists(st.integers(0, 11), min_size=1, max_size=3),
        outcomes=OUTCOMES,
        delay=DELAY,
        stranger=st.sampled_from([False, False, True]),
    )
    def finish(self, picked: list[int], outcomes: list[Outcome], delay: int | None, stranger: bool) -> None:
        self.end(self.recent(picked), outcomes, delay, stranger)

    @rule(number=st.integers(0, 11), outcomes=OUTCOMES, delay=DELAY)
    def finish_while_stopping(self, number: int, outcomes: list[Outcome], delay: int | None) -> None:
        """What a worker still holds of a job that was asked to stop; what it moves on ends at once."""
        self.claim(WORKERS[number % 2], 1)
        held = [claim for claim in self.claims if self.standing(claim.ref)]
        if not held:
            return
        claim = held[number % len(held)]
        first = self.kit.stop(self.jobs[claim.ref.job]).job.stop_as
        assert self.kit.stop(self.jobs[claim.ref.job], JobState.EXPIRED).job.stop_as is first
        self.end([claim], outcomes, delay, False)
        assert self.kit.job(self.jobs[claim.ref.job]).counts.queued == 0

    def end(self, claims: list[Claim], outcomes: list[Outcome], delay: int | None, stranger: bool) -> None:
        if not claims:
            return
        worker = claims[0].worker
        if stranger:
            worker = WORKERS[1 - WORKERS.index(worker)]
        named: dict[tuple[str, int], int] = {}
        expected = []
        for claim in claims:
            place = (claim.ref.job, claim.ref.seq)
            expected.append(place not in named and self.standing(claim.ref, worker))
            if expected[-1]:
                named[place] = claim.ref.fence
        before = self.kit.store.jobs_by_id(sorted(self.jobs))
        rows = None if any(expected) else self.everything()
        entries = [
            Finish(
                claim.ref,
                bytes(outcomes[: claim.count]),
                self.lines(claim, outcomes),
                self.children(claim, outcomes, delay),
            )
            for claim in claims
        ]
        answer = self.kit.finish(*entries, worker=worker)
        after = self.kit.store.jobs_by_id(sorted(self.jobs))
        assert answer.accepted == tuple(expected)
        assert named.keys().isdisjoint(self.seen.finished)
        self.seen.finished |= named
        assert {job.id: job for job in answer.jobs} == {id_: after[id_] for id_, _ in named}
        assert {id_ for id_ in after if after[id_] != before[id_]} <= {id_ for id_, _ in named}
        assert rows is None or self.everything() == rows

    def lines(self, claim: Claim, outcomes: list[Outcome]) -> bytes:
        """A result line for each item that does not move on."""
        ended = [claim.first + at for at in range(claim.count) if outcomes[at] is not Outcome.MOVED]
        return b"".join(lines(((item, item + 1),)) for item in ended)

    def children(self, claim: Claim, outcomes: list[Outcome], delay: int | None) -> tuple[NewChunk, ...]:
        not_before = None if delay is None else self.kit.clock() + delay * SECOND
        moved = [claim.first + at for at in range(claim.count) if outcomes[at] is Outcome.MOVED]
        return tuple(
            NewChunk(0, ((item, item + 1),), payload(((item, item + 1),)), True, 1, claim.ref.seq, not_before)
            for item in moved
        )

    @rule(picked=st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), alone=st.booleans())
    def hand_back(self, picked: list[int], alone: bool) -> None:
        refs = [claim.ref for claim in self.recent(picked)]
        standing = [self.standing(ref) for ref in refs]
        rows = None if any(standing) else self.everything()
        with self.kit.store.begin() as tx:
            if alone:
                assert tx.mark_alone(refs) == standing
            else:
                assert tx.hand_back(refs) == len({ref for ref, stands in zip(refs, standing, strict=True) if stands})
        assert rows is None or self.everything() == rows

    @rule(
        number=st.integers(0, 11),
        stop_as=st.sampled_from([JobState.CANCELLED, JobState.EXPIRED]),
        force=st.booleans(),
        seldom=st.integers(0, 3),
    )
    def stop(self, number: int, stop_as: JobState, force: bool, seldom: int) -> None:
        running = [self.jobs[claim.ref.job] for claim in self.claims if self.standing(claim.ref)]
        candidates = running if running and number % 4 else list(self.jobs.values())
        if seldom:  # or most jobs would end like this
            candidates = [job for job in running if self.kit.job(job).stop_as is not None]
        if not candidates:
            return
        job = candidates[number % len(candidates)]
        before = self.kit.job(job)
        stopped = self.kit.stop(job, stop_as, force=force)
        assert stopped.changed == (not before.final)
        assert stopped.job == self.kit.job(job)
        assert stopped.job.stop_as is before.stop_as or before.stop_as is None
        assert stopped.job.counts.queued == 0
        assert sum(self.size(ref) for ref in stopped.running) == stopped.job.counts.running
        assert stopped.job.counts.running == (0 if force else before.counts.running)

    @rule(seconds=st.sampled_from([0, 1, 5, 70]), limit=st.integers(1, 5))
    def expire(self, seconds: int, limit: int) -> None:
        self.kit.clock.advance(seconds)
        with self.kit.store.begin() as tx:
            changed = [*tx.expire_due(limit), *tx.force_stopped(5 * SECOND)]
        after = self.kit.store.jobs_by_id(sorted(self.jobs))
        assert all(job == after[job.id] for job in {job.id: job for job in changed}.values())

    @rule(worker=st.sampled_from(WORKERS), rescued=st.booleans(), back=st.booleans())
    def worker_dies(self, worker: str, rescued: bool, back: bool) -> None:
        with self.kit.store.begin() as tx:
            tx.remove_worker(worker)
            self.alive.discard(worker)
            if rescued:
                tx.rescue(timedelta(0))
        if rescued:
            rows = self.kit.adapter.sql("SELECT DISTINCT worker FROM chunks WHERE state = 'running'")
            assert {name for (name,) in rows} <= self.alive
        if back:
            self.kit.register(worker)
            self.alive.add(worker)

    @rule(worker=st.sampled_from(WORKERS), restart=st.booleans())
    def all_comes_back(self, worker: str, restart: bool) -> None:
        if restart:
            self.kit.reopen()
        if worker not in self.alive:
            self.kit.register(worker)
            self.alive.add(worker)
        with self.kit.store.begin() as tx:
            tx.republish_all()

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
            assert job.stop_as is None or counts.queued == 0
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
    def each_item_has_one_outcome_and_one_line_at_most(self) -> None:
        self.check_lines(sorted(self.jobs.keys() - self.seen.finals.keys()))

    def check_lines(self, jobs: list[str]) -> None:
        for id_, chunks in self.kit.store.results_of(jobs).items():
            decided = [
                item
                for chunk in chunks
                for item, outcome in zip(ranges.indexes(chunk.items), chunk.outcomes, strict=True)
                if outcome in DECIDED
            ]
            told = [
                item
                for chunk in chunks
                for header, _ in frames.unpack_results(chunk.results or b"")
                for item in ranges.indexes(header.items)
            ]
            assert len(set(decided)) == len(decided)
            assert len(set(told)) == len(told)
            assert set(told) <= set(decided) <= set(range(self.jobs[id_].total))

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
    def every_movement_but_a_finish_raises_the_fence(self) -> None:
        for job, seq, state, fence in self.kit.adapter.sql("SELECT job, seq, state, fence FROM chunks"):
            place = (job, seq)
            before = self.seen.chunks.get(place, (state, fence))
            if place in self.seen.finished:
                assert (state, fence) == ("done", self.seen.finished[place])
            else:
                assert fence > before[1] or (state, fence) == before
            self.seen.chunks[place] = (state, fence)

    # -- looking ------------------------------------------------------------------------------------------------------

    def recent(self, picked: list[int]) -> list[Claim]:
        """Mostly claims that stand, now and then one that does not any more."""
        standing = [claim for claim in self.claims if self.standing(claim.ref)][-8:]
        last = self.claims[-3:] + standing
        return [last[-1 - number % len(last)] for number in picked] if last else []

    def standing(self, ref: ChunkRef, worker: str | None = None) -> bool:
        found = self.rows("state, fence, worker", ref)[0]
        return found[:2] == ("running", ref.fence) and worker in (None, found[2])

    def everything(self) -> list[list[tuple[object, ...]]]:
        tables = ("jobs", "chunks", "payloads", "results", "attempts", "events", "workers")
        return [self.kit.adapter.sql(f"SELECT * FROM {table}") for table in tables]

    def size(self, ref: ChunkRef) -> int:
        return int(str(self.rows("count", ref)[0][0]))

    def rows(self, columns: str, ref: ChunkRef) -> list[tuple[object, ...]]:
        return self.kit.adapter.sql(f"SELECT {columns} FROM chunks WHERE job = '{ref.job}' AND seq = {ref.seq}")


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_any_order_of_movements(adapter: str) -> None:
    machine = type("Machine", (StoreMachine,), {"adapter": adapter})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,  # the same orders each time; more of them with another setting here
            suppress_health_check=list(HealthCheck),
        ),
    )
