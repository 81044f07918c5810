"""Redis from Debian's package, without persistence: nothing may depend on it."""

from pathlib import Path

from tests.services.service import Service, find, free_port, listens, spawn, wait_until


def start(folder: Path, port: int | None = None) -> Service:
    folder.mkdir(parents=True, exist_ok=True)
    port, log = port or free_port(), folder / "redis.log"
    settings = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = spawn([find("redis-server"), *settings], log, cwd=folder)
    wait_until(lambda: listens(port), process, "Redis", log)
    return Service("redis", "127.0.0.1", port, folder, process)
