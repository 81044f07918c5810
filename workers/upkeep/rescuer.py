"""The rescuer: frees the work of workers whose lease has ended."""

import time
from collections.abc import Callable
from datetime import timedelta

from jobs.ledger import Ledger


class Rescuer:
    """Waits a whole lease after its start before it judges anybody: while the ledger was away nobody could renew."""

    name = "rescuer"
    backlog = 0

    def __init__(
        self,
        ledger: Ledger,
        *,
        lease: timedelta,
        grace: timedelta = timedelta(0),
        interval: float = 1.0,
        on_rescued: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`grace`: how long after the end of its lease a worker's work is freed. `on_rescued`: there is work to be
        published again (wakes the relay)."""
        self._ledger = ledger
        self._grace = grace
        self._on_rescued = on_rescued
        self._monotonic = monotonic
        self._not_before = monotonic() + lease.total_seconds()
        self.interval = interval

    def step(self) -> int:
        """Gives the number of chunks freed."""
        if self._monotonic() < self._not_before:
            return 0
        freed = self._ledger.call(lambda tx: tx.rescue(self._grace))
        if freed:
            self._on_rescued()
        return freed
