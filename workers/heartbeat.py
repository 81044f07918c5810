"""This worker's row in the ledger: a lease that is extended only while its loops make progress."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from jobs.errors import BatchyardError
from jobs.ids import new_id
from jobs.ledger import Ledger
from jobs.store import WorkerRow

log = logging.getLogger("batchyard.worker")

_SHORTEST = 0.5  # seconds between two beats, however often somebody is in doubt


class Heartbeat:
    """`alive` says whether the loops make progress; `lapsed` is called when the incarnation was removed."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        pid: int,
        lease: timedelta,
        now: Callable[[], datetime],
        alive: Callable[[], bool],
        lapsed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._pid = pid
        self._lease = lease
        self._now = now
        self._alive = alive
        self._lapsed = lapsed
        self._stopping = threading.Event()
        self._stalled = False
        self._look = threading.Event()  # there is doubt whether the incarnation still counts
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.incarnation = ""
        self.started_at = now()

    def start(self) -> None:
        self._register()
        self._thread.start()

    def stop(self) -> None:
        """Takes the row away: nothing is claimed under it any more."""
        self._stopping.set()
        self._look.set()
        self._thread.join()
        try:
            self._ledger.call(lambda tx: tx.remove_worker(self.incarnation))
        except BatchyardError as error:
            log.warning("the worker's row stays until its lease is up: %s", error)

    def look(self) -> None:
        """A claim was refused, perhaps because the lease has lapsed: beats now, not only when it is time."""
        self._look.set()

    def beat(self) -> None:
        if not self._alive():
            if not self._stalled:
                log.error("the worker's loops make no progress; its lease is not extended")
            self._stalled = True
            self._look.set()  # after a suspend they only need a moment
            return
        self._stalled = False
        if not self._ledger.call(lambda tx: tx.heartbeat(self.incarnation, self._lease)):
            log.error("the lease of %s has lapsed; everything it held is dropped", self.incarnation)
            self._lapsed()
            self._register()

    def _register(self) -> None:
        now = self._now()
        row = WorkerRow(new_id("wrk"), self._name, self._pid, now, now + self._lease)
        self._ledger.call(lambda tx: tx.register_worker(row))
        self.incarnation = row.incarnation

    def _run(self) -> None:
        every = self._lease.total_seconds() / 3
        while not self._stopping.wait(min(every, _SHORTEST)):
            self._look.wait(max(0.0, every - _SHORTEST))
            self._look.clear()
            if self._stopping.is_set():
                return
            try:
                self.beat()
            except BatchyardError as error:
                log.warning("no heartbeat (%s); trying again", error)
