"""Contract of every stream: order, positions, pauses, commits, redelivery, members."""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.connections import KafkaSettings
from jobs.stream import Consumer, Record, Stream
from jobs.streams.kafka import KafkaStream
from jobs.streams.memory import MemoryStream
from tests.services.running import needed

PARTITIONS = 4
JOIN_SECONDS = 180.0  # that a group may take to deal out its partitions, on a machine that does other things too


def kafka_stream() -> Stream:
    """Topics of its own on the one broker."""
    service = needed("kafka")
    servers = (f"{service.host}:{service.port}",)
    return KafkaStream(KafkaSettings(servers, prefix=f"t{uuid.uuid4().hex}.", partitions=PARTITIONS))


ADAPTERS: dict[str, Callable[[], Stream]] = {"memory": lambda: MemoryStream(PARTITIONS), "kafka": kafka_stream}


@pytest.fixture(params=sorted(ADAPTERS))
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    made = ADAPTERS[request.param]()
    yield made
    made.close()


def joined(*consumers: Consumer) -> None:
    """Polls until these members have all partitions among them. To be called while there is nothing to read.

    Each has a thread that does nothing else, as in a worker: a member that is not polling just when the group has dealt
    out its partitions may have to join again.
    """
    done = threading.Event()

    def keep_polling(consumer: Consumer) -> None:
        while not done.is_set():
            assert not consumer.poll(0.5, 1)

    until = time.monotonic() + JOIN_SECONDS
    with ThreadPoolExecutor(len(consumers)) as pool:
        polling = [pool.submit(keep_polling, consumer) for consumer in consumers]
        mine: list[frozenset[int]] = []
        while time.monotonic() < until:
            mine = [consumer.assignment() for consumer in consumers]
            if all(mine) and sum(map(len, mine)) == len(frozenset().union(*mine)) == PARTITIONS:
                break
            done.wait(0.02)
        done.set()
        for future in polling:
            future.result()
    assert sum(map(len, mine)) == len(frozenset().union(*mine)) == PARTITIONS, mine


def read(consumer: Consumer, count: int) -> list[Record]:
    """`count` records."""
    until = time.monotonic() + JOIN_SECONDS
    records: list[Record] = []
    while len(records) < count:
        assert time.monotonic() < until, f"{len(records)} of {count} records came"
        records += consumer.poll(1.0, count - len(records))
    return records


def read_all(*consumers: Consumer, count: int) -> list[list[Record]]:
    """What each of these members gets of `count` records."""
    until = time.monotonic() + JOIN_SECONDS
    got: list[list[Record]] = [[] for _ in consumers]
    while sum(map(len, got)) < count:
        assert time.monotonic() < until, got
        for consumer, records in zip(consumers, got, strict=True):
            records += consumer.poll(0.05, count)
    return got


def nothing(consumer: Consumer) -> bool:
    return not consumer.poll(0.2, 10)


def values(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def ends(records: Sequence[Record]) -> dict[int, int]:
    return {record.partition: record.offset + 1 for record in records}


def test_every_record_once_and_in_order_within_its_partition(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(50))
    records = read(consumer, 50)
    assert sorted(record.value for record in records) == sorted(values(50))
    for partition in consumer.assignment():
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(len(mine)))
        assert mine == sorted(mine, key=lambda record: int(record.value))
    assert nothing(consumer)


def test_pools_do_not_mix(stream: Stream) -> None:
    one, other = stream.consumer("one"), stream.consumer("other")
    joined(one)
    joined(other)
    stream.publish("one", [b"x"])
    assert nothing(other)
    assert [record.value for record in read(one, 1)] == [b"x"]


def test_what_was_published_before_the_first_consumer_is_read(stream: Stream) -> None:
    stream.publish("p", values(5))
    assert len(read(stream.consumer("p"), 5)) == 5


def test_a_poll_takes_no_more_than_asked(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(10))
    assert len(read(consumer, 3)) == 3
    assert len(read(consumer, 7)) == 7


def test_a_paused_partition_is_skipped_until_resumed(stream: Stream) -> None:
    consumer = stream.consumer("p")
    joined(consumer)
    consumer.pause(consumer.assignment())
    stream.publish("p", values(4))
    assert nothing(consumer)
    consumer.resume(consumer.assignment())
    assert len(read(consumer, 4)) == 4


def test_records_come_again_after_a_close_without_commit(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(8))
    first = read(consumer, 8)
    consumer.close()
    again = read(stream.consumer("p"), 8)
    assert sorted(again, key=lambda r: (r.partition, r.offset)) == sorted(first, key=lambda r: (r.partition, r.offset))


def test_a_commit_after_the_close_changes_nothing(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(8))
    late = ends(read(consumer, 8))
    consumer.close()
    with contextlib.suppress(Exception):  # whether it is refused or passed over
        consumer.commit(late)
    assert len(read(stream.consumer("p"), 8)) == 8


def test_committed_records_do_not_come_again(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(8))
    consumer.commit(ends(read(consumer, 8)))
    stream.publish("p", [b"new"])
    consumer.close()
    again = stream.consumer("p")
    assert [record.value for record in read(again, 1)] == [b"new"]
    assert nothing(again)


def test_a_commit_never_moves_backwards(stream: Stream) -> None:
    consumer = stream.consumer("p")
    stream.publish("p", values(8))
    consumer.commit(ends(read(consumer, 8)))
    consumer.commit(dict.fromkeys(consumer.assignment(), 0))
    consumer.close()
    again = stream.consumer("p")
    joined(again)
    assert nothing(again)


def test_groups_read_for_themselves(stream: Stream) -> None:
    one, other = stream.consumer("p", "one"), stream.consumer("p", "other")
    stream.publish("p", values(4))
    one.commit(ends(read(one, 4)))
    assert len(read(other, 4)) == 4


def test_two_members_share_the_partitions(stream: Stream) -> None:
    one = stream.consumer("p")
    joined(one)
    two = stream.consumer("p")
    joined(one, two)
    for _ in range(40):
        stream.publish("p", [b"x"])
    got = read_all(one, two, count=40)
    assert [len(records) for records in got] != [40, 0]
    for consumer, records in zip((one, two), got, strict=True):
        assert {record.partition for record in records} <= consumer.assignment()


def test_a_member_that_leaves_hands_over_what_it_did_not_commit() -> None:
    stream = MemoryStream(PARTITIONS)
    one, two = stream.consumer("p"), stream.consumer("p")
    joined(one, two)
    stream.publish("p", values(20))
    mine, theirs = read_all(one, two, count=20)
    one.close()
    again = read(two, len(mine)) if mine else []
    assert sorted(record.value for record in again) == sorted(record.value for record in mine)
    assert len(mine) + len(theirs) == 20


def test_bytes_that_no_one_can_decode_are_delivered_like_any_other(stream: Stream) -> None:
    odd = [b"", b"\x00\xff", b'{"v":99}', b"x" * 100_000]
    stream.publish("p", odd)
    assert sorted(record.value for record in read(stream.consumer("p"), 4)) == sorted(odd)


def test_wake_ends_a_waiting_poll(stream: Stream) -> None:
    consumer = stream.consumer("p")
    joined(consumer)
    polled: list[Sequence[Record]] = []
    thread = threading.Thread(target=lambda: polled.append(consumer.poll(30.0, 1)))
    thread.start()
    consumer.wake()
    thread.join(10.0)
    assert polled == [[]]


def test_publishing_ends_a_waiting_poll(stream: Stream) -> None:
    consumer = stream.consumer("p")
    joined(consumer)
    polled: list[Sequence[Record]] = []
    thread = threading.Thread(target=lambda: polled.append(consumer.poll(30.0, 1)))
    thread.start()
    stream.publish("p", [b"x"])
    thread.join(10.0)
    assert [record.value for record in polled[0]] == [b"x"]


def test_memory_lets_go_of_what_every_group_committed() -> None:
    stream = MemoryStream(partitions=1)
    consumer = stream.consumer("p")
    for _ in range(10):
        stream.publish("p", values(10))
        consumer.commit(ends(read(consumer, 10)))
    (partition,) = stream._topics["p"].partitions
    assert (partition.first, len(partition.records)) == (100, 0)
