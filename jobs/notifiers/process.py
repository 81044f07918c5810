"""The notifier inside one process: calls every subscriber in turn."""

import logging
import threading
from collections.abc import Callable

from jobs.notifier import Ping

log = logging.getLogger("batchyard.notifier")


class ProcessNotifier:
    def __init__(self) -> None:
        self._subscribers: tuple[Callable[[Ping], None], ...] = ()
        self._lock = threading.Lock()

    def ping(self, ping: Ping) -> None:
        for told in self._subscribers:
            try:
                told(ping)
            except Exception:
                # One subscriber's fault must not cost the others their ping.
                log.exception("a subscriber failed")

    def subscribe(self, told: Callable[[Ping], None]) -> Callable[[], None]:
        with self._lock:
            self._subscribers = (*self._subscribers, told)

        def end() -> None:
            with self._lock:
                # Identity, not equality: two subscriptions of one function are two.
                self._subscribers = tuple(other for other in self._subscribers if other is not told)

        return end
