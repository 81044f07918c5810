"""Port of the stream: how chunks reach workers. A conveyor, never the truth: what it loses the relay publishes again.

Words are Kafka's: a record lies at an offset of a partition; a consumer is assigned partitions, polls, pauses and
resumes them, and commits per partition the offset of the next record it still needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """One stream record as read. ``value`` is opaque here (jobs/messages.py decodes it)."""

    partition: int
    offset: int
    value: bytes


class Consumer(Protocol):
    """Used by one thread. Closing without a commit means redelivery from the last committed offset."""

    def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        """Waits at most `timeout` seconds for the first record; skips paused partitions."""

    def assignment(self) -> frozenset[int]: ...

    def pause(self, partitions: frozenset[int]) -> None: ...

    def resume(self, partitions: frozenset[int]) -> None: ...

    def commit(self, offsets: Mapping[int, int]) -> None:
        """`offsets[partition]` is the next offset needed. Never moves backwards."""

    def wake(self) -> None:
        """Ends a waiting poll early; may be called by any thread."""

    def close(self) -> None: ...


class Stream(Protocol):
    def publish(self, pool: str, values: Sequence[bytes], lost: Callable[[], None] = ...) -> None:
        """Appends records to the topic of a pool, without waiting for a broker; raises Unavailable when it takes none.
        `lost` is called later, from any thread, if it turns out that they may not have been taken. Thread-safe."""

    def consumer(self, pool: str, group: str = "workers") -> Consumer: ...

    def close(self) -> None: ...
