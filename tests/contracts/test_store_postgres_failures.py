"""How the Postgres adapter fails: with an error that says what to do, and works again afterwards."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import OutcomeUnknown, StoreError, Unavailable
from jobs.ledger import Ledger
from jobs.records import ChunkRef
from jobs.states import JobState
from jobs.store import Store, Transaction
from jobs.stores.postgres import PostgresStore
from jobs.stores.postgres_connection import PostgresLimits
from tests.contracts.postgres_kit import PostgresAdapter, connect, new_database
from tests.contracts.store_kit import Kit, make_kit, new_job
from tests.services.service import free_port

SHORT = timedelta(milliseconds=200)
SECONDS = 20.0
OURS = "application_name = 'batchyard' AND datname = current_database()"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = make_kit("postgres", tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def limited(kit: Kit) -> Iterator[Callable[..., Store]]:
    """Another store on the same ledger, with limits of its own."""
    made: list[Store] = []

    def make(**limits: Any) -> Store:
        assert isinstance(kit.adapter, PostgresAdapter)
        made.append(kit.adapter.open(kit.clock, PostgresLimits(**limits)))
        return made[-1]

    yield make
    for store in made:
        store.close()


def ended(kit: Kit) -> None:
    """Ends all connections of the store, as a restart of the server does."""
    kit.adapter.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OURS}")


class TestLimits:
    def test_more_writers_than_connections(self, limited: Callable[..., Store]) -> None:
        store = limited(writers=1, connection=SHORT)
        with store.begin(), pytest.raises(Unavailable, match="in use") as raised, store.begin():
            pass
        assert raised.value.retry_after
        with store.begin() as tx:
            tx.ensure_tenant("later")

    def test_readers_do_not_use_up_the_writers(self, limited: Callable[..., Store]) -> None:
        store = limited(readers=1, connection=SHORT)
        with store._readers.use():  # type: ignore[attr-defined]
            with pytest.raises(Unavailable, match="in use"):
                store.backlog()
            with store.begin() as tx:
                tx.ensure_tenant("later")
        assert store.backlog() == []

    def test_a_statement_that_takes_too_long(self, limited: Callable[..., Store], kit: Kit) -> None:
        store = limited(statement=SHORT)
        with kit.store.begin() as tx:
            tx.ensure_tenant("held")
            with pytest.raises(Unavailable, match="too long") as raised, store.begin() as late:
                late.ensure_tenant("held")
        assert raised.value.retry_after
        assert ("held",) in kit.adapter.sql("SELECT id FROM tenants")

    def test_a_lock_that_is_not_given_up(self, limited: Callable[..., Store], kit: Kit) -> None:
        store = limited(lock=SHORT)
        job = kit.submitted(1)
        with kit.store.begin() as tx:
            tx.stop(None, job.id, JobState.CANCELLED, None, False)
            with pytest.raises(Unavailable, match="locked"), store.begin() as late:
                late.claim([ChunkRef(job.id, 0, 0)], kit.worker)

    def test_a_silent_transaction_gives_up_its_locks(self, limited: Callable[..., Store], kit: Kit) -> None:
        store = limited(statement=SHORT)
        with pytest.raises(Unavailable), store.begin() as tx:  # noqa: PT012
            tx.ensure_tenant("silent")
            until = time.monotonic() + SECONDS
            while kit.adapter.sql(f"SELECT 1 FROM pg_stat_activity WHERE {OURS} AND state = 'idle in transaction'"):
                assert time.monotonic() < until
                time.sleep(0.01)
            tx.ensure_tenant("again")
        assert ("silent",) not in kit.adapter.sql("SELECT id FROM tenants")


class TestLostConnections:
    def test_nobody_is_there(self) -> None:
        store = PostgresStore(f"postgresql+psycopg2://batchyard@127.0.0.1:{free_port()}/batchyard")
        with pytest.raises(Unavailable, match="reached"), store.begin():
            pass
        with pytest.raises(Unavailable, match="reached"):
            store.backlog()
        store.close()

    def test_a_restart_between_transactions_is_not_noticed(self, kit: Kit) -> None:
        kit.store.backlog()
        ended(kit)
        assert kit.store.backlog() == []
        kit.submitted(1)

    def test_one_inside_a_transaction_undoes_it(self, kit: Kit) -> None:
        with pytest.raises(Unavailable, match="undone") as raised, kit.store.begin() as tx:  # noqa: PT012
            tx.ensure_tenant("lost")
            ended(kit)
            with suppress(Unavailable), tx.savepoint():
                tx.ensure_tenant("after")
            with suppress(Unavailable):
                tx.ensure_tenant("after")
            tx.submit([new_job(1)])
        assert not isinstance(raised.value, OutcomeUnknown)
        assert ("lost",) not in kit.adapter.sql("SELECT id FROM tenants")
        kit.submitted(1)

    def test_one_just_before_the_commit_is_known_to_be_undone(self, kit: Kit) -> None:
        with pytest.raises(Unavailable), kit.store.begin() as tx:  # noqa: PT012
            tx.ensure_tenant("lost")
            ended(kit)
        assert ("lost",) not in kit.adapter.sql("SELECT id FROM tenants")


class TestCutInACommit:
    """The server ends the connection while COMMIT runs: what was in it may be there or not."""

    @pytest.fixture
    def url(self) -> str:
        return new_database(migrated=True)

    @pytest.fixture
    def admin(self, url: str) -> Iterator[Any]:
        connection = connect(url)
        yield connection.cursor()
        connection.close()

    def held_before(self, admin: Any) -> None:
        """A commit that does not get to writing."""
        admin.execute(
            """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql
                AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON tenants DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION hold()"""
        )

    def held_behind(self, admin: Any) -> None:
        """A commit that is written, and waits for a standby that there is not."""
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + SECONDS
        while True:
            admin.execute("SHOW synchronous_standby_names")
            if admin.fetchone() == ("nobody",):
                return
            assert time.monotonic() < until
            time.sleep(0.01)

    def cut(self, admin: Any) -> None:
        """Ends the connection that is committing."""
        until = time.monotonic() + SECONDS
        while True:
            admin.execute(
                f"""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE {OURS} AND query = 'COMMIT' AND state = 'active' AND wait_event IN ('PgSleep', 'SyncRep')"""
            )
            if admin.fetchone() == (1,):
                return
            assert time.monotonic() < until
            time.sleep(0.01)

    @pytest.mark.parametrize("written", [False, True])
    def test_nobody_knows(self, url: str, admin: Any, written: bool) -> None:
        store = PostgresStore(url)
        made: list[Transaction] = []

        def change(tx: Transaction) -> None:
            made.append(tx)
            tx.ensure_tenant("acme")

        ledger = Ledger(store)
        ledger.start()
        (self.held_behind if written else self.held_before)(admin)
        try:
            future = ledger.post(change)
            self.cut(admin)
            error = future.exception(SECONDS)
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
        assert isinstance(error, OutcomeUnknown)
        assert error.retryable
        assert len(made) == 1  # it is not for the ledger to make it again
        admin.execute("SELECT count(*) FROM tenants")
        assert admin.fetchone() == (int(written),)
        admin.execute("DROP TRIGGER IF EXISTS hold ON tenants")
        ledger.call(lambda tx: tx.ensure_tenant("acme"))  # and it goes on
        ledger.stop()
        store.close()


class TestTransactions:
    def test_a_failure_that_was_caught_is_not_taken_for_committed(self, kit: Kit) -> None:
        with pytest.raises(Unavailable, match="undone"), kit.store.begin() as tx:  # noqa: PT012
            tx.ensure_tenant("lost")
            with suppress(StoreError):
                tx.submit([new_job(1, tenant="nobody")])
        assert ("lost",) not in kit.adapter.sql("SELECT id FROM tenants")

    def test_a_savepoint_in_one_that_failed(self, kit: Kit) -> None:
        with pytest.raises(Unavailable, match="undone"), kit.store.begin() as tx:  # noqa: PT012
            with suppress(StoreError):
                tx.submit([new_job(1, tenant="nobody")])
            with tx.savepoint():
                raise AssertionError("not reached")

    def test_readers_cannot_write(self, kit: Kit) -> None:
        with pytest.raises(Unavailable), kit.store._readers.use() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql("DELETE FROM jobs")

    def test_a_database_without_tables_is_an_error_that_names_them(self) -> None:
        store = PostgresStore(new_database(migrated=False))
        with pytest.raises(StoreError, match=r"relation .* does not exist"):
            store.backlog()
        store.close()

    def test_a_closed_store(self, kit: Kit) -> None:
        kit.store.close()
        with pytest.raises(Unavailable, match="closed"), kit.store.begin():
            pass
        with pytest.raises(Unavailable, match="closed"):
            kit.store.backlog()

    def test_the_clock_is_the_databases(self, kit: Kit) -> None:
        assert isinstance(kit.adapter, PostgresAdapter)
        store = kit.adapter.open(None)
        before = datetime.now(UTC)
        with store.begin() as tx:
            tx.ensure_tenant("new")
        assert before <= store.now() <= datetime.now(UTC)
        ((written,),) = kit.adapter.sql("SELECT created_at FROM tenants WHERE id = 'new'")
        assert before <= written <= store.now()
        assert written.utcoffset() == timedelta(0)
        store.close()


def test_writers_in_many_threads_share_the_connections(kit: Kit) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len([pool.submit(kit.submit, new_job(1)).result(SECONDS) for _ in range(60)]) == 60
    ours = kit.adapter.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {OURS}")
    limits = PostgresLimits()
    assert ours[0][0] <= limits.writers + limits.readers
