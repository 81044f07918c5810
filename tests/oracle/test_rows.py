"""The row counter, against a file with the service's own tables whose unique indexes were taken away."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from jobs.frames import ResultHeader, pack
from jobs.states import Outcome
from jobs.stores.tables import metadata
from tests.oracle.rows import count_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP INDEX jobs_idempotency")
        connection.execute("DROP INDEX events_one_terminal")
        connection.execute("INSERT INTO tenants VALUES ('t', 0)")
    return path


def add_job(path: Path, job: str, key: str | None) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO jobs (id, tenant, kind, model, version, priority, state, total, sealed, single, created_at,"
            " run_timeout_us, max_attempts, metadata, idempotency_key, input_bytes)"
            " VALUES (?, 't', 'inline', 'm', '1', 'normal', 'queued', 4, 1, 0, 0, 1, 3, '{}', ?, 0)",
            (job, key),
        )


def add_chunk(path: Path, job: str, seq: int, start: int, outcomes: list[Outcome], lines: list[int]) -> None:
    stop = start + len(outcomes)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO chunks (job, seq, tenant, model, version, items, first_item, end_item, count, alone, attempts,"
            " state, publish_at, outcomes) VALUES (?, ?, 't', 'm', '1', ?, ?, ?, ?, 0, 0, 'done', 0, ?)",
            (job, seq, f"[[{start},{stop}]]", start, stop, len(outcomes), bytes(outcomes)),
        )
        header = ResultHeader(kind="json", items=tuple((i, i + 1) for i in lines))
        connection.execute("INSERT INTO results VALUES (?, ?, ?)", (job, seq, pack(header, [b"1"] * len(lines))))


def test_counts_one_of_everything(file: Path) -> None:
    add_job(file, "job_1", "k")
    add_job(file, "job_2", None)
    add_chunk(file, "job_1", 0, 0, [Outcome.SUCCEEDED, Outcome.MOVED], [0])
    add_chunk(file, "job_1", 1, 1, [Outcome.SUCCEEDED], [1])
    rows = count_rows(file)
    assert rows.jobs == {("t", "k"): 1}
    assert rows.results == {("job_1", 0): 1, ("job_1", 1): 1}
    assert rows.terminal_events == {}


def test_sees_a_second_job_of_a_key(file: Path) -> None:
    add_job(file, "job_1", "k")
    add_job(file, "job_2", "k")
    assert count_rows(file).jobs == {("t", "k"): 2}


def test_sees_an_item_decided_in_two_chunks(file: Path) -> None:
    add_job(file, "job_1", "k")
    add_chunk(file, "job_1", 0, 0, [Outcome.SUCCEEDED, Outcome.SUCCEEDED], [0, 1])
    add_chunk(file, "job_1", 1, 1, [Outcome.CANCELLED], [])
    assert count_rows(file).results == {("job_1", 0): 1, ("job_1", 1): 2}


def test_sees_a_second_line_of_an_item(file: Path) -> None:
    add_job(file, "job_1", "k")
    add_chunk(file, "job_1", 0, 0, [Outcome.SUCCEEDED, Outcome.SUCCEEDED], [0, 1, 0])
    assert count_rows(file).results == {("job_1", 0): 2, ("job_1", 1): 1}


def test_sees_a_second_terminal_event(file: Path) -> None:
    add_job(file, "job_1", "k")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO events VALUES ('job_1', 1, 'job.running', 0, 0)")
        connection.execute("INSERT INTO events VALUES ('job_1', 2, 'job.succeeded', 1, 0)")
        connection.execute("INSERT INTO events VALUES ('job_1', 3, 'job.succeeded', 1, 0)")
    assert count_rows(file).terminal_events == {"job_1": 2}


def test_a_file_that_is_not_there_is_no_clean_ledger(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        count_rows(tmp_path / "ledger.db")
