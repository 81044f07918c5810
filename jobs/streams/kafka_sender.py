"""The one thread that feeds the Kafka producer from a bounded queue, so that nobody who publishes ever waits for it."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.errors import BatchyardError, Unavailable

if TYPE_CHECKING:
    from jobs.connections import KafkaSettings

log = logging.getLogger("batchyard.stream")

Lost = Callable[[], None]
MOST_BYTES = 1024 * 1024  # of one record; messages are cut to half of it
BATCH_BYTES = 128 * 1024
AGAIN_SECONDS = 1.0  # after the broker could not be reached


@dataclass(frozen=True, slots=True)
class _Records:
    topic: str
    values: Sequence[bytes]
    lost: Lost


class Sender:
    """``ensure`` makes a topic that is not there."""

    def __init__(self, settings: "KafkaSettings", ensure: Callable[[str], int]) -> None:
        self._settings = settings
        self._ensure = ensure
        self._queue: queue.Queue[_Records | None] = queue.Queue(settings.queued_records)
        self._producer: Any = None
        self._known: set[str] = set()
        self._away = False
        self._broken = False  # the producer has given up for good, as an idempotent one does after some errors
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-sender", daemon=True)
        self._thread.start()

    def put(self, topic: str, values: Sequence[bytes], lost: Lost) -> None:
        try:
            self._queue.put_nowait(_Records(topic, values, lost))
        except queue.Full:
            raise Unavailable(f"{self._queue.maxsize} groups of records wait for Kafka already") from None

    def close(self) -> None:
        self._closing.set()
        self._queue.put(None)
        self._thread.join(2 * self._settings.delivery_seconds)

    # -- the thread

    def _run(self) -> None:
        while (records := self._queue.get()) is not None:
            try:
                self._send(records)
            except Exception as error:
                self._failed(records, error)
        if self._producer is not None:
            self._producer.close(timeout=self._settings.delivery_seconds)

    def _send(self, records: _Records) -> None:
        if self._broken and self._producer is not None:
            producer, self._producer = self._producer, None
            with contextlib.suppress(Exception):  # it is of no use any more, however it goes
                producer.close(timeout=0)
        if self._producer is None:
            self._broken = False
            self._producer = self._connect()
        if records.topic not in self._known:
            self._ensure(records.topic)
            self._known.add(records.topic)
        once = _Once(records.lost)
        for value in records.values:
            self._producer.send(records.topic, value).add_errback(self._refused, once)
        if self._away:
            self._away = False
            log.info("Kafka takes records again")

    def _connect(self) -> Any:
        from kafka import KafkaProducer

        settings = self._settings
        return KafkaProducer(
            bootstrap_servers=list(settings.servers),
            client_id=settings.client_id,
            acks="all",
            enable_idempotence=True,
            compression_type="lz4",
            # No linger: what shares a commit is one record already.
            linger_ms=0,
            batch_size=BATCH_BYTES,
            max_request_size=2 * MOST_BYTES,
            max_block_ms=int(settings.delivery_seconds * 1000),
            request_timeout_ms=int(settings.delivery_seconds * 500),
            delivery_timeout_ms=int(settings.delivery_seconds * 1000),
            bootstrap_timeout_ms=int(settings.delivery_seconds * 1000),
        )

    def _failed(self, records: _Records, error: Exception) -> None:
        """Not one of them was sent, or nobody knows how many."""
        self._said(error)
        _tell(records.lost)
        if self._producer is None or isinstance(error, BatchyardError):
            self._closing.wait(AGAIN_SECONDS)

    def _refused(self, once: "_Once", error: Exception) -> None:
        """On the producer's thread."""
        self._broken = True  # another one costs a connection, one that answers nothing any more costs everything
        self._said(error)
        once()

    def _said(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning("Kafka does not take records (%s: %s); the relay publishes them again", _name(error), error)


class _Once:
    """Several records of one group may fail; who published them hears of it once."""

    def __init__(self, lost: Lost) -> None:
        self._lost: Lost | None = lost
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            lost, self._lost = self._lost, None
        if lost is not None:
            _tell(lost)


def _tell(lost: Lost) -> None:
    try:
        lost()
    except Exception:
        log.exception("the publisher could not be told of lost records")


def _name(error: Exception) -> str:
    return type(error).__name__
