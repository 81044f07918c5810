"""Brings a ledger's tables up to date, without an ini file: what the local stack does at its start."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

HERE = Path(__file__).parent


def upgrade(target: str | Engine, revision: str = "head") -> None:
    """`target` is a database URL or an engine. Does nothing when the tables are those of `revision` already."""
    engine = create_engine(target, poolclass=NullPool) if isinstance(target, str) else target
    with engine.connect() as connection:
        command.upgrade(_config(connection), revision)
        connection.commit()
    if isinstance(target, str):
        engine.dispose()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
