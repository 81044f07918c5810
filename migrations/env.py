"""Alembic's entry: migrates the connection it is given, or the URL of the ini file or ``-x url=…``."""

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from jobs.stores.tables import metadata


def configured_url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise SystemExit("no database named: alembic -c migrations/alembic.ini -x url=sqlite:///FILE upgrade head")
    return url


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    given: Connection | None = context.config.attributes.get("connection")
    if context.is_offline_mode():
        context.configure(url=configured_url(), target_metadata=metadata, literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
    elif given is not None:
        migrate(given)
    else:
        with create_engine(configured_url(), poolclass=NullPool).connect() as connection:
            migrate(connection)
            connection.commit()


main()
