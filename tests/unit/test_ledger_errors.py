"""The ledger's writer: nobody is hurt by a stranger of the group."""

from typing import Any

import pytest

from jobs.errors import BatchyardError, StoreError, Unavailable
from tests.contracts.store_kit import new_job
from tests.unit import ledger_kit
from tests.unit.ledger_kit import SECONDS, Bench, bad_job, kinds

make, bench = ledger_kit.make, ledger_kit.bench


class TestErrors:
    def test_a_bad_submission_fails_alone(self, bench: Bench) -> None:
        jobs = [new_job(1), bad_job(), new_job(1), bad_job(), new_job(1)]
        with bench.held():
            bench.submit(*jobs)
            asked = bench.ledger.post(lambda tx: "made")
        answered = bench.desk.next()
        bench.settled()
        assert kinds(answered) == ["inserted", "StoreError", "inserted", "StoreError", "inserted"]
        assert [job for job, _ in answered] == jobs
        assert bench.written(*jobs) == [True, False, True, False, True]
        assert bench.committed == [[jobs[0].id, jobs[2].id, jobs[4].id]]
        assert asked.result(0) == "made"
        assert bench.store.commits == 2  # still one for the group

    def test_a_bad_submission_by_itself(self, bench: Bench) -> None:
        bench.submit(bad_job())
        assert kinds(bench.desk.next()) == ["StoreError"]
        assert bench.committed == []

    def test_an_error_that_is_not_ours_is_wrapped(self, bench: Bench) -> None:
        broken, good = new_job(1, metadata={"a": object()}), new_job(1)
        with bench.held():
            bench.submit(broken, good)
        answered = bench.desk.next()
        assert kinds(answered) == ["StoreError", "inserted"]
        assert "TypeError" in str(answered[0][1])
        bench.submit(broken)
        assert kinds(bench.desk.next()) == ["StoreError"]

    def test_a_change_that_fails_undoes_its_own_part_only(self, bench: Bench) -> None:
        first, lost, last = new_job(1), new_job(1), new_job(1)

        def fail(tx: Any, error: Exception) -> None:
            tx.submit([lost])
            raise error

        class OfItsOwn(Exception):
            pass

        submitted = new_job(1)
        with bench.held():
            bench.submit(submitted)
            made = [bench.ledger.post(lambda tx: tx.submit([first]))]
            failed = [
                bench.ledger.post(lambda tx, error=error: fail(tx, error))
                for error in (OfItsOwn("mine"), StoreError("data"), Unavailable("later"))
            ]
            made.append(bench.ledger.post(lambda tx: tx.submit([last])))
        assert kinds(bench.desk.next()) == ["inserted"]
        for future, error in zip(failed, (OfItsOwn, StoreError, Unavailable), strict=True):
            with pytest.raises(error):
                future.result(SECONDS)
        assert [len(future.result(SECONDS)) for future in made] == [1, 1]
        assert bench.written(submitted, first, lost, last) == [True, True, False, True]

    def test_call_raises_what_the_change_raised(self, bench: Bench) -> None:
        error = LookupError("this very one")

        def fail(_: object) -> None:
            raise error

        with pytest.raises(LookupError) as caught:
            bench.ledger.call(fail)
        assert caught.value is error

    @pytest.mark.parametrize("error", [Unavailable("disk full"), StoreError("corrupt"), OSError("gone")])
    def test_a_commit_that_fails_is_everybodys(self, bench: Bench, error: Exception) -> None:
        jobs = [new_job(1), new_job(1)]
        with bench.held():
            bench.submit(*jobs)
            asked = bench.ledger.post(lambda tx: "made")
            after_held = bench.ledger.post(lambda tx: setattr(bench.store, "failing_commit", error))
        answered = bench.desk.next()
        wanted = type(error).__name__ if isinstance(error, BatchyardError) else "StoreError"
        assert kinds(answered) == [wanted, wanted]
        for future in (asked, after_held):
            with pytest.raises(BatchyardError) as caught:
                future.result(SECONDS)
            assert type(caught.value).__name__ == wanted
        assert bench.written(*jobs) == [False, False]
        assert bench.committed == []
        assert "commit_publish" not in bench.story
        bench.store.failing_commit = None
        bench.submit(jobs[0])
        assert kinds(bench.desk.next()) == ["inserted"]  # the writer goes on

    def test_a_transaction_that_cannot_begin_is_tried_once(self, bench: Bench) -> None:
        bench.store.failing_begin = Unavailable("locked by another process")
        begun = bench.store.begun
        bench.submit(new_job(1))
        assert kinds(bench.desk.next()) == ["Unavailable"]
        assert bench.store.begun == begun + 1
        with pytest.raises(Unavailable):
            bench.ledger.call(lambda tx: None)
        bench.store.failing_begin = None
        assert bench.ledger.call(lambda tx: "again") == "again"

    def test_a_commit_that_failed_is_not_made_again(self, bench: Bench) -> None:
        """It may have taken effect: only who asked can say whether to ask again."""
        made: list[int] = []
        with bench.held():
            bench.ledger.post(lambda tx: setattr(bench.store, "failing_commit", StoreError("commit")))
            asked = bench.ledger.post(lambda tx: made.append(1))
        with pytest.raises(StoreError):
            asked.result(SECONDS)
        assert made == [1]
