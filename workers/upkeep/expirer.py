"""The expirer: ends what is past its queue deadline or its deadline, and what was asked to stop and did not."""

from datetime import timedelta

from jobs.ledger import Ledger
from jobs.notifier import Notifier, Ping
from jobs.records import Job

STEP = 200
"""Jobs, and chunks of jobs that go on, ended in one transaction."""

_MOST_STEPS = 100  # in a row, before the loop looks whether it is to stop


class Expirer:
    """Tells waiters what ended and workers what must not go on, with one ping for both."""

    name = "expirer"
    backlog = 0

    def __init__(self, ledger: Ledger, notifier: Notifier, *, cancel_grace: timedelta, interval: float = 0.25) -> None:
        """`cancel_grace`: how long running chunks of a stopped job may take to end by themselves."""
        self._ledger = ledger
        self._notifier = notifier
        self._cancel_grace = cancel_grace
        self.interval = interval

    def step(self) -> int:
        """Gives the number of jobs changed."""
        changed = 0
        for _ in range(_MOST_STEPS):
            # Two transactions: each locks jobs and then chunks, and together they would do so twice.
            expired = self._ledger.call(lambda tx: tx.expire_due(STEP))
            forced = self._ledger.call(lambda tx: tx.force_stopped(self._cancel_grace))
            jobs = {job.id: job for job in (*expired, *forced)}
            if jobs:
                self._tell(jobs)
            changed += len(jobs)
            if not expired:
                break  # fewer than STEP says nothing: the bound counts chunks too
        return changed

    def _tell(self, jobs: dict[str, Job]) -> None:
        self._notifier.ping(
            Ping(
                jobs=tuple(jobs),
                finals=tuple(job for job in jobs.values() if job.final),
                # A queue timeout ends some chunks of a job; its others go on.
                stopped=tuple(job.id for job in jobs.values() if job.final or job.stop_as is not None),
            )
        )
