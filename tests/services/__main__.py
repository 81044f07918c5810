"""All services until Ctrl-C: ``python -m tests.services --data DIR`` writes ``DIR/services.json`` and prints it."""

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from tests.services import install, kafka, postgres, redis, s3
from tests.services.service import Service

STARTERS = {"postgres": postgres.start, "redis": redis.start, "kafka": kafka.start, "s3": s3.start}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path(".services"), help="folder of their data (default: .services)"
    )
    parser.add_argument("--only", default=",".join(STARTERS), metavar="NAME,…", help=f"of {', '.join(STARTERS)}")
    given = parser.parse_args()
    names = given.only.split(",")
    if not set(names) <= set(STARTERS):
        parser.error(f"--only: unknown {', '.join(sorted(set(names) - set(STARTERS)))}")
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    install.install()
    running: list[Service] = []
    try:
        for name in names:
            running.append(STARTERS[name](given.data.resolve() / name))
        described = json.dumps({service.name: service.described() for service in running}, indent=2)
        (given.data / "services.json").write_text(described + "\n")
        sys.stdout.write(described + "\n")
        sys.stdout.flush()
        stopping.wait()
    finally:
        for service in reversed(running):
            service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
