"""SQL over many rows in one step.

A statement's rows are bound as one VALUES list, padded to a power of two so that each statement is compiled a few
times only. What comes back is one row of JSON. The driver gives up the interpreter's lock at every step, and beside
busy threads taking it back costs far more than the row: hence one step a group, not one a row.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, CursorResult, Executable

from jobs.clock import to_micros
from jobs.errors import StoreError
from jobs.stores.rows import Row
from jobs.stores.sqlite_connection import DRIVER_ERRORS, driver_connection, wrapped

_LARGEST = 256
_SIZES = tuple(1 << power for power in range(_LARGEST.bit_length()))


class GroupSql:
    """A statement over a list of rows: ``{rows}`` in it becomes the VALUES list as a table ``d`` with these columns.

    Placeholders before it are the head, those behind it the tail. (No WITH: the driver counts the changed rows only of
    a statement that begins with its verb.)
    """

    def __init__(self, columns: str, sql: str) -> None:
        names = columns.split()
        self.width = len(names)
        named = ", ".join(f"column{number} AS {name}" for number, name in enumerate(names, 1))
        one = f"({','.join('?' * self.width)})"
        self._by_size = {
            size: sql.replace("{rows}", f"(SELECT {named} FROM (VALUES {','.join([one] * size)})) AS d")
            for size in _SIZES
        }
        self._padding = (None,) * self.width

    def calls(self, rows: Sequence[Row], head: Row, tail: Row) -> Iterator[tuple[str, list[Any]]]:
        """Statement and parameters, for at most 256 rows at a time."""
        for start in range(0, len(rows), _LARGEST):
            part = rows[start : start + _LARGEST]
            size = 1 << (len(part) - 1).bit_length()
            bound = [*head, *chain.from_iterable(part)]
            bound.extend(self._padding * (size - len(part)))
            bound.extend(tail)
            yield self._by_size[size], bound


def insert_sql(table: str, columns: str) -> GroupSql:
    """Insertion of a list of rows; the first column is never NULL, so the padding falls out."""
    names = columns.split()
    quoted = ", ".join(f'"{name}"' for name in names)
    return GroupSql(columns, f"INSERT INTO {table} ({quoted}) SELECT d.* FROM {{rows}} WHERE d.{names[0]} IS NOT NULL")


class Statements:
    """Runs SQL on the connection of one transaction. ``now`` is the store's time when the transaction began."""

    def __init__(self, connection: Connection, now: datetime) -> None:
        self._connection = connection
        self._driver = driver_connection(connection)
        self.at = now
        self.now = to_micros(now)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._driver.execute(sql, parameters)
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._driver.execute(sql, parameters).fetchall()
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    def change(self, group: GroupSql, rows: Sequence[Row], head: Row = (), tail: Row = ()) -> int:
        """Gives the number of rows changed."""
        return sum(self.run(sql, bound).rowcount for sql, bound in group.calls(rows, head, tail))

    def select(self, group: GroupSql, rows: Sequence[Row], head: Row = (), tail: Row = ()) -> list[Any]:
        """For statements that answer with one JSON array: its elements."""
        found: list[Any] = []
        for sql, bound in group.calls(rows, head, tail):
            found.extend(msgspec.json.decode(self.rows(sql, bound)[0][0]))
        return found

    def core(self, statement: Executable) -> CursorResult[Any]:
        """Portable SQL, where nothing is in a hurry."""
        try:
            return self._connection.execute(statement)
        except DRIVER_ERRORS as error:
            raise wrapped(error) from error

    @property
    def alive(self) -> bool:
        """SQLite undoes a whole transaction by itself after some errors (a full disk)."""
        return self._driver.in_transaction


def expect(changed: int, wanted: int, what: str) -> None:
    """Guards of a selection and of its change must agree: nobody else writes in between."""
    if changed != wanted:
        raise StoreError(f"{what}: {changed} rows changed where {wanted} were to; the transaction is undone")
