"""Databases for the tests of the Postgres store, on the one server of the test run."""

import functools
import itertools
from typing import Any

import psycopg2

from jobs.store import Store
from jobs.stores.postgres import PostgresStore
from jobs.stores.postgres_connection import PostgresLimits
from jobs.stores.tables import metadata
from migrations.run import upgrade
from tests.contracts.clock import ManualClock
from tests.services import postgres
from tests.services.running import needed

_numbers = itertools.count()

# Rows are deleted rather than tables truncated or databases made of a template: 5 ms instead of 200.
_EMPTY = "; ".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables))


class PostgresAdapter:
    """`store_kit.Adapter` on a database without rows; the same one for each test."""

    def __init__(self) -> None:
        self.url = empty_database()

    def open(self, clock: ManualClock | None, limits: PostgresLimits | None = None) -> Store:
        return PostgresStore(self.url, clock, limits=limits)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with _connection(self.url).cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return [tuple(map(_plain, row)) for row in cursor.fetchall()] if cursor.description else []


def empty_database() -> str:
    """The URL of a migrated database without rows, the same one each time."""
    url = _shared_database()
    with _connection(url).cursor() as cursor:
        cursor.execute(_EMPTY)
    return url


def new_database(*, migrated: bool) -> str:
    """The URL of a database of its own."""
    service = needed("postgres")
    name = f"contracts_{next(_numbers)}"
    with _connection(postgres.url(service, "postgres")).cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    url = postgres.url(service, name)
    if migrated:
        upgrade(url)
    return url


def find_deadlocks_at_once(url: str) -> None:
    """Instead of after a second; for connections opened from now on."""
    with _connection(url).cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET deadlock_timeout = '50ms'")


def connect(url: str) -> Any:
    """A driver's connection that commits each statement."""
    connection = psycopg2.connect(url.replace("+psycopg2", ""))
    connection.autocommit = True
    return connection


@functools.cache
def _shared_database() -> str:
    url = new_database(migrated=True)
    find_deadlocks_at_once(url)
    return url


@functools.cache
def _connection(url: str) -> Any:
    connection = connect(url)
    with connection.cursor() as cursor:  # a test that left a transaction open is to fail the next, not to hang it
        cursor.execute("SET lock_timeout = '5s'")
    return connection


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value
