"""What an engine child prints, in this process's log: line by line, with its name, and never without bound."""

import logging
import threading
import time
from collections.abc import Callable
from typing import IO

_LINE_BYTES = 2000
_LINES_PER_SECOND = 50

log = logging.getLogger("batchyard.engine")


def pump(stream: IO[bytes], name: str, monotonic: Callable[[], float] = time.monotonic) -> threading.Thread:
    """Starts a thread that logs lines until the stream ends; beyond 50 lines a second it only counts them."""

    def run() -> None:
        second, lines, dropped = 0, 0, 0
        with stream:
            while line := stream.readline(_LINE_BYTES):
                now = int(monotonic())
                if now != second:
                    if dropped:
                        log.warning("%s: %d more lines within one second", name, dropped)
                    second, lines, dropped = now, 0, 0
                lines += 1
                if lines > _LINES_PER_SECOND:
                    dropped += 1
                else:
                    log.info("%s: %s", name, line.decode("utf-8", "replace").rstrip("\n"))
        if dropped:
            log.warning("%s: %d more lines within one second", name, dropped)

    thread = threading.Thread(target=run, name=f"{name} output", daemon=True)
    thread.start()
    return thread
