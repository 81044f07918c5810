"""R16 at the size of CI: thousands of small jobs whose items end together on different workers complete once each."""

import collections
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.records import ChunkRef, Counts
from jobs.states import JobState
from tests.contracts.store_kit import Kit, done, make_kit, new_job
from tests.unit.ledger_kit import SECONDS, Bench

JOBS = 3000
WORKERS = ("wrk_1", "wrk_2", "wrk_3")
TOGETHER = 20  # chunks that one worker finishes in a call


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = make_kit("sqlite", tmp_path)
    for other in WORKERS[1:]:
        kit.register(other, name=other)
    yield kit
    kit.store.close()


def test_a40_r16_each_job_ends_once_whoever_has_its_last_item(kit: Kit) -> None:
    jobs = [new_job(*[1] * (2 + number % 2)) for number in range(JOBS)]
    for start in range(0, JOBS, 250):
        kit.submit(*jobs[start : start + 250])
    mine: dict[str, list[ChunkRef]] = {worker: [] for worker in WORKERS}
    for job in jobs:
        for chunk in job.chunks:
            mine[WORKERS[chunk.seq]].append(ChunkRef(job.id, chunk.seq, 0))
    for worker, refs in mine.items():
        assert kit.claim(*refs, worker=worker) == [1] * len(refs)

    bench = Bench(kit.store)
    seen: list[tuple[str, JobState]] = []
    start_together = threading.Barrier(len(WORKERS))

    def finish(worker: str) -> None:
        refs = [ChunkRef(ref.job, ref.seq, 1) for ref in mine[worker]]
        start_together.wait(SECONDS)
        for at in range(0, len(refs), TOGETHER):
            some = [done(ref) for ref in refs[at : at + TOGETHER]]
            finished = bench.ledger.call(lambda tx, some=some: tx.finish(some, worker))
            assert all(finished.accepted)
            seen.extend((job.id, job.state) for job in finished.jobs if job.final)

    threads = [threading.Thread(target=finish, args=(worker,)) for worker in WORKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
    bench.ledger.stop()

    assert collections.Counter(seen) == {(job.id, JobState.SUCCEEDED): 1 for job in jobs}
    assert kit.adapter.sql("SELECT state, count(*) FROM jobs GROUP BY state") == [("succeeded", JOBS)]
    terminal = kit.adapter.sql("SELECT count(*), count(DISTINCT job) FROM events WHERE terminal")
    assert terminal == [(JOBS, JOBS)]
    assert {kit.job(job).counts for job in jobs[:2]} == {Counts(2, succeeded=2), Counts(3, succeeded=3)}
