"""The stream inside one process: lists of records, and what each group has committed. Emptied by a restart.

Records that every group has committed past are let go, so memory holds only what is still needed.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.errors import Unavailable
from jobs.stream import Consumer, Record


@dataclass
class _Partition:
    first: int = 0  # offset of records[0]
    records: deque[bytes] = field(default_factory=deque)
    committed: dict[str, int] = field(default_factory=dict)  # by group: the next offset needed

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def trim(self) -> None:
        keep_from = min(self.committed.values(), default=self.first)
        while self.records and self.first < keep_from:
            self.records.popleft()
            self.first += 1


class _Topic:
    def __init__(self, partitions: int) -> None:
        self.partitions = [_Partition() for _ in range(partitions)]
        self.members: dict[str, list[MemoryConsumer]] = {}  # by group
        self.turn = itertools.cycle(range(partitions))


class MemoryStream:
    """Thread-safe. One topic a pool, made when it is first named."""

    def __init__(self, partitions: int = 4) -> None:
        self._partitions = partitions
        self._topics: dict[str, _Topic] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, pool: str, values: Sequence[bytes], lost: Callable[[], None] = lambda: None) -> None:
        with self._changed:
            if self._closed:
                raise Unavailable("the stream is closed")
            topic = self._topic(pool)
            for value in values:
                topic.partitions[next(topic.turn)].records.append(value)
            self._changed.notify_all()

    def consumer(self, pool: str, group: str = "workers") -> Consumer:
        with self._changed:
            if self._closed:
                raise Unavailable("the stream is closed")
            topic = self._topic(pool)
            member = MemoryConsumer(self._changed, topic, group)
            topic.members.setdefault(group, []).append(member)
            for partition in topic.partitions:
                partition.committed.setdefault(group, partition.first)
            _rebalance(topic, group)
            self._changed.notify_all()
            return member

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for topic in self._topics.values():
                for members in topic.members.values():
                    for member in members:
                        member.closed = True
            self._changed.notify_all()

    def _topic(self, pool: str) -> _Topic:
        if pool not in self._topics:
            self._topics[pool] = _Topic(self._partitions)
        return self._topics[pool]


class MemoryConsumer:
    def __init__(self, changed: threading.Condition, topic: _Topic, group: str) -> None:
        self._changed = changed
        self._topic = topic
        self._group = group
        self._woken = False
        self._turn = 0
        self.closed = False
        self.positions: dict[int, int] = {}  # of the assigned partitions: the next offset to read
        self.paused: set[int] = set()

    def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                read = [] if self.closed else self._take(max_records)
                left = deadline - time.monotonic()
                if read or self._woken or self.closed or left <= 0:
                    self._woken = False
                    return read
                self._changed.wait(left)

    def _take(self, most: int) -> list[Record]:
        read: list[Record] = []
        numbers = sorted(set(self.positions) - self.paused)
        self._turn += 1  # each poll starts at another partition, so that none starves behind a long one
        for step in range(len(numbers)):
            number = numbers[(self._turn + step) % len(numbers)]
            partition = self._topic.partitions[number]
            at = max(self.positions[number], partition.first)
            stop = min(partition.end, at + most - len(read))
            values = itertools.islice(partition.records, at - partition.first, stop - partition.first)
            read += [Record(number, offset, value) for offset, value in enumerate(values, at)]
            self.positions[number] = stop
        return read

    def assignment(self) -> frozenset[int]:
        with self._changed:
            return frozenset(self.positions)

    def pause(self, partitions: frozenset[int]) -> None:
        with self._changed:
            self.paused |= partitions

    def resume(self, partitions: frozenset[int]) -> None:
        with self._changed:
            self.paused -= partitions
            self._changed.notify_all()

    def commit(self, offsets: Mapping[int, int]) -> None:
        with self._changed:
            if self.closed:
                return  # its partitions are another member's, who reads on from the last commit
            for number, offset in offsets.items():
                if number not in self.positions:
                    continue  # it went to another member, who reads on from the last commit
                partition = self._topic.partitions[number]
                if partition.committed[self._group] < offset <= partition.end:
                    partition.committed[self._group] = offset
                    partition.trim()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._topic.members[self._group].remove(self)
            _rebalance(self._topic, self._group)
            self._changed.notify_all()


def _rebalance(topic: _Topic, group: str) -> None:
    """Deals the partitions out again; who keeps one reads on, who gets one starts at the last commit."""
    members = topic.members[group]
    for index, member in enumerate(members):
        mine = range(index, len(topic.partitions), len(members))
        member.positions = {
            number: member.positions.get(number, topic.partitions[number].committed[group]) for number in mine
        }
        member.paused &= set(mine)
