"""Migrations make exactly the tables that the stores use, can be run again, and go back."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool

from jobs.errors import StoreError
from jobs.stores.tables import metadata
from migrations.run import _config, upgrade
from tests.contracts.store_kit import make_kit, new_job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a folder" / "ledger.db"


@pytest.fixture
def url(path: Path) -> str:
    path.parent.mkdir()
    return f"sqlite:///{path}"


def schema(path: Path) -> dict[str, str]:
    """Every object's SQL by name, but for its spelling: spaces, quotes, and brackets around a default."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    plain = {name: "".join(sql.replace('"', "").split()) for name, sql in rows if name != "alembic_version"}
    return {name: sql.replace("DEFAULT(FALSE)", "DEFAULTFALSE") for name, sql in plain.items()}


def parts(sql: str) -> list[str]:
    """The columns and constraints of a CREATE statement, in any order."""
    head, _, body = sql.partition("(")
    found, depth, start = [head], 0, 0
    for at, sign in enumerate(body):
        depth += (sign == "(") - (sign == ")")
        if (sign == "," and depth == 0) or depth < 0:
            found.append(body[start:at])
            start = at + 1
            if depth < 0:
                break
    return [*sorted(found), body[start:]]


def go(url: str, movement: Any, revision: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        movement(_config(connection), revision)
        connection.commit()


def test_migrations_make_the_tables_of_the_metadata(url: str, path: Path, tmp_path: Path) -> None:
    upgrade(url)
    direct = tmp_path / "direct.db"
    metadata.create_all(create_engine(f"sqlite:///{direct}", poolclass=NullPool))
    migrated, made = schema(path), schema(direct)
    assert migrated.keys() == made.keys()
    for name in made:
        assert parts(migrated[name]) == parts(made[name]), name


def test_nothing_is_left_to_generate(url: str) -> None:
    upgrade(url)
    with create_engine(url, poolclass=NullPool).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_comparison_would_notice(url: str, path: Path) -> None:
    upgrade(url)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP INDEX events_one_terminal")
        connection.execute("ALTER TABLE bad_records ADD COLUMN extra TEXT")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), metadata)
    assert sorted(str(change[0]) for change in found) == ["add_index", "remove_column"]


def test_upgrading_again_changes_nothing(tmp_path: Path) -> None:
    kit = make_kit("sqlite", tmp_path)
    path = tmp_path / "ledger.db"
    job = kit.submitted(2)
    before, made = kit.job(job), schema(path)
    kit.store.close()
    written: list[str] = []
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "before_cursor_execute", lambda *call: written.append(call[2]))
    for _ in range(2):
        upgrade(engine)
    kit.reopen()
    assert kit.job(job) == before
    assert schema(path) == made
    assert [sql for sql in written if not sql.lstrip().startswith(("SELECT", "PRAGMA"))] == []
    kit.store.close()


def test_down_to_nothing_and_up_again(url: str, path: Path) -> None:
    upgrade(url)
    made = schema(path)
    go(url, command.downgrade, "base")
    assert schema(path) == {}
    upgrade(url)
    assert schema(path) == made


def test_each_revision_goes_up_down_and_up(url: str, path: Path) -> None:
    script = ScriptDirectory(str(Path(upgrade.__code__.co_filename).parent))
    revisions = [revision.revision for revision in script.walk_revisions()][::-1]
    assert script.get_heads() == revisions[-1:]  # one line of history
    before: dict[str, str] = {}
    for revision in revisions:
        upgrade(url, revision)
        after = schema(path)
        go(url, command.downgrade, "-1")
        assert schema(path) == before, revision
        upgrade(url, revision)
        assert schema(path) == after, revision
        before = after


def test_a_ledger_of_a_later_program_is_refused(url: str, path: Path) -> None:
    upgrade(url)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    made = schema(path)
    with pytest.raises(StoreError, match=r"ledger\.db cannot be brought up to date.*9999"):
        upgrade(url)
    assert schema(path) == made


def test_what_is_no_ledger_is_refused(url: str, path: Path) -> None:
    path.write_bytes(b"no database, whatever its name says" * 40)
    with pytest.raises(StoreError, match=r"ledger\.db cannot be brought up to date"):
        upgrade(url)
    assert path.read_bytes().startswith(b"no database")


def test_a_migrated_ledger_takes_work(tmp_path: Path) -> None:
    kit = make_kit("sqlite", tmp_path)
    (submitted,) = kit.submit(new_job(1))
    assert not submitted.replayed
    kit.store.close()
