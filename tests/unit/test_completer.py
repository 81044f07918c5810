"""The completer: groups, order, and what it does when the ledger or the blob store does not take its work."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import StoreError, Unavailable
from jobs.records import BlobRef, Finish
from jobs.states import JobState, Outcome
from jobs.store import Finished, Transaction
from tests.unit.workbench import Workbench

Refuse = Callable[[Sequence[Finish]], Exception | None]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    made = Workbench(tmp_path)
    yield made
    made.close()


class Watched:
    """A transaction whose `finish` can be refused, and is counted."""

    def __init__(self, tx: Transaction, refuse: Refuse, groups: list[int]) -> None:
        self._tx = tx
        self._refuse = refuse
        self._groups = groups

    def finish(self, finishes: Sequence[Finish], incarnation: str) -> Finished:
        error = self._refuse(finishes)
        if error is not None:
            raise error
        self._groups.append(len(finishes))
        return self._tx.finish(finishes, incarnation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def watch(bench: Workbench, refuse: Refuse = lambda finishes: None) -> list[int]:
    """Gives the sizes of the groups that were written."""
    groups: list[int] = []
    call = bench.ledger.call
    bench.ledger.call = lambda change: call(lambda tx: change(Watched(tx, refuse, groups)))  # type: ignore
    return groups


def wait(event: threading.Event) -> None:
    event.wait(5)


def fail() -> None:
    raise RuntimeError("no")


def test_what_is_ready_together_is_written_together(bench: Workbench) -> None:
    groups = watch(bench)
    names = [bench.submit(number) for number in range(8)]
    bench.feed()
    held = threading.Event()
    bench.completer.post(lambda: wait(held))
    bench.start()
    bench.until(lambda: bench.child.ran.total() == 8)
    held.set()
    bench.finish(*names)
    assert sum(groups) == 8
    assert len(groups) < 8


def test_waiting_for_it_to_be_idle_includes_the_write(bench: Workbench) -> None:
    name = bench.submit(1)
    bench.start()
    bench.feed()
    bench.until(lambda: bench.child.ran.total() == 1)
    bench.until(lambda: not bench.runner.instances[0]._flights)
    assert bench.completer.wait_idle(5)
    assert bench.job(name).final


def test_one_chunk_that_the_ledger_refuses_holds_up_nobody(bench: Workbench) -> None:
    bad = bench.submit("bad")
    good = [bench.submit(number) for number in range(5)]

    def refuse(finishes: Sequence[Finish]) -> Exception | None:
        wrong = any(entry.ref.job == bad and entry.results for entry in finishes)
        return StoreError("no such column") if wrong else None

    watch(bench, refuse)
    bench.start()
    bench.finish(*good, bad)
    assert {bench.job(name).state for name in good} == {JobState.SUCCEEDED}
    assert bench.job(bad).state is JobState.FAILED, "ended all the same"
    assert bench.outcomes(bad) == {0: Outcome.FAILED}


def test_a_chunk_of_which_nothing_can_be_written_is_tried_again_later(bench: Workbench) -> None:
    refusing = [True]
    watch(bench, lambda finishes: StoreError("I/O error") if refusing[0] else None)
    name = bench.submit(1)
    bench.start()
    bench.feed()
    bench.until(lambda: bool(bench.completer._later))
    assert bench.completer.wait_idle(5)
    refusing[0] = False
    bench.completer.post(bench.completer._later.pop()[-1])
    (job,) = bench.finish(name)
    assert job.state is JobState.SUCCEEDED, "with the answer that it had"
    assert bench.child.ran.total() == 1


def test_no_answer_is_lost_while_the_ledger_is_away(bench: Workbench) -> None:
    left = iter([Unavailable("the disk is full")] * 4)
    watch(bench, lambda finishes: next(left, None))
    names = [bench.submit(*range(5)) for _ in range(4)]
    bench.start()
    assert {job.state for job in bench.finish(*names)} == {JobState.SUCCEEDED}
    assert bench.child.ran.total() == 20


def test_outputs_that_cannot_be_stored_are_tried_again(bench: Workbench) -> None:
    put, left = bench.blobs.put, iter([OSError(28, "No space left on device")] * 2)

    def full(key: str, data: bytes) -> BlobRef:
        error = next(left, None)
        if error is not None:
            raise error
        return put(key, data)

    bench.blobs.put = full  # type: ignore[method-assign]
    name = bench.submit("x" * 5000)
    bench.start()
    (job,) = bench.finish(name)
    assert job.state is JobState.SUCCEEDED
    header, part = bench.lines(name)[0]
    assert part == b""
    assert b"x" * 5000 in bench.blobs.get(header.blobs[0][0].key)
    assert bench.child.ran.total() == 1


def test_an_answer_that_cannot_be_taken_does_not_end_the_thread(bench: Workbench) -> None:
    bench.completer.post(fail)
    name = bench.submit(1)
    bench.start()
    assert bench.finish(name)[0].state is JobState.SUCCEEDED


def test_what_is_to_be_done_later_is_done_in_time(bench: Workbench) -> None:
    bench.start()
    done: list[int] = []
    bench.completer.post(lambda: bench.completer.later(0.05, lambda: done.append(2)))
    bench.completer.post(lambda: bench.completer.later(0.01, lambda: done.append(1)))
    bench.until(lambda: done == [1, 2])


def test_a_late_finish_is_counted_and_changes_nothing(bench: Workbench) -> None:
    name = bench.submit("block")
    bench.start()
    bench.feed()
    assert bench.child.blocked.wait(5)
    stopped = bench.ledger.call(lambda tx: tx.stop("acme", name, JobState.CANCELLED, None, True))
    assert stopped is not None
    before = bench.job(name)
    bench.child.go.set()
    bench.until(lambda: bench.completer.zombie_finishes == 1)
    assert bench.job(name) == before
    assert bench.outcomes(name) == {0: Outcome.CANCELLED}
    bench.until(lambda: len(bench.settled) == 1)
