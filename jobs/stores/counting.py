"""How outcomes become counts and counts a final state: what all SQL stores share of it."""

from dataclasses import dataclass

from jobs.states import JobState, Outcome

OUTCOME_OF_STOP = {JobState.CANCELLED: Outcome.CANCELLED, JobState.EXPIRED: Outcome.EXPIRED}


def final_case(succeeded: str, failed: str, cancelled: str, expired: str, stop_as: str, error: str) -> str:
    """jobs.states.final_state in SQL, over these expressions."""
    return f"""CASE
        WHEN {error} IS NOT NULL THEN 'failed'
        WHEN {stop_as} = 'cancelled' AND {cancelled} > 0 THEN 'cancelled'
        WHEN {stop_as} = 'expired' AND {expired} > 0 THEN 'expired'
        WHEN {failed} = 0 AND {expired} = 0 THEN 'succeeded'
        WHEN {expired} > 0 AND {succeeded} = 0 AND {failed} = 0 THEN 'expired'
        WHEN {succeeded} = 0 THEN 'failed'
        ELSE 'partially_failed' END"""


@dataclass(slots=True)
class Delta:
    """What is to be added to one job's counts and usage."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    engine_us: int = 0
    output_bytes: int = 0

    def add(self, outcome: Outcome, count: int) -> None:
        """MOVED items stay undecided: their child chunk counts them."""
        if outcome is Outcome.SUCCEEDED:
            self.succeeded += count
        elif outcome is Outcome.FAILED:
            self.failed += count
        elif outcome is Outcome.CANCELLED:
            self.cancelled += count
        elif outcome is Outcome.EXPIRED:
            self.expired += count

    def add_all(self, outcomes: bytes) -> None:
        """One outcome a byte."""
        self.succeeded += outcomes.count(1)
        self.failed += outcomes.count(2)
        self.cancelled += outcomes.count(3)
        self.expired += outcomes.count(4)

    @property
    def row(self) -> tuple[int, int, int, int, int, int]:
        return (self.succeeded, self.failed, self.cancelled, self.expired, self.engine_us, self.output_bytes)


def sums(job: str) -> tuple[str, str, str, str]:
    """The four counts of a job (alias) after a delta (alias d) is added, as SQL."""
    succeeded, failed, cancelled, expired = (
        f"({job}.{name} + d.{name})" for name in ("succeeded", "failed", "cancelled", "expired")
    )
    return succeeded, failed, cancelled, expired
