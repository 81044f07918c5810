"""Values that Postgres cannot store as they are: no text of it can have a NUL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import Refused, StoreError
from jobs.records import Attempt, Finish, ItemError
from jobs.states import JobState, Outcome
from jobs.store import JobFilter
from jobs.stores.cursor import Cursor
from tests.contracts.store_kit import START, Kit, make_kit, new_job


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = make_kit("postgres", tmp_path)
    yield made
    made.store.close()


def test_what_cannot_be_stored_is_our_error(kit: Kit) -> None:
    for fields in ({"traceparent": "\ud800"}, {"traceparent": "a\0b"}, {"input_bytes": 1 << 64}):
        with pytest.raises(StoreError), kit.store.begin() as tx:
            tx.submit([new_job(1, **fields)])


def test_what_a_model_says_is_kept_without_them(kit: Kit) -> None:
    (ref,) = kit.claimed(kit.submitted(1))
    error = ItemError("handler_error", "bad\0input", True, "predict")
    attempt = Attempt(0, 1, "wrk_1", "1", error, "Trace\0back", START)
    kit.finish(Finish(ref, bytes([Outcome.FAILED]), b"", attempts=(attempt,)))
    assert kit.adapter.sql("SELECT message, traceback FROM attempts") == [("bad\ufffdinput", "Trace\ufffdback")]
    with kit.store.begin() as tx:
        tx.keep_bad_record("by.default", 0, 0, "not a\0frame", b"\0")


def test_looking_for_one_finds_nothing(kit: Kit) -> None:
    kit.submitted(1)
    assert kit.store.job("acme", "a\0b") is None
    assert kit.store.job_of_key("acme", "\0") is None
    assert kit.store.jobs_by_id(["\0"]) == {}
    assert kit.store.results("\0", 0, 1) == []
    assert kit.store.results_of(["\0"]) == {"\0": []}
    with kit.store.begin() as tx:
        assert tx.stop(None, "\0", JobState.CANCELLED, None, False) is None
    assert kit.store.list_jobs("acme", JobFilter(model="\0"), None, 10).jobs == ()
    with pytest.raises(Refused):
        kit.store.list_jobs("acme", JobFilter(), str(Cursor(START, "\0")), 10)


@pytest.mark.parametrize("value", ["a\0b", "\\u0000", 'x","k":"v', "v"])
def test_metadata_may_have_them(kit: Kit, value: str) -> None:
    wanted = kit.submitted(1, metadata={"first": ':","k":"v"', "k": value, "last": "\0"})
    kit.submitted(1, metadata={"first": f'"k":"{value}"', "k": "other", "\0": value})
    page = kit.store.list_jobs("acme", JobFilter(metadata={"k": value}), None, 10)
    assert [job.id for job in page.jobs] == [wanted.id]
    assert page.jobs[0].metadata == wanted.metadata
