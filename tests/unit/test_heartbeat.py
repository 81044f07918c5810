"""The lease of a worker: extended only while it makes progress; a lapse means a new incarnation."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs.errors import Unavailable
from jobs.store import WorkerRow
from tests.contracts.store_kit import ManualClock
from workers.heartbeat import Heartbeat


class Rows:
    """Stands for ledger and transaction: which incarnations are registered."""

    def __init__(self) -> None:
        self.rows: dict[str, WorkerRow] = {}
        self.beats: list[str] = []

    def call(self, change: Callable[[Any], Any]) -> Any:
        return change(self)

    def register_worker(self, row: WorkerRow) -> None:
        self.rows[row.incarnation] = row

    def heartbeat(self, incarnation: str, lease: timedelta) -> bool:
        self.beats.append(incarnation)
        return incarnation in self.rows

    def remove_worker(self, incarnation: str) -> None:
        del self.rows[incarnation]


class Bench:
    def __init__(self) -> None:
        self.rows = Rows()
        self.alive = True
        self.lapses: list[str] = []
        self.heartbeat = Heartbeat(
            self.rows,  # type: ignore[arg-type]
            "local",
            1,
            timedelta(hours=1),
            ManualClock(),
            lambda: self.alive,
            lambda: self.lapses.append(self.heartbeat.incarnation),
        )
        self.heartbeat.start()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_beat_extends_the_lease_of_its_incarnation(bench: Bench) -> None:
    bench.heartbeat.beat()
    assert bench.rows.beats == [bench.heartbeat.incarnation]
    assert bench.lapses == []


def test_a_worker_that_makes_no_progress_lets_its_lease_run_out(bench: Bench) -> None:
    bench.alive = False
    bench.heartbeat.beat()
    assert bench.rows.beats == []


def test_after_a_lapse_everything_is_dropped_before_a_new_incarnation_is_taken(bench: Bench) -> None:
    first = bench.heartbeat.incarnation
    bench.rows.remove_worker(first)
    bench.heartbeat.beat()
    assert bench.lapses == [first]
    assert list(bench.rows.rows) == [bench.heartbeat.incarnation] != [first]
    bench.heartbeat.beat()
    assert len(bench.lapses) == 1


def test_stopping_takes_the_row_away(bench: Bench) -> None:
    bench.heartbeat.stop()
    assert bench.rows.rows == {}


def test_a_row_that_cannot_be_taken_away_is_left_to_its_lease(bench: Bench) -> None:
    def away(change: object) -> None:
        raise Unavailable("the ledger is stopping")

    bench.rows.call = away  # type: ignore[method-assign]
    bench.heartbeat.stop()
    assert len(bench.rows.rows) == 1
