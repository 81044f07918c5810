"""Named crash points: places where a test makes the process die as if by ``kill -9``.

Armed by ``BATCHYARD_CRASH=name:n`` (read by settings): the n-th time that the process passes the point, it exits
with status 137 after printing one line, which is the proof that this very point fired.
"""

import os
import threading
from dataclasses import dataclass, field

POINTS = (
    "commit_publish",  # after the submission's commit, before its record is published
    "publish_claim",  # after the record was published and fetched, before the claim is written
    "engine_result",  # after the engine answered, before the results are written
    "result_offset",  # after the results were written, before the offset is committed
    "blob_row",  # after a blob was put, before the row that names it is written
)


@dataclass
class CrashPoints:
    """Counts passes of the armed point; unarmed it costs one comparison."""

    armed: str | None = None
    nth: int = 1
    _passes: int = field(default=0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def parse(cls, text: str | None) -> "CrashPoints":
        """``name:n`` or ``name``; raises ValueError for a name that no code passes, or for a pass that never comes."""
        if not text:
            return cls()
        name, _, nth = text.partition(":")
        if name not in POINTS:
            raise ValueError(f"BATCHYARD_CRASH: unknown point {name!r}; known: {', '.join(POINTS)}")
        if nth and (not nth.isdecimal() or int(nth) < 1):
            raise ValueError(f"BATCHYARD_CRASH: {text!r}: the pass to die at is a number from 1")
        return cls(armed=name, nth=int(nth or "1"))

    def passing(self, point: str) -> None:
        if point != self.armed:
            return
        with self._lock:
            self._passes += 1
            fire = self._passes == self.nth
        if fire:
            os.write(2, f"crash point {point}:{self.nth} fired in process {os.getpid()}\n".encode())
            os._exit(137)
