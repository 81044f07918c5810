"""The cache in Redis, shared by all processes (extra ``[redis]``). When Redis is away it is an empty cache."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from jobs.errors import StoreError

log = logging.getLogger("batchyard.cache")

SECONDS = 0.25  # that one answer may take: a slow cache must not cost more than what it saves
AWAY_SECONDS = 1.0  # that it is not asked after a failure


def connect(url: str, seconds: float = SECONDS) -> Any:
    """A redis client with its own bounded pool; nothing is sent yet. StoreError names the extra if redis is missing."""
    try:
        import redis
    except ImportError as error:
        raise StoreError("Redis needs the extra: pip install 'batchyard[redis]'") from error
    return redis.Redis.from_url(
        url, socket_timeout=seconds, socket_connect_timeout=seconds, health_check_interval=15, max_connections=32
    )


class RedisCache:
    def __init__(
        self, url: str, prefix: str = "by:cache:", monotonic: Callable[[], float] = time.monotonic, client: Any = None
    ) -> None:
        self._redis = connect(url) if client is None else client
        self._prefix = prefix
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._away = False

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._try(lambda: self._redis.get(self._prefix + key))
        return found

    def set(self, key: str, value: bytes, ttl: timedelta) -> None:
        milliseconds = max(1, int(ttl.total_seconds() * 1000))
        self._try(lambda: self._redis.set(self._prefix + key, value, px=milliseconds))

    def delete(self, key: str) -> None:
        self._try(lambda: self._redis.delete(self._prefix + key))

    def close(self) -> None:
        self._redis.close()

    def _try(self, ask: Callable[[], Any]) -> Any:
        """None when Redis is away. It is asked again a second later, and said once."""
        import redis

        if self._away and self._monotonic() < self._away_until:
            return None
        try:
            answer = ask()
        except redis.RedisError as error:
            with self._lock:
                self._away_until = self._monotonic() + AWAY_SECONDS
                first, self._away = not self._away, True
            if first:
                log.warning("the cache is away (%s); everything is looked up meanwhile", error)
            return None
        if self._away:
            self._away = False
            log.info("the cache is back")
        return answer
