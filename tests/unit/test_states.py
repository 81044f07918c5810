"""The final state of a job: the rule, its SQL, and what no movement may ever do."""

import itertools
import sqlite3

import pytest

from jobs.states import CHUNK_TRANSITIONS, FINAL, JOB_TRANSITIONS, ChunkState, JobState, Outcome, final_state
from jobs.stores.sqlite_counts import Delta, final_case

STOPS = (None, JobState.CANCELLED, JobState.EXPIRED)


@pytest.mark.parametrize(
    ("succeeded", "failed", "cancelled", "expired", "stop_as", "job_error", "state"),
    [
        (0, 0, 0, 0, None, False, JobState.SUCCEEDED),  # no items
        (3, 0, 0, 0, None, False, JobState.SUCCEEDED),
        (2, 1, 0, 0, None, False, JobState.PARTIALLY_FAILED),
        (0, 3, 0, 0, None, False, JobState.FAILED),
        (0, 0, 0, 3, None, False, JobState.EXPIRED),
        (1, 0, 0, 2, None, False, JobState.PARTIALLY_FAILED),  # by the queue clock, which stops no job
        (0, 1, 0, 2, None, False, JobState.FAILED),
        (1, 1, 0, 1, None, False, JobState.PARTIALLY_FAILED),
        (2, 0, 1, 0, JobState.CANCELLED, False, JobState.CANCELLED),
        (0, 2, 1, 0, JobState.CANCELLED, False, JobState.CANCELLED),
        (3, 0, 0, 0, JobState.CANCELLED, False, JobState.SUCCEEDED),  # the cancel came too late to end an item
        (2, 1, 0, 0, JobState.CANCELLED, False, JobState.PARTIALLY_FAILED),
        (2, 0, 0, 1, JobState.EXPIRED, False, JobState.EXPIRED),
        (0, 2, 0, 1, JobState.EXPIRED, False, JobState.EXPIRED),
        (3, 0, 0, 0, JobState.EXPIRED, False, JobState.SUCCEEDED),
        (0, 0, 1, 1, JobState.CANCELLED, False, JobState.CANCELLED),
        (0, 0, 1, 1, JobState.EXPIRED, False, JobState.EXPIRED),
        (3, 0, 0, 0, None, True, JobState.FAILED),  # a job-level error is stronger than anything
        (2, 0, 1, 0, JobState.CANCELLED, True, JobState.FAILED),
        (0, 0, 0, 3, JobState.EXPIRED, True, JobState.FAILED),
    ],
)
def test_final_state(
    succeeded: int,
    failed: int,
    cancelled: int,
    expired: int,
    stop_as: JobState | None,
    job_error: bool,
    state: JobState,
) -> None:
    counts = {"succeeded": succeeded, "failed": failed, "cancelled": cancelled, "expired": expired}
    assert final_state(**counts, stop_as=stop_as, job_error=job_error) is state


def test_the_sql_of_the_store_says_the_same() -> None:
    expression = final_case("?1", "?2", "?3", "?4", "?5", "?6")
    seen = set()
    with sqlite3.connect(":memory:") as connection:
        for counts in itertools.product(range(3), repeat=4):
            for stop_as, job_error in itertools.product(STOPS, (False, True)):
                named = dict(zip(("succeeded", "failed", "cancelled", "expired"), counts, strict=True))
                expected = final_state(**named, stop_as=stop_as, job_error=job_error)
                bound = (*counts, stop_as and stop_as.value, "{}" if job_error else None)
                assert connection.execute(f"SELECT {expression}", bound).fetchone() == (expected.value,), bound
                seen.add(expected)
    assert seen == FINAL


def test_a_final_job_never_reopens() -> None:
    for name, (sources, targets) in JOB_TRANSITIONS.items():
        assert not sources & FINAL, name
        assert sources, name
        assert targets <= FINAL or targets == {JobState.RUNNING}, name
    assert set(JobState) - FINAL == {JobState.QUEUED, JobState.RUNNING}


def test_a_done_chunk_never_reopens() -> None:
    assert all(source is not ChunkState.DONE for source, _ in CHUNK_TRANSITIONS.values())
    reached = {target for _, target in CHUNK_TRANSITIONS.values()}
    assert reached == set(ChunkState)


def test_an_outcome_fits_a_byte_and_keeps_its_number() -> None:
    """They are stored: a number that changes would change what has become of items long ago."""
    assert {outcome.name: outcome.value for outcome in Outcome} == {
        "PENDING": 0,
        "SUCCEEDED": 1,
        "FAILED": 2,
        "CANCELLED": 3,
        "EXPIRED": 4,
        "MOVED": 5,
    }


@pytest.mark.parametrize("outcomes", list(itertools.product(Outcome, repeat=3)))
def test_a_delta_counts_one_by_one_as_it_does_all_at_once(outcomes: tuple[Outcome, ...]) -> None:
    single, together = Delta(), Delta()
    for outcome in outcomes:
        single.add(outcome, 1)
    together.add_all(bytes(outcomes))
    assert single == together
    counted = together.succeeded + together.failed + together.cancelled + together.expired
    assert counted == sum(outcome not in (Outcome.PENDING, Outcome.MOVED) for outcome in outcomes)
