"""What only the Kafka adapter does: a broker that is away, records that are lost, topics that are not as configured."""

import logging
import os
import threading
import uuid

import pytest

from jobs.connections import KafkaSettings
from jobs.errors import StoreError, Unavailable
from jobs.streams.kafka import KafkaStream, require_driver
from tests.contracts.test_stream import nothing, read, values
from tests.services.running import needed
from tests.services.service import free_port

SECONDS = 30.0  # that anything may take


def settings(**changes: object) -> KafkaSettings:
    service = needed("kafka")
    given = {"prefix": f"t{uuid.uuid4().hex}.", "partitions": 4, **changes}
    return KafkaSettings((f"{service.host}:{service.port}",), **given)  # type: ignore[arg-type]


def away(**changes: object) -> KafkaSettings:
    return KafkaSettings((f"127.0.0.1:{free_port()}",), delivery_seconds=0.5, **changes)  # type: ignore[arg-type]


def test_without_the_c_checksum_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "crc32c" else object())
    with pytest.raises(StoreError, match=r"needs crc32c: pip install 'batchyard\[kafka\]'"):
        require_driver()


def test_a_broker_that_is_missing_costs_who_publishes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stream = KafkaStream(away())
    lost = [threading.Event() for _ in range(2)]
    with caplog.at_level(logging.WARNING, "batchyard.stream"):
        for event in lost:
            stream.publish("p", [b"a", b"b"], event.set)
        assert all(event.wait(SECONDS) for event in lost)
    said = [record.message for record in caplog.records if record.name == "batchyard.stream"]
    assert len(said) == 1
    assert "the relay publishes them again" in said[0]
    with pytest.raises(Unavailable, match="cannot be asked"):
        stream.consumer("p")
    stream.close()
    with pytest.raises(Unavailable, match="closed"):
        stream.publish("p", [b"x"])


def test_a_full_queue_is_said_at_once() -> None:
    stream = KafkaStream(away(queued_records=2))
    refused = 0
    for _ in range(4):
        try:
            stream.publish("p", [b"x"])
        except Unavailable as error:
            assert "wait for Kafka already" in str(error)  # noqa: PT017
            refused += 1
    assert refused in (1, 2)  # the sender may have taken one meanwhile
    stream.close()


def test_a_group_with_a_record_that_the_broker_refuses_is_told_once() -> None:
    stream = KafkaStream(settings())
    lost: list[str] = []
    told = threading.Event()

    def tell() -> None:
        lost.append("lost")
        told.set()

    too_large = [os.urandom(1_500_000) for _ in range(2)]  # a broker takes 1 MiB; our records stay below half of it
    stream.publish("p", too_large, tell)
    assert told.wait(SECONDS)
    stream.publish("p", [b"small"])
    consumer = stream.consumer("p")
    assert [record.value for record in read(consumer, 1)] == [b"small"]
    consumer.close()
    stream.close()
    assert lost == ["lost"]


def test_a_topic_with_other_partitions_is_said_and_used_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    before = settings(partitions=2)
    KafkaStream(before).consumer("p").close()
    stream = KafkaStream(KafkaSettings(before.servers, before.prefix, partitions=4))
    with caplog.at_level(logging.WARNING, "batchyard.stream"):
        consumer = stream.consumer("p")
        assert stream.partitions("p") == 2
    said = [record.message for record in caplog.records if record.name == "batchyard.stream"]
    assert [line.split(":")[0] for line in said] == [f"topic {before.prefix}p has 2 partitions, 4 are configured"]
    stream.publish("p", values(10))
    assert len(read(consumer, 10)) == 10
    consumer.close()
    stream.close()


def test_lag_is_what_was_not_read_yet() -> None:
    stream = KafkaStream(settings(partitions=1))
    consumer = stream.consumer("p")
    stream.publish("p", values(10))
    read(consumer, 4)
    assert consumer.lag() == {0: 6}  # type: ignore[attr-defined]
    read(consumer, 6)
    assert consumer.lag() == {0: 0}  # type: ignore[attr-defined]
    consumer.close()
    stream.close()


def test_a_member_with_a_name_comes_back_to_its_partitions_at_once() -> None:
    stream = KafkaStream(settings(member="worker-1"))
    consumer = stream.consumer("p")
    joined_first = read_after(stream, b"1", consumer)
    consumer.close()
    consumer = stream.consumer("p")
    assert read_after(stream, b"2", consumer) >= joined_first
    assert nothing(consumer)
    consumer.close()
    stream.close()


def read_after(stream: KafkaStream, value: bytes, consumer: object) -> int:
    """The offset of a record that is published now, read and committed."""
    stream.publish("p", [value])
    (record,) = read(consumer, 1)  # type: ignore[arg-type]
    assert record.value == value
    consumer.commit({record.partition: record.offset + 1})  # type: ignore[attr-defined]
    return record.offset
