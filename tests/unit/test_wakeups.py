"""Work that arrives while nobody looks: no instance sleeps on it, and none is left to the publish lease."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workbench import Workbench
from workers.held import HeldChunk
from workers.offsets import Origin
from workers.wire import Done

Bench = Callable[..., Workbench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made: list[Workbench] = []

    def make(**options: Any) -> Workbench:
        made.append(Workbench(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_arrives_between_the_look_and_the_wait_is_not_slept_on(bench: Bench) -> None:
    """`open_arrived` found nothing, a chunk is taken (and its notify goes to nobody), then `_form` waits."""
    work = bench().start()
    work.until(lambda: work.runner.outcome.is_set())
    name = work.submit("a")
    due = [HeldChunk(message, Origin(0, 0, 1)) for message in work.take()]
    looked = threading.Event()
    open_arrived = work.runner.open_arrived
    taken_at = 0.0

    def open_then_take() -> None:
        nonlocal taken_at
        open_arrived()
        if not looked.is_set():
            looked.set()
            taken_at = time.monotonic()
            work.runner.holding.take(due)

    work.runner.open_arrived = open_then_take  # type: ignore[method-assign]
    work.until(lambda: work.job(name).final)
    assert time.monotonic() - taken_at < 0.25, "the instance slept its idle half second beside a chunk"


class OnceBroken:
    """A transaction whose first `finish`es raise what is no error of ours (no memory, a fault in the code)."""

    def __init__(self, tx: Any, failures: list[Exception]) -> None:
        self._tx = tx
        self._failures = failures

    def finish(self, *args: Any) -> Any:
        if self._failures:
            raise self._failures.pop()
        return self._tx.finish(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def test_a_finish_that_broke_in_an_unknown_way_is_tried_again(bench: Bench) -> None:
    """`_persist` knows BatchyardErrors only: whatever else comes out of the ledger drops the chunk, CLOSED and still
    claimed, under a worker that lives on."""
    work = bench().start()
    # Twice: the ledger makes a group that failed again, in savepoints, and hands out what comes of that.
    failures: list[Exception] = [MemoryError(), MemoryError()]
    call = work.ledger.call
    work.ledger.call = lambda change: call(lambda tx: change(OnceBroken(tx, failures)))  # type: ignore[method-assign]
    name = work.submit("a")
    work.feed()
    work.until(lambda: not failures)
    work.until(lambda: work.job(name).final)
    assert work.settled


def test_an_answer_that_cannot_be_read_ends_its_items_all_the_same(bench: Bench) -> None:
    """`landed` takes the flight down first; if it then raises, nobody ever looks at those items again."""
    work = bench().start()
    work.until(lambda: work.runner.outcome.is_set())
    child, broken = work.child, [True]
    answer = child._answer

    def answer_badly(run: Any, parts: Any, items: Any) -> None:
        if broken:
            broken.pop()
            child.listener.done(Done(run.id, 0.001, 0.001, (0,), ()), [memoryview(b"no frame")])
        else:
            answer(run, parts, items)

    child._answer = answer_badly  # type: ignore[method-assign]
    name = work.submit("a")
    work.feed()
    work.until(lambda: not broken)
    work.finish(name)
