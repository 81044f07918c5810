"""What the ledger answers to submissions, brought to the event loop that awaits it."""

import asyncio
from typing import Any

from api.services import Outcome
from jobs.records import NewJob, Submitted


class Expected:
    """One submission's answer. ``outcome`` is set on the ledger's thread."""

    __slots__ = ("future", "outcome", "unless_written")

    def __init__(self, unless_written: "asyncio.Future[Any] | None") -> None:
        self.outcome: Outcome | None = None
        self.future: asyncio.Future[None] | None = None  # of the one who awaits it
        self.unless_written = unless_written

    @property
    def written(self) -> bool:
        return isinstance(self.outcome, Submitted) and not self.outcome.replayed


class Commits:
    """The sink of the ledger: its writer thread gives back a whole commit, and the loop is told once of it.

    A client that waits for its job to end needs no word of the commit: the loop is not even woken for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[str, Expected] = {}

    def expect(self, job_id: str, unless_written: "asyncio.Future[Any] | None" = None) -> Expected:
        """To be called before the submission. With `unless_written`, whoever awaits that future is woken (with None)
        when the job was not written, and by nothing here when it was."""
        expected = self._open[job_id] = Expected(unless_written)
        return expected

    def forget(self, job_id: str) -> None:
        self._open.pop(job_id, None)

    async def outcome(self, job_id: str, expected: Expected) -> Outcome:
        """The ledger's answer, as soon as it is there."""
        try:
            if expected.outcome is None:
                expected.future = self._loop.create_future()
                # The ledger's thread sets the outcome first and looks for the future then: one of us sees the other.
                if expected.outcome is None:
                    await expected.future
            assert expected.outcome is not None
            return expected.outcome
        finally:
            self.forget(job_id)

    def __call__(self, results: list[tuple[NewJob, Outcome]]) -> None:
        awaited: list[Expected] = []
        for job, outcome in results:
            expected = self._open.get(job.id)
            if expected is None:
                continue
            expected.outcome = outcome
            if expected.future is not None or (expected.unless_written is not None and not expected.written):
                awaited.append(expected)
        if not awaited:
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver, awaited)
        except RuntimeError:
            return  # the loop is closed: the jobs stay, their clients are gone

    def _deliver(self, awaited: list[Expected]) -> None:
        for expected in awaited:
            if expected.future is not None and not expected.future.done():
                expected.future.set_result(None)
            if expected.unless_written is not None and not expected.unless_written.done():
                expected.unless_written.set_result(None)
