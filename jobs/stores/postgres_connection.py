"""Connections to Postgres, and the one place where the driver's errors become ours.

Transactions are begun and ended in SQL, on connections that the driver and SQLAlchemy take for autocommitting: the
driver's own BEGIN would be a round trip more for every transaction. Reads need none.
"""

import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_INTRANS, new_type, register_type
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.pool import QueuePool

from jobs.errors import BatchyardError, OutcomeUnknown, StoreError, Unavailable, Undone

DRIVER_ERRORS = (SQLAlchemyError, psycopg2.Error, ValueError)
"""ValueError: what the driver raises for a text with a NUL or half of a surrogate pair."""


def _bytes(value: Any, cursor: Any) -> bytes | None:
    return None if value is None else bytes(psycopg2.BINARY(value, cursor))


_BYTES = new_type(psycopg2.BINARY.values, "BYTES", _bytes)
"""A bytea as bytes, where the driver gives a memoryview."""


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    """Of one process. Nothing waits longer than it says here for a connection, a lock or an answer."""

    writers: int = 4
    readers: int = 10
    connection: timedelta = timedelta(seconds=5)
    """For a new connection, and for one of those in use."""
    lock: timedelta = timedelta(seconds=3)
    """Longer than the server's deadlock_timeout (1 s), or a deadlock would pass for a slow writer."""
    statement: timedelta = timedelta(seconds=30)
    """And how long a transaction of ours that has fallen silent may hold its locks."""


def wrapped(error: Exception) -> BatchyardError:
    """The driver's error as one of ours: Unavailable when a later try may succeed."""
    if isinstance(error, PendingRollbackError):
        return _undone_inside()  # the connection was lost at an earlier statement
    if isinstance(error, PoolExhausted):
        return Unavailable("all connections to the ledger are in use; try again")
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "pgcode", None)
    said = " ".join(str(cause).split())
    if code in ("40P01", "40001"):
        return Undone(f"the ledger undid the transaction in favour of another: {said}")
    if code == "25P02":
        return _undone_inside()
    if code == "55P03":
        return Unavailable("rows of the ledger are locked by a transaction that does not end")
    if code == "57014":
        return Unavailable(f"the ledger took too long: {said}", timedelta(seconds=5))
    if code is not None and code.startswith("53"):  # disk, memory, connections
        return Unavailable(f"the ledger's server is out of resources: {said}", timedelta(seconds=30))
    if _lost(error) or code in ("57P01", "57P02", "57P03", "25006") or (code or "").startswith("08"):
        return Unavailable(f"the ledger's server cannot be reached: {said}")
    return StoreError(f"the ledger could not be read or written: {type(cause).__name__}: {said}")


def _lost(error: Exception) -> bool:
    """The connection is gone, or there never was one."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    cause = getattr(error, "orig", None) or error
    return isinstance(cause, psycopg2.OperationalError | psycopg2.InterfaceError) and cause.pgcode is None


def _undone_inside() -> Unavailable:
    return Unavailable("the ledger's transaction was undone by an error inside it; try again")


def _open(url: str, limits: PostgresLimits, *, read_only: bool) -> Engine:
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # inputs and results of clients are no text for a log
        poolclass=QueuePool,
        pool_size=limits.readers if read_only else limits.writers,
        max_overflow=0,
        pool_timeout=limits.connection.total_seconds(),
        pool_use_lifo=True,
        connect_args={
            "application_name": "batchyard",
            "connect_timeout": max(2, round(limits.connection.total_seconds())),
            # A server whose machine is gone does not answer at all: noticed within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
            "tcp_user_timeout": 30_000,
        },
    )
    settings = {
        "timezone": "'UTC'",
        "lock_timeout": _milliseconds(limits.lock),
        "statement_timeout": _milliseconds(limits.statement),
        "idle_in_transaction_session_timeout": _milliseconds(limits.statement),
        "jit": "off",  # it compiles for a quarter of a second what runs for a few milliseconds
        "default_transaction_read_only": "on" if read_only else "off",
        "default_transaction_isolation": "'read committed'",
        "synchronous_commit": "on",  # whatever the server's default: what is acknowledged is committed
    }

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        register_type(_BYTES, connection)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))

    @event.listens_for(engine, "checkout")
    def check(connection: Any, _: object, __: object) -> None:
        if _hung_up(connection):
            raise DisconnectionError  # and the pool opens another

    return engine


def _hung_up(connection: Any) -> bool:
    """The server has closed it since it was last used: costs no round trip. Nothing else makes an idle one readable."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _milliseconds(duration: timedelta) -> str:
    return str(duration // timedelta(milliseconds=1))


def _driver_status(connection: Connection) -> int:
    driver: Any = connection.connection.driver_connection
    status: int = driver.info.transaction_status
    return status


def in_transaction(connection: Connection) -> bool:
    """False after an error that nothing has undone yet, and when the connection is gone."""
    return not connection.invalidated and _driver_status(connection) == TRANSACTION_STATUS_INTRANS


class WriteConnections:
    def __init__(self, url: str, limits: PostgresLimits) -> None:
        self._engine = _open(url, limits, read_only=False)
        self._closed = False

    @contextmanager
    def begin(self) -> Iterator[tuple[Connection, datetime]]:
        """A transaction and the database's time at its begin: committed on leaving, rolled back on an exception."""
        if self._closed:
            raise Unavailable("the ledger is closed")
        connection, at = self._begun()
        try:
            yield connection, at
            _commit(connection)
        except BaseException as error:
            _roll_back(connection)
            if isinstance(error, SQLAlchemyError | psycopg2.Error):
                raise wrapped(error) from error
            raise
        finally:
            connection.close()

    def _begun(self) -> tuple[Connection, datetime]:
        connection = None
        try:
            connection = self._engine.connect()
            at: datetime = connection.exec_driver_sql("BEGIN; SELECT clock_timestamp()").scalar_one()
        except DRIVER_ERRORS as error:
            if connection is not None:
                connection.close()
            raise wrapped(error) from error
        return connection, at

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()


def _commit(connection: Connection) -> None:
    if not in_transaction(connection):
        raise _undone_inside()  # COMMIT would undo it and report success
    try:
        connection.exec_driver_sql("COMMIT")
    except DBAPIError as error:
        if _lost(error):
            raise OutcomeUnknown("the ledger's server was lost during a commit; it may have been written") from error
        raise


def _roll_back(connection: Connection) -> None:
    if connection.invalidated:
        return  # with the connection its transaction has ended
    try:
        connection.exec_driver_sql("ROLLBACK")
    except DRIVER_ERRORS:
        connection.invalidate()


class ReadConnections:
    """Read-only connections; each statement sees one committed state."""

    def __init__(self, url: str, limits: PostgresLimits) -> None:
        self._engine = _open(url, limits, read_only=True)
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        if self._closed:
            raise Unavailable("the ledger is closed")
        try:
            with self._engine.connect() as connection:
                yield connection
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()
