"""The relay: publishes what is due in the ledger and was not published right after its commit."""

from collections.abc import Collection
from datetime import timedelta
from functools import partial

from jobs.ledger import Ledger
from jobs.publisher import Publisher
from jobs.records import ChunkMessage
from jobs.store import Transaction

STEP = 100
"""Chunks taken at once: so many may go beyond the window."""

_MOST_STEPS = 100  # in a row, before the loop looks whether it is to stop


class Relay:
    """Takes due chunks, oldest first, in steps while the window has room. Wake it through `Publisher.when_room`.

    A (tenant, model) whose part of the window is full is passed over; a chunk that is on its way already (published at
    this fence, not settled) is only put off by another lease.
    """

    name = "relay"

    def __init__(self, ledger: Ledger, publisher: Publisher, *, lease: timedelta, interval: float = 0.5) -> None:
        """`lease`: how long a taken chunk is left alone before it is due again."""
        self._ledger = ledger
        self._publisher = publisher
        self._lease = lease
        self.interval = interval

    @property
    def backlog(self) -> int:
        """(tenant, model) pairs with due work that waits for room."""
        return len(self._publisher.behind)

    def step(self) -> int:
        """Gives the number of chunks published."""
        published = 0
        for _ in range(_MOST_STEPS):
            if not self._publisher.has_room:
                break
            # Read before the ledger is: what gets behind from here on is found by the next step.
            behind, full = self._publisher.behind, self._publisher.full_pairs()
            taken = self._ledger.call(partial(self._take, skip=full))
            on_their_way = self._publisher.on_their_way(taken)
            fresh = [chunk for chunk in taken if chunk.ref not in on_their_way]
            accepted = self._publisher.publish(fresh) if fresh else 0
            published += accepted
            if len(taken) < STEP:
                self._publisher.caught_up(behind - full)
                break
            if fresh and not accepted:
                break  # the stream takes nothing now: more would only be put off
        return published

    def _take(self, tx: Transaction, skip: Collection[tuple[str, str]]) -> list[ChunkMessage]:
        return tx.take_due(STEP, self._lease, skip)
