"""Connections to the ledger's SQLite file, and the one place where the driver's errors become ours."""

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from jobs.errors import BatchyardError, StoreError, Unavailable

BUSY_TIMEOUT_MS = 5_000
CHECKPOINT_PAGES = 4_000
"""16 MiB: a checkpoint costs the writer several syncs, so they are made a little rarer than the default."""

DRIVER_ERRORS = (sqlite3.Error, SQLAlchemyError, OverflowError, UnicodeEncodeError)
"""What sqlite3 raises of its own, and for values that it cannot store."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def wrapped(error: Exception) -> BatchyardError:
    """The driver's error as one of ours: Unavailable when a later try may succeed."""
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in _BUSY:
        return Unavailable(f"the ledger's file is locked by another process ({cause}); only one may own it")
    if primary == sqlite3.SQLITE_FULL:
        return Unavailable("the disk that holds the ledger is full; free some space", timedelta(seconds=30))
    return StoreError(f"the ledger could not be read or written: {type(cause).__name__}: {cause}")


def _open(path: Path, *, read_only: bool) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        # None: the driver begins nothing by itself; what begins is said below.
        connect_args={"check_same_thread": False, "isolation_level": None, "cached_statements": 512},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if read_only:
            connection.execute("PRAGMA query_only = TRUE")
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = TRUE")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA cache_size = -65536")

    return engine


def driver_connection(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class WriteConnection:
    """The only connection that writes; a lock lets one transaction in at a time.

    Transactions are begun and ended at the driver: they are the frame of every group, and SQLAlchemy's own would cost
    a sixth of the writer's time. Its connection, which runs the portable statements, knows nothing of them.
    """

    def __init__(self, path: Path) -> None:
        self._engine = _open(path, read_only=False)
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed on leaving, rolled back on an exception."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._engine.connect()
                connection = self._connection
                driver = driver_connection(connection)
                # A plain BEGIN that reads first and writes later fails at once when another process wrote in between.
                driver.execute("BEGIN IMMEDIATE")
            except DRIVER_ERRORS as error:
                self._drop()
                raise wrapped(error) from error
            try:
                yield connection
                if not driver.in_transaction:
                    raise Unavailable("the ledger's transaction was undone by an error inside it; try again")
                driver.execute("COMMIT")
            except BaseException as error:
                try:
                    driver.rollback()
                except DRIVER_ERRORS:
                    self._drop()
                if isinstance(error, DRIVER_ERRORS):
                    raise wrapped(error) from error
                raise

    def _drop(self) -> None:
        """After a failure that leaves the connection in doubt: the next transaction opens another."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._engine.dispose()


class ReadConnections:
    """Read-only connections, as many as are used at once; each statement sees one committed state."""

    def __init__(self, path: Path) -> None:
        self._engine = _open(path, read_only=True).execution_options(isolation_level="AUTOCOMMIT")
        self._idle: deque[Connection] = deque()
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        if self._closed:
            raise Unavailable("the ledger is closed")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._engine.connect()
        try:
            yield connection
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error
        finally:
            self._idle.append(connection)
            if self._closed:
                self.close()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._engine.dispose()
