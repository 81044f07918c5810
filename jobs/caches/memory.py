"""The cache inside one process: least recently used entries go first, old ones when they are looked at."""

import threading
from collections import OrderedDict
from datetime import datetime, timedelta

from jobs.clock import Clock, system_clock


class MemoryCache:
    def __init__(self, max_entries: int = 10_000, clock: Clock = system_clock) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[str, tuple[bytes, datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            value, until = entry
            if until <= self._clock():
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return value

    def set(self, key: str, value: bytes, ttl: timedelta) -> None:
        with self._lock:
            self._entries[key] = (value, self._clock() + ttl)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def delete(self, key: str) -> None:
        with self._lock:
            self._entries.pop(key, None)
