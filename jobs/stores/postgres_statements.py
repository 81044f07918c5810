"""SQL over many rows in one step: the rows are bound as one array for each of their columns."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect, Executable
from sqlalchemy.dialects import postgresql

from jobs.errors import StoreError
from jobs.stores.postgres_connection import DRIVER_ERRORS, in_transaction, wrapped
from jobs.stores.rows import Row
from jobs.stores.tables import metadata

_DIALECT: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]

_LOCK_JOBS = "SELECT FROM jobs WHERE id = ANY(%s::text[]) ORDER BY id FOR NO KEY UPDATE; "
"""Goes ahead of a statement in the same round trip; that statement has a snapshot of its own, taken under the locks.
NO KEY: chunks and attempts that refer to a job may be inserted beside."""


class GroupSql:
    """A statement over a list of rows: ``{rows}`` in it becomes the arrays as a table ``d`` with these columns, each
    given as ``name:type``. Placeholders before it are the head, those behind it the tail."""

    def __init__(self, columns: str, sql: str) -> None:
        typed = [column.split(":", 1) for column in columns.split()]
        self._build(typed, sql)

    def _build(self, typed: Sequence[Sequence[str]], sql: str) -> None:
        arrays = ", ".join(f"%s::{type_}[]" for _, type_ in typed)
        names = ", ".join(f'"{name}"' for name, _ in typed)
        self.types = [type_ for _, type_ in typed]
        self.sql = sql.replace("{rows}", f"unnest({arrays}) AS d({names})")

    def call(self, rows: Sequence[Row], head: Row = (), tail: Row = ()) -> tuple[str, Row]:
        return self.sql, (*head, *(list(column) for column in zip(*rows, strict=True)), *tail)


class InsertSql(GroupSql):
    """Insertion of a list of rows, in their order; the types are those of the table."""

    def __init__(self, table: str, columns: str, then: str = "") -> None:
        names = columns.split()
        made = metadata.tables[table].c
        typed = [(name, made[name].type.compile(dialect=_DIALECT)) for name in names]
        quoted = ", ".join(f'"{name}"' for name in names)
        selected = ", ".join(f'd."{name}"' for name in names)
        self._build(typed, f"INSERT INTO {table} ({quoted}) SELECT {selected} FROM {{rows}} {then}")


class Statements:
    """Runs SQL on the connection of one transaction. ``at`` is the store's time when the transaction began."""

    def __init__(self, connection: Connection, at: datetime) -> None:
        self._connection = connection
        self.at = at

    def run(self, sql: str, parameters: Row = ()) -> CursorResult[Any]:
        try:
            return self._connection.exec_driver_sql(sql, parameters)
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    def rows(self, sql: str, parameters: Row = (), *, locking: Collection[str] = ()) -> Sequence[Any]:
        """`locking` names jobs whose rows are locked first, by id."""
        if locking:
            sql, parameters = _LOCK_JOBS + sql, (list(locking), *parameters)
        try:
            return self._connection.exec_driver_sql(sql, parameters).fetchall()
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    def change(self, group: GroupSql, rows: Sequence[Row], head: Row = (), tail: Row = ()) -> int:
        """Gives the number of rows changed."""
        return self.run(*group.call(rows, head, tail)).rowcount if rows else 0

    def select(
        self, group: GroupSql, rows: Sequence[Row], head: Row = (), tail: Row = (), *, locking: Collection[str] = ()
    ) -> Sequence[Any]:
        return self.rows(*group.call(rows, head, tail), locking=locking) if rows else []

    def core(self, statement: Executable) -> CursorResult[Any]:
        """Portable SQL, where nothing is in a hurry."""
        try:
            return self._connection.execute(statement)
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    @property
    def alive(self) -> bool:
        """Nothing has failed in it since it began, or since the savepoint that undid the failure."""
        return in_transaction(self._connection)

    @property
    def connected(self) -> bool:
        return not self._connection.invalidated


def expect(changed: int, wanted: int, what: str) -> None:
    """Guards of a selection and of its change must agree: the rows were locked in between."""
    if changed != wanted:
        raise StoreError(f"{what}: {changed} rows changed where {wanted} were to; the transaction is undone")
