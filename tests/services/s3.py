"""An S3 server: moto, in a process of its own. It checks no signature."""

import sys
from pathlib import Path

from tests.services.service import Service, free_port, listens, spawn, wait_until

KEY, SECRET, REGION = "testing", "testing-secret", "us-east-1"


def start(folder: Path, port: int | None = None) -> Service:
    folder.mkdir(parents=True, exist_ok=True)
    port, log = port or free_port(), folder / "moto.log"
    process = spawn([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], log, cwd=folder)
    wait_until(lambda: listens(port), process, "moto", log)
    return Service(
        "s3", "127.0.0.1", port, folder, process, {"access_key": KEY, "secret_key": SECRET, "region": REGION}
    )
