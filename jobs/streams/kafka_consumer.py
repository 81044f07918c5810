"""One member of a consumer group. Used by one thread, which only polls: heartbeats go out beside it."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jobs.errors import Unavailable
from jobs.stream import Record

if TYPE_CHECKING:
    from jobs.connections import KafkaSettings

log = logging.getLogger("batchyard.stream")

SLICE_MS = 100  # of one poll of the driver, which nothing can wake; shorter ones starve its joining
FETCH_WAIT_MS = 50
PARTITION_BYTES = 4 * 1024 * 1024  # fetched at once from one partition
HEARTBEAT_MS = 1_000  # members hear of a rebalance by the answer to one
METADATA_MS = 10_000  # until a topic that was made anew, or got more partitions, is noticed
LONGEST_POLL_MS = 300_000  # between two polls, before the group goes on without this member


class KafkaConsumer:
    """Its partitions come with the first polls, and go and come as members do (cooperative sticky: the others keep
    theirs meanwhile). Poll without pauses: the driver begins a join anew that ended while nobody polled."""

    def __init__(self, settings: "KafkaSettings", topic: str, group: str) -> None:
        from kafka import KafkaConsumer as Driver
        from kafka import TopicPartition
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

        self._topic = topic
        self._partition = TopicPartition
        self._woken = threading.Event()
        self._committed: dict[int, int] = {}
        self._closed = False
        with _ours("cannot be joined"):
            self._driver: Any = Driver(
                bootstrap_servers=list(settings.servers),
                client_id=settings.client_id,
                group_id=group,
                group_instance_id=settings.member,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=int(settings.session_seconds * 1000),
                heartbeat_interval_ms=HEARTBEAT_MS,
                max_poll_interval_ms=LONGEST_POLL_MS,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                max_partition_fetch_bytes=PARTITION_BYTES,
                metadata_max_age_ms=METADATA_MS,
                bootstrap_timeout_ms=int(settings.delivery_seconds * 1000),
            )
            self._await_topic(settings.delivery_seconds)
            self._driver.subscribe([topic])

    def _await_topic(self, seconds: float) -> None:
        """A member that joins before it has heard of the topic is dealt no partitions, and nothing deals again."""
        until = time.monotonic() + seconds
        while not self._driver.partitions_for_topic(self._topic):
            if time.monotonic() > until:
                self._driver.close(autocommit=False)
                raise Unavailable(f"the broker does not know the topic {self._topic} yet")
            time.sleep(0.02)

    def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        until = time.monotonic() + timeout
        while True:
            with _ours("cannot be read"):
                found = {} if self._closed else self._driver.poll(timeout_ms=SLICE_MS, max_records=max_records)
            if found:
                return [Record(r.partition, r.offset, r.value or b"") for rs in found.values() for r in rs]
            if self._closed or self._woken.is_set() or time.monotonic() >= until:
                self._woken.clear()
                return []

    def assignment(self) -> frozenset[int]:
        return frozenset(place.partition for place in self._driver.assignment())

    def pause(self, partitions: frozenset[int]) -> None:
        mine = partitions & self.assignment()
        if mine:
            self._driver.pause(*map(self._place, mine))

    def resume(self, partitions: frozenset[int]) -> None:
        mine = partitions & self.assignment()
        if mine:
            self._driver.resume(*map(self._place, mine))

    def commit(self, offsets: Mapping[int, int]) -> None:
        from kafka.structs import OffsetAndMetadata

        if self._closed:
            return  # its partitions are another member's, who reads on from the last commit
        mine = self.assignment()
        self._committed = {number: offset for number, offset in self._committed.items() if number in mine}
        ahead = {
            number: offset
            for number, offset in offsets.items()
            if number in mine and offset > self._committed.get(number, -1)
        }
        with _ours("takes no commit"):
            ahead = {number: offset for number, offset in ahead.items() if not self._behind(number, offset)}
            if ahead:
                self._driver.commit(
                    {self._place(number): OffsetAndMetadata(offset, "", -1) for number, offset in ahead.items()}
                )
        self._committed.update(ahead)

    def _behind(self, number: int, offset: int) -> bool:
        """At the first commit of a partition: whether the group is further already."""
        if number in self._committed:
            return False
        known = self._driver.committed(self._place(number))
        self._committed[number] = -1 if known is None else known
        return known is not None and offset <= known

    def lag(self) -> dict[int, int]:
        """Records of each assigned partition that are not read yet, as far as the last fetches tell."""
        behind: dict[int, int] = {}
        for place in self._driver.assignment():
            high = self._driver.highwater(place)
            if high is not None:
                behind[place.partition] = max(0, high - self._driver.position(place))
        return behind

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with _ours("cannot be left"):
                self._driver.close(autocommit=False)

    def _place(self, number: int) -> Any:
        return self._partition(self._topic, number)


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """What the driver raises, as our error: everything here passes, the ledger has what is not read."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise Unavailable(f"the stream {what}: {type(error).__name__}: {error}") from error
