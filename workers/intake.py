"""The intake: one thread that polls the stream and hands each chunk to the runner of its version.

It never waits for inference. A partition with too much that is not settled is paused; offsets are committed only up to
the first record that is not settled.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from jobs import messages
from jobs.crash import CrashPoints
from jobs.errors import BatchyardError, Undecodable
from jobs.publisher import Publisher
from jobs.records import ChunkMessage
from jobs.stream import Consumer, Record, Stream
from workers.held import HeldChunk
from workers.offsets import OffsetTracker, Origin

log = logging.getLogger("batchyard.intake")

Route = Callable[[list[HeldChunk]], list[HeldChunk]]
"""Takes chunks of any versions; gives back the ones that nobody here serves, or that are held already."""

_POLL = 0.1  # seconds
_COMMIT_EVERY = 0.1
_MAX_RECORDS = 100


class Intake:
    def __init__(
        self,
        stream: Stream,
        pool: str,
        route: Route,
        publisher: Publisher,
        keep_bad: Callable[[Record, str], None],
        crash: CrashPoints,
    ) -> None:
        """`keep_bad` keeps a record that cannot be decoded, with the reason."""
        self._stream = stream
        self._pool = pool
        self._route = route
        self._publisher = publisher
        self._keep_bad = keep_bad
        self._crash = crash
        self._tracker = OffsetTracker()
        self._full: frozenset[int] = frozenset()  # paused partitions, for other threads to see
        self._settled: deque[Origin] = deque()
        self._consumer: Consumer | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._committed_at = 0.0
        self.last_progress = time.monotonic()

    def start(self) -> None:
        self._consumer = self._stream.consumer(self._pool)
        self._thread.start()

    def stop(self) -> None:
        """Fetches nothing more; what is settled by then is committed."""
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.wake()
        self._thread.join()

    def settle(self, chunks: Sequence[HeldChunk]) -> None:
        """These need their records no more. Any thread."""
        self._settled.extend(chunk.origin for chunk in chunks)
        self._publisher.settled([chunk.message.ref for chunk in chunks])
        if self._full and self._consumer is not None:
            self._consumer.wake()

    def close(self) -> None:
        """After everything that will be settled is: the last commit, then the consumer goes."""
        if self._consumer is None:
            return
        self._drain_settled()
        self._commit(force=True)
        self._consumer.close()

    # -- the thread

    def _run(self) -> None:
        assert self._consumer is not None
        while not self._stopping.is_set():
            try:
                self._step(self._consumer)
            except BatchyardError as error:
                log.warning("the stream cannot be read (%s); trying again", error)
                self._stopping.wait(1.0)
            except Exception:
                log.exception("a record could not be taken")
                self._stopping.wait(0.1)
            self.last_progress = time.monotonic()

    def _step(self, consumer: Consumer) -> None:
        records = consumer.poll(_POLL, _MAX_RECORDS)
        if records:
            chunks = [chunk for record in records for chunk in self._read(record)]
            self._crash.passing("publish_claim")
            try:
                returned = self._route(chunks)
            except Exception:
                # Their records must not stay open for ever; the relay publishes again what nobody has claimed.
                log.exception("%d chunks could not be taken", len(chunks))
                returned = chunks
            self.settle(returned)
        self._drain_settled()
        assigned = consumer.assignment()
        self._tracker.keep_only(assigned)
        full = self._tracker.full()
        if full != self._full:
            consumer.pause(full - self._full)
            consumer.resume((self._full - full) & assigned)
            self._full = full
        self._commit()

    def _read(self, record: Record) -> list[HeldChunk]:
        try:
            decoded: list[ChunkMessage] = messages.decode(record.value)
        except Undecodable as error:
            self._keep_bad(record, str(error))
            self._tracker.read(record.partition, record.offset, [])
            return []
        origins = self._tracker.read(record.partition, record.offset, [chunk.weight_bytes for chunk in decoded])
        return [HeldChunk(message, origin) for message, origin in zip(decoded, origins, strict=True)]

    def _drain_settled(self) -> None:
        while self._settled:
            self._tracker.settle(self._settled.popleft())

    def _commit(self, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._committed_at < _COMMIT_EVERY:
            return
        assert self._consumer is not None
        self._committed_at = now
        offsets = self._tracker.take_committable()
        if not offsets:
            return
        try:
            self._consumer.commit(offsets)
        except BatchyardError as error:
            self._tracker.forget_commit(offsets)
            log.warning("offsets cannot be committed (%s); trying again", error)
