"""Port of the blob store: bytes too large for a row or a record. Keys are made by us, never taken from clients."""

from datetime import timedelta
from typing import Protocol

from jobs.records import BlobRef


class BlobStore(Protocol):
    def put(self, key: str, data: bytes) -> BlobRef:
        """Whole or not at all; visible to `get` when this returns."""

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of a blob; NotFound if there is none."""

    def delete(self, key: str) -> None:
        """No error when it is gone already."""

    def keys(self, prefix: str) -> list[str]: ...

    def sign(self, key: str, expires_in: timedelta) -> str:
        """A link that reads this one blob until it expires: absolute, or a path of the API itself (local)."""
