"""Brings a ledger's tables up to date, without an ini file: what the local stack does at its start."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from jobs.errors import StoreError

HERE = Path(__file__).parent

_TURN = 0x6279_6D69  # the advisory lock of migrations, as good as any number that nobody else uses


def upgrade(target: str | Engine, revision: str = "head") -> None:
    """`target` is a database URL or an engine. Does nothing when the tables are those of `revision` already.
    StoreError for what is no ledger, or one that a later version of this program has made."""
    engine = create_engine(target, poolclass=NullPool) if isinstance(target, str) else target
    try:
        with engine.connect() as connection:
            _wait_for_turn(connection)
            command.upgrade(_config(connection), revision)
            connection.commit()
    except (SQLAlchemyError, CommandError) as error:
        reason = getattr(error, "orig", None) or error
        raise StoreError(f"the ledger {engine.url.database} cannot be brought up to date: {reason}") from error
    finally:
        if isinstance(target, str):
            engine.dispose()


def _wait_for_turn(connection: Connection) -> None:
    """Processes that start together migrate one after another. SQLite's file has one owner anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_TURN)))


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
