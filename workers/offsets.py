"""Which stream offsets are settled: per partition, contiguous, with what is still open. Pure.

A record is settled when every chunk it carried is: done, refused at the claim, or left to the relay. What may be
committed is the offset of the first record that is not settled, or the one behind the last record read.
"""

from dataclasses import dataclass, field

import msgspec


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The record that a chunk came in, and what the chunk weighs in memory."""

    partition: int
    offset: int
    weight: int


@dataclass(slots=True)
class _Partition:
    open: dict[int, int] = field(default_factory=dict)  # offset -> chunks not settled, in the order read
    next: int = 0  # the offset behind the last record read
    committed: int = -1
    chunks: int = 0
    weight: int = 0
    full: bool = False

    def committable(self) -> int:
        return next(iter(self.open), self.next)


@dataclass(slots=True)
class OffsetTracker:
    """Not thread-safe. A partition is full from `max_chunks` or `max_bytes` unsettled until half of both is left."""

    max_chunks: int = 2000
    max_bytes: int = 64 * 1024 * 1024
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def read(self, partition: int, offset: int, weights: list[int]) -> list[Origin]:
        """A record was read that carries chunks of these weights (none for an undecodable one)."""
        at = self._partitions.setdefault(partition, _Partition())
        at.next = offset + 1
        if weights:
            at.open[offset] = len(weights)
            at.chunks += len(weights)
            at.weight += sum(weights)
        if at.chunks >= self.max_chunks or at.weight >= self.max_bytes:
            at.full = True
        return [Origin(partition, offset, weight) for weight in weights]

    def settle(self, origin: Origin) -> None:
        """One chunk of a record is settled. Ignored for a partition that was taken away meanwhile."""
        at = self._partitions.get(origin.partition)
        if at is None or origin.offset not in at.open:
            return
        at.chunks -= 1
        at.weight -= origin.weight
        left = at.open[origin.offset] - 1
        if left:
            at.open[origin.offset] = left
        else:
            del at.open[origin.offset]
        if at.full and at.chunks <= self.max_chunks // 2 and at.weight <= self.max_bytes // 2:
            at.full = False

    def full(self) -> frozenset[int]:
        """Partitions that should be paused now."""
        return frozenset(number for number, at in self._partitions.items() if at.full)

    def take_committable(self) -> dict[int, int]:
        """What to commit since the last call: ``{partition: next offset needed}``."""
        changed: dict[int, int] = {}
        for number, at in self._partitions.items():
            offset = at.committable()
            if offset > at.committed:
                changed[number] = offset
                at.committed = offset
        return changed

    def forget_commit(self, offsets: dict[int, int]) -> None:
        """A commit of these failed: they are given again."""
        for number in offsets:
            if number in self._partitions:
                self._partitions[number].committed = -1

    def keep_only(self, partitions: frozenset[int]) -> None:
        """Partitions no longer assigned are dropped; settling what they carried changes nothing any more."""
        for number in self._partitions.keys() - partitions:
            del self._partitions[number]

    def unsettled(self) -> int:
        return sum(at.chunks for at in self._partitions.values())
