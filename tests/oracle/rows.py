"""Counts rows in the local stack's ledger file, read-only: what the API would fold or hide shows here."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from jobs.frames import unpack_results
from jobs.states import Outcome
from tests.oracle.view import Rows


def count_rows(file: Path) -> Rows:
    """``file`` is the SQLite ledger; the service may be running. FileNotFoundError if there is none."""
    if not file.is_file():
        raise FileNotFoundError(file)
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        connection.execute("BEGIN")  # one snapshot for all of it
        return Rows(_jobs(connection), _results(connection), _terminal_events(connection))


def _jobs(connection: sqlite3.Connection) -> Counter[tuple[str, str]]:
    sql = "SELECT tenant, idempotency_key FROM jobs WHERE idempotency_key IS NOT NULL"
    return Counter((tenant, key) for tenant, key in connection.execute(sql))


def _results(connection: sqlite3.Connection) -> Counter[tuple[str, int]]:
    """By (job, item): how often it was decided, by outcome bytes or by result lines, whichever is more."""
    decided: Counter[tuple[str, int]] = Counter()
    for job, items, outcomes in connection.execute(
        "SELECT job, items, outcomes FROM chunks WHERE outcomes IS NOT NULL"
    ):
        indexes = [index for start, stop in json.loads(items) for index in range(start, stop)]
        pairs = zip(indexes, outcomes, strict=True)
        decided.update((job, index) for index, outcome in pairs if outcome != Outcome.MOVED)
    lines: Counter[tuple[str, int]] = Counter()
    for job, data in connection.execute("SELECT job, data FROM results"):
        for header, _ in unpack_results(data):
            lines.update((job, index) for start, stop in header.items for index in range(start, stop))
    return decided | lines  # the larger of the two


def _terminal_events(connection: sqlite3.Connection) -> Counter[str]:
    return Counter(job for (job,) in connection.execute("SELECT job FROM events WHERE terminal"))
