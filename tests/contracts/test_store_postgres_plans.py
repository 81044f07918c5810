"""Postgres: migrations make the tables, and no statement of a movement or a read looks through a whole table."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import NullPool

from jobs.records import Attempt, ChunkRef, Finish, ItemError, NewChunk
from jobs.states import JobState, Outcome
from jobs.store import JobFilter, Transaction
from jobs.stores import (
    postgres_children,
    postgres_counts,
    postgres_due,
    postgres_reads,
    postgres_stop,
    postgres_submit,
    postgres_work,
)
from jobs.stores.postgres import PostgresStore
from jobs.stores.postgres_statements import GroupSql
from jobs.stores.tables import metadata
from migrations.run import _config, upgrade
from tests.contracts.postgres_kit import connect, new_database
from tests.contracts.store_kit import START, ManualClock, new_job, payload

MODULES = (
    postgres_children,
    postgres_counts,
    postgres_due,
    postgres_reads,
    postgres_stop,
    postgres_submit,
    postgres_work,
)


class TestMigrations:
    @pytest.fixture
    def url(self) -> str:
        return new_database(migrated=False)

    def test_they_make_the_tables_of_the_metadata(self, url: str) -> None:
        upgrade(url)
        with create_engine(url, poolclass=NullPool).connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid::regclass::text = 'chunks'"
            assert connection.exec_driver_sql(checks).scalar_one() == 5

    def test_up_down_and_up(self, url: str) -> None:
        for _ in range(2):
            upgrade(url)
            upgrade(url)  # does nothing
            engine = create_engine(url, poolclass=NullPool)
            with engine.connect() as connection:
                command.downgrade(_config(connection), "base")
                connection.commit()
                left = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
                assert connection.exec_driver_sql(left).scalars().all() == ["alembic_version"]

    def test_processes_that_start_together(self, url: str) -> None:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(upgrade, [url] * 4)) == [None] * 4


JOBS, RUNNING, QUEUED = 40_000, 39_700, 39_800
"""How many, and the numbers of the first that runs and the first that is queued; those before have ended."""
FILL = f"""
    INSERT INTO tenants SELECT 't' || n, now() FROM generate_series(0, 9) n;
    INSERT INTO workers SELECT 'wrk_' || n, 'w', 1, '{START}', '{START + timedelta(days=365)}'
        FROM generate_series(0, 9) n;
    INSERT INTO jobs (id, tenant, model, version, priority, state, total, succeeded, sealed, single, created_at,
            finished_at, run_timeout_us, max_attempts, metadata, idempotency_key, fingerprint, input_bytes, deadline_at)
        SELECT 'job_' || n, 't' || n % 10, 'm' || n % 3, '1', 'normal',
            CASE WHEN n < {RUNNING} THEN 'succeeded' WHEN n < {QUEUED} THEN 'running' ELSE 'queued' END,
            2, CASE WHEN n < {RUNNING} THEN 2 ELSE 0 END, TRUE, FALSE,
            '{START}'::timestamptz - n * INTERVAL '1 second', CASE WHEN n < {RUNNING} THEN '{START}'::timestamptz END,
            1, 3, '{{"a":"b"}}', 'key' || n, '\\x01', 10, '{START + timedelta(hours=1)}'
        FROM generate_series(0, {JOBS - 1}) n;
    INSERT INTO chunks (job, seq, tenant, model, version, items, first_item, end_item, count, alone, attempts, state,
            worker, publish_at, queue_deadline_at, outcomes)
        SELECT j.id, s, j.tenant, j.model, '1', '[[' || s || ',' || s + 1 || ']]', s, s + 1, 1, FALSE, 0,
            CASE j.state WHEN 'succeeded' THEN 'done' ELSE j.state END,
            CASE WHEN j.state <> 'queued' THEN 'wrk_1' END, j.created_at,
            CASE WHEN j.state = 'queued' THEN '{START + timedelta(hours=1)}'::timestamptz END,
            CASE WHEN j.state = 'succeeded' THEN '\\x01'::bytea END
        FROM jobs j, generate_series(0, 1) s;
    INSERT INTO payloads (job, seq, data) SELECT job, seq, '\\x00' FROM chunks;
    INSERT INTO results (job, seq, data) SELECT job, seq, '\\x00' FROM chunks WHERE state = 'done';
    INSERT INTO events (job, seq, type, terminal, at)
        SELECT id, 1, 'job.succeeded', TRUE, '{START}' FROM jobs WHERE state = 'succeeded';
"""

SMALL = {"api_keys", "tenants", "workers"}


class Undo(Exception):
    pass


@contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    """All that is run meanwhile, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, sql: str, parameters: Any, ___: Any, ____: bool) -> None:
        seen.append((sql, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def everything(store: PostgresStore, clock: ManualClock) -> None:
    """Each movement and each read once. Nothing is kept."""
    with suppress(Undo), store.begin() as tx:
        move(tx, clock)
        raise Undo
    store.job("t1", "job_1")
    store.jobs_by_id(["job_1", "job_2"])
    store.list_jobs("t1", JobFilter(), None, 20)
    store.results("job_1", 0, 2)
    store.results_of(["job_1", "job_2"])
    store.job_of_key("t1", "key1")
    store.api_key(b"x" * 32)
    store.workers()
    with store._readers.use() as connection:
        connection.exec_driver_sql(*postgres_reads._IDS.call([("job_1", 0)]))


def move(tx: Transaction, clock: ManualClock) -> None:
    queued = [ChunkRef(f"job_{n}", 0, 0) for n in range(QUEUED, QUEUED + 20)]
    running = [ChunkRef(f"job_{n}", 0, 0) for n in range(RUNNING, RUNNING + 20)]
    twins = [new_job(1, tenant="t1", idempotency_key=key, fingerprint=b"\1") for key in ("key1", "new")]
    tx.submit([*twins, new_job(tenant="t1")])
    assert tx.release(queued) == 0
    assert all(tx.claim(queued, "wrk_2"))
    assert all(tx.mark_alone(running))
    assert tx.hand_back([ChunkRef(ref.job, 1, 0) for ref in running]) == 20
    error = ItemError("handler_error", "no", False, "predict")
    child = NewChunk(0, ((0, 1),), payload(((0, 1),)), attempts=1, parent=0)
    finishes = [
        Finish(running[0], bytes([Outcome.MOVED]), b"x", (child,), (Attempt(0, 1, "w", "1", error, None, START),)),
        *(Finish(ref, bytes([Outcome.FAILED]), b"x") for ref in running[1:]),
    ]
    assert all(tx.finish(finishes, "wrk_1").accepted)
    assert len(tx.take_due(50, timedelta(seconds=30), [("t1", "m1")])) == 50
    assert tx.stop(None, f"job_{RUNNING + 50}", JobState.CANCELLED, None, False)
    assert tx.stop("t1", "job_1", JobState.CANCELLED, None, False)
    assert tx.heartbeat("wrk_1", timedelta(days=1))
    tx.force_stopped(timedelta(seconds=-1))
    tx.ensure_tenant("t1")


@pytest.fixture(scope="module")
def filled() -> str:
    url = new_database(migrated=True)
    connection = connect(url)
    connection.cursor().execute(FILL)
    connection.close()
    return url


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_hot_statement_scans_a_table(filled: str, analyzed: bool) -> None:
    connection = connect(filled)
    cursor = connection.cursor()
    if analyzed:
        cursor.execute("ANALYZE")
    clock = ManualClock()
    store = PostgresStore(filled, clock)
    with statements() as seen:
        everything(store, clock)
    store.close()
    hot = [(sql, parameters) for sql, parameters in seen if sql.startswith(("SELECT", "WITH", "INSERT", "UPDATE"))]
    assert {name for name, sql in named().items() if not any(sql in ran for ran, _ in hot)} <= SELDOM
    scans = {" ".join(sql.split()): found for sql, given in hot if (found := scanned(cursor, sql, given))}
    connection.close()
    assert scans == {}


SELDOM = {"_LATE_CHUNKS", "_LATE_JOBS", "_STILL_LATE", "_LAPSED_CHUNKS", "_STILL_LAPSED", "_REPUBLISH"}
"""What looks for the work of a lapse of time; its own test is below."""


@pytest.mark.parametrize("analyzed", [False, True])
def test_what_is_late_is_found_by_an_index(filled: str, analyzed: bool) -> None:
    connection = connect(filled)
    cursor = connection.cursor()
    if analyzed:
        cursor.execute("ANALYZE")
    clock = ManualClock(START + timedelta(hours=2))
    store = PostgresStore(filled, clock)
    with statements() as seen:
        for change in (lambda tx: tx.expire_due(20), lambda tx: tx.rescue(timedelta(days=-400))):
            with suppress(Undo), store.begin() as tx:
                assert change(tx)
                raise Undo
    store.close()
    wanted = [sql for name, sql in named().items() if name in SELDOM - {"_REPUBLISH"}]
    late = [(sql, given) for sql, given in seen if any(text in sql for text in wanted)]
    assert len(late) == len(wanted)
    # All that runs is a part of the table only; the index of it is read as a whole.
    scans = {" ".join(sql.split()): found for sql, given in late if (found := scanned(cursor, sql, given))}
    connection.close()
    assert scans == {}


def named() -> dict[str, str]:
    """The statements of the adapter's modules."""
    found: dict[str, str] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, GroupSql):
                found[name] = value.sql
            elif (
                isinstance(value, str) and value.lstrip().startswith(("SELECT", "UPDATE", "WITH")) and "{" not in value
            ):
                found[name] = value
    return {name: sql for name, sql in found.items() if name != "_CHUNK_RESULTS"}


def scanned(cursor: Any, sql: str, parameters: Any) -> list[str]:
    """Tables that the plan of the statement (and of the one ahead of it, which locks jobs) reads from end to end."""
    tables: list[str] = []
    given = list(parameters) if isinstance(parameters, tuple) else parameters
    for part in sql.split("; "):
        mine: Any = given
        if isinstance(given, list):
            mine, given = given[: part.count("%s")], given[part.count("%s") :]
        cursor.execute(f"EXPLAIN (FORMAT JSON) {part}", mine)
        plan = cursor.fetchone()[0]
        tables += walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return [table for table in tables if table not in SMALL]


def walk(node: dict[str, Any]) -> list[str]:
    here = [node["Relation Name"]] if node["Node Type"] == "Seq Scan" else []
    return here + [table for child in node.get("Plans", ()) for table in walk(child)]
