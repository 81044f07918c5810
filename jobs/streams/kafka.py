"""The stream on Kafka (extra ``[kafka]``): a topic for each pool, ``by.<pool>``.

What Kafka loses the ledger still has: records that could not be sent are told to whoever published them, and the relay
publishes them again.
"""

import importlib.util
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jobs.connections import KafkaSettings
from jobs.errors import StoreError, Unavailable
from jobs.stream import Consumer

log = logging.getLogger("batchyard.stream")


def require_driver() -> None:
    """StoreError when kafka-python or its C checksum is missing: without crc32c it is six to thirteen times slower,
    which nobody would look for there."""
    for module, package in (("kafka", "kafka-python"), ("crc32c", "crc32c"), ("lz4", "lz4")):
        if importlib.util.find_spec(module) is None:
            raise StoreError(f"the stream on Kafka needs {package}: pip install 'batchyard[kafka]'")


class KafkaStream:
    """Thread-safe. Connects when it is first used, so a broker that is missing at the start is waited for."""

    def __init__(self, settings: KafkaSettings) -> None:
        require_driver()
        from jobs.streams.kafka_sender import Sender

        self._settings = settings
        self._sender = Sender(settings, self._ensure)
        self._lock = threading.Lock()
        self._ensured: set[str] = set()
        self._closed = False

    def publish(self, pool: str, values: Sequence[bytes], lost: Callable[[], None] = lambda: None) -> None:
        """Queues the records; returns before they are acknowledged. `lost` is called, on another thread, if they may
        not have been taken. Unavailable when the queue is full."""
        if self._closed:
            raise Unavailable("the stream is closed")
        self._sender.put(self._settings.prefix + pool, values, lost)

    def consumer(self, pool: str, group: str = "workers") -> Consumer:
        """Joins in the background: its partitions come with the first polls."""
        from jobs.streams.kafka_consumer import KafkaConsumer

        if self._closed:
            raise Unavailable("the stream is closed")
        topic = self._settings.prefix + pool
        self._ensure(topic)
        return KafkaConsumer(self._settings, topic, f"{topic}.{group}")

    def close(self) -> None:
        """What is queued is sent first, as far as the broker takes it within the delivery time."""
        self._closed = True
        self._sender.close()

    def partitions(self, pool: str) -> int:
        """As the broker has it."""
        return self._ensure(self._settings.prefix + pool)

    def _ensure(self, topic: str) -> int:
        """Makes the topic if there is none; its number of partitions. Says so when that is not the configured one."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic
        from kafka.errors import KafkaError, TopicAlreadyExistsError

        admin: Any = None
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=list(self._settings.servers),
                client_id=self._settings.client_id,
                bootstrap_timeout_ms=int(self._settings.delivery_seconds * 1000),
            )
            try:
                admin.create_topics(
                    [NewTopic(topic, self._settings.partitions, self._settings.replicas)], wait_for_metadata=True
                )
                log.info("topic %s made with %d partitions", topic, self._settings.partitions)
                return self._settings.partitions
            except TopicAlreadyExistsError:
                (described,) = admin.describe_topics([topic])
                found = len(described["partitions"])
        except KafkaError as error:
            raise Unavailable(f"Kafka at {', '.join(self._settings.servers)} cannot be asked: {error}") from error
        finally:
            if admin is not None:
                admin.close()
        with self._lock:
            first = topic not in self._ensured
            self._ensured.add(topic)
        if first and found != self._settings.partitions:
            log.warning(
                "topic %s has %d partitions, %d are configured: work goes on with %d; more are added with"
                " kafka-topics.sh --alter, fewer need a new pool",
                topic,
                found,
                self._settings.partitions,
                found,
            )
        return found
