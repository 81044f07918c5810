"""The notifier inside one process: calls every subscriber in turn."""

import logging
import threading
from collections.abc import Callable

from jobs.notifier import Ping

log = logging.getLogger("batchyard.notifier")


class _Subscription:
    """Compared by identity: two subscriptions of one function are two."""

    def __init__(self, told: Callable[[Ping], None]) -> None:
        self.told = told


class ProcessNotifier:
    def __init__(self) -> None:
        self._subscribers: tuple[_Subscription, ...] = ()
        self._lock = threading.Lock()

    def ping(self, ping: Ping) -> None:
        for subscription in self._subscribers:
            try:
                subscription.told(ping)
            except Exception:
                # One subscriber's fault must not cost the others their ping.
                log.exception("a subscriber failed")

    def subscribe(self, told: Callable[[Ping], None]) -> Callable[[], None]:
        subscription = _Subscription(told)
        with self._lock:
            self._subscribers = (*self._subscribers, subscription)

        def end() -> None:
            with self._lock:
                self._subscribers = tuple(other for other in self._subscribers if other is not subscription)

        return end
