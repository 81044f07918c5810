"""What only the SQLite adapter promises: durable commits, plans that never scan, and errors that say what to do."""

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from jobs.errors import StoreError, Unavailable
from jobs.records import ChunkRef
from jobs.stores import (
    sqlite_children,
    sqlite_connection,
    sqlite_counts,
    sqlite_due,
    sqlite_reads,
    sqlite_stop,
    sqlite_submit,
    sqlite_work,
)
from jobs.stores.sqlite import SqliteStore
from jobs.stores.sqlite_connection import ReadConnections, WriteConnection, driver_connection
from jobs.stores.sqlite_statements import GroupSql
from tests.contracts.store_kit import Kit, ManualClock, empty_sqlite, make_kit, new_job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    file.write_bytes(empty_sqlite())
    return file


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return make_kit("sqlite", tmp_path)


def test_a_commit_is_durable(path: Path) -> None:
    with WriteConnection(path).begin() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}


def test_a_transaction_takes_the_write_lock_at_once(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    with WriteConnection(path).begin(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_readers_cannot_write(path: Path) -> None:
    with pytest.raises(StoreError, match="readonly"), ReadConnections(path).use() as connection:
        connection.execute(text("DELETE FROM jobs"))


def test_read_connections_are_used_again(path: Path) -> None:
    readers = ReadConnections(path)
    seen = set()
    for _ in range(3):
        with readers.use() as connection:
            seen.add(id(driver_connection(connection)))
    with readers.use(), readers.use() as second:
        seen.add(id(driver_connection(second)))
    assert len(seen) == 2
    readers.close()
    with pytest.raises(Unavailable, match="closed"), readers.use():
        pass


def test_another_owner_makes_it_unavailable(kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_MS", 10)
    store = SqliteStore(tmp_path / "ledger.db", kit.clock)
    with kit.store.begin(), pytest.raises(Unavailable, match="only one may own it") as raised, store.begin():
        pass
    assert raised.value.retryable
    assert raised.value.retry_after
    with store.begin() as tx:  # and it recovers
        tx.ensure_tenant("later")
    store.close()


def test_a_full_disk_loses_the_transaction_and_nothing_else(path: Path) -> None:
    kit = make_kit("sqlite", path.parent)
    store = kit.store
    kept = kit.submitted(1)
    assert isinstance(store, SqliteStore)
    driver = driver_connection(store._writer._connection)  # type: ignore[arg-type]
    (pages,) = driver.execute("PRAGMA page_count").fetchone()
    driver.execute(f"PRAGMA max_page_count = {pages + 4}")
    big = [new_job(*[1] * 50) for _ in range(50)]
    with pytest.raises(Unavailable, match="disk") as raised, store.begin() as tx:
        tx.submit(big)
    assert raised.value.retry_after
    driver.execute("PRAGMA max_page_count = 1000000")
    assert kit.adapter.sql("SELECT id FROM jobs") == [(kept.id,)]
    kit.submit(*big)
    assert kit.claim(ChunkRef(kept.id, 0, 0)) == [1]


def test_what_sqlite_undoes_by_itself_is_not_taken_for_committed(kit: Kit) -> None:
    with pytest.raises(Unavailable, match="undone"), kit.store.begin() as tx:  # noqa: PT012
        kit.store._writer._connection.exec_driver_sql("ROLLBACK")  # type: ignore[attr-defined]
        with tx.savepoint():
            raise AssertionError("not reached")
    with pytest.raises(Unavailable, match="undone"), kit.store.begin() as tx:  # noqa: PT012
        tx.ensure_tenant("lost")
        kit.store._writer._connection.exec_driver_sql("ROLLBACK")  # type: ignore[attr-defined]
    assert ("lost",) not in kit.adapter.sql("SELECT id FROM tenants")


def test_a_file_without_tables_is_an_error_that_names_them(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "empty.db", ManualClock())
    with pytest.raises(StoreError, match="no such table"):
        store.backlog()
    store.close()


def test_values_that_sqlite_cannot_store_are_our_error(kit: Kit) -> None:
    for job in (new_job(1, traceparent="\ud800"), new_job(1, input_bytes=1 << 64)):
        with pytest.raises(StoreError), kit.store.begin() as tx:
            tx.submit([job])


def test_writers_in_many_threads_take_turns(kit: Kit) -> None:
    failed: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(10):
                kit.submit(new_job(1))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert kit.adapter.sql("SELECT count(*) FROM jobs") == [(80,)]


def statements() -> dict[str, str]:
    found: dict[str, str] = {}
    modules = (sqlite_children, sqlite_counts, sqlite_due, sqlite_reads, sqlite_stop, sqlite_submit, sqlite_work)
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, GroupSql):
                ((sql, _),) = value.calls([("x",) * value.width] * 4, (), ())
                found[f"{module.__name__}.{name}"] = sql
            elif isinstance(value, str) and value.lstrip().startswith(("SELECT", "UPDATE")) and "{" not in value:
                found[f"{module.__name__}.{name}"] = value
    return found


WHOLE_PARTIAL_INDEX = {
    "jobs.stores.sqlite_due._REPUBLISH",  # all that is queued
    "jobs.stores.sqlite_stop._LAPSED_CHUNKS",  # all that runs
}


@pytest.mark.parametrize("name", sorted(statements()))
def test_no_statement_scans_a_table(name: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    sql = statements()[name]
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
    connection.close()
    assert plan
    scans = [step for step in plan if step.startswith("SCAN ") and not allowed_scan(step)]
    if name in WHOLE_PARTIAL_INDEX:
        assert all("USING INDEX chunks_" in scan or "USING COVERING INDEX chunks_" in scan for scan in scans)
    else:
        assert scans == []


def allowed_scan(step: str) -> bool:
    """Of what the caller itself handed in, or of what a subquery found."""
    return "CONSTANT ROW" in step or "VIRTUAL TABLE" in step or "(subquery" in step or step == "SCAN d"
