"""Port of the cache: everything in it can be lost at any moment and is looked up again."""

from datetime import timedelta
from typing import Protocol


class Cache(Protocol):
    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes, ttl: timedelta) -> None: ...

    def delete(self, key: str) -> None: ...
