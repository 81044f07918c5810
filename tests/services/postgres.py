"""Postgres from Debian's package: a cluster of its own in a folder, reached over loopback."""

import shutil
import subprocess
from glob import glob
from pathlib import Path

from tests.services.service import Service, ServiceFailed, find, free_port, listens, spawn, unprivileged, wait_until

USER = "batchyard"
DATABASE = "batchyard"


def start(folder: Path, port: int | None = None) -> Service:
    """Makes the cluster if the folder has none; the same folder brings back the same data."""
    folder.mkdir(parents=True, exist_ok=True)
    user = unprivileged("postgres")
    data, log = folder / "data", folder / "postgres.log"
    log.touch()
    if user is not None:
        for path in (folder, log):
            shutil.chown(path, user)
    programs = sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)
    if not (data / "PG_VERSION").exists():
        made = subprocess.run(
            [find("initdb", *programs), "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise ServiceFailed(f"initdb failed:\n{made.stdout}{made.stderr}")
    port = port or free_port()
    # fsync stays on: what is proven here is to hold on a real machine.
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "max_connections": "200",
    }
    command = [find("postgres", *programs), "-D", str(data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    process = spawn(command, log, user=user, cwd=folder)
    wait_until(lambda: listens(port) and _answers(port), process, "Postgres", log)
    return Service("postgres", "127.0.0.1", port, folder, process, {"user": USER, "database": DATABASE})


def _answers(port: int) -> bool:
    """It takes connections, and has our database."""
    import psycopg2

    connection = psycopg2.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres", connect_timeout=3)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(f'CREATE DATABASE "{DATABASE}"')
    finally:
        connection.close()
    return True


def url(service: Service, database: str = DATABASE) -> str:
    return f"postgresql+psycopg2://{USER}@{service.host}:{service.port}/{database}"
