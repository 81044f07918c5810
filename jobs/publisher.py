"""The publisher: hands chunks to the stream, as long as the window has room for them.

A submission passes it twice. `admit`, before the commit, decides whether the job will be published at once, because the
ledger writes down when the relay is to look after it; `committed`, right after the commit, publishes. Everything else
(no room, not due yet, a stream that failed) stays queued in the ledger, where the relay finds it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from jobs import messages
from jobs.clock import Clock, system_clock
from jobs.errors import BatchyardError
from jobs.records import ChunkMessage, ChunkRef, NewChunk, NewJob
from jobs.stream import Stream
from jobs.window import Pair, Piece, Window

_log = logging.getLogger(__name__)

FIRST_FENCE = 0
"""The fence that the ledger gives to a new chunk."""

_REFILL = 0.75  # of the window: below this the relay is woken to top up, so that it moves more than a chunk at a time

Pools = Callable[[str, str], str | None]
"""The pool that serves (model, version); None: none does."""


class Publisher:
    """Thread-safe. Nothing is encoded or sent under its lock."""

    def __init__(
        self,
        stream: Stream,
        pools: Pools,
        window: Window | None = None,
        *,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._pools = pools
        self._window = window or Window()
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._behind: set[Pair] = set()  # what these have in the ledger goes first: the relay's turn
        self._unserved: set[tuple[str, str]] = set()  # versions without a pool that were logged
        self._wake_relay: Callable[[], None] = lambda: None

    def when_room(self, wake_relay: Callable[[], None]) -> None:
        """`wake_relay` is called, from any thread, when there is room again for work that was left behind."""
        self._wake_relay = wake_relay

    # -- submissions

    def admit(self, job: NewJob) -> NewJob:
        """Before `Ledger.submit`: reserves room for a job, or gives it back with `publish_now` False. A job that was
        admitted and then not inserted (a replay, an error) is to be told to `withdraw`."""
        pair = (job.tenant, job.model)
        publish_now = False
        if not self._later(job) and self._pools(job.model, job.version) is not None:
            pieces = [Piece(ChunkRef(job.id, chunk.seq, FIRST_FENCE), _weight(chunk)) for chunk in job.chunks]
            with self._lock:
                # Behind what was left behind, whatever the room: first in, first out.
                publish_now = pair not in self._behind and self._window.reserve(pair, pieces, self._monotonic())
                if not publish_now:
                    self._behind.add(pair)
        return job if publish_now == job.publish_now else replace(job, publish_now=publish_now)

    def withdraw(self, job: NewJob) -> None:
        """Gives back the room of a job that was admitted and not inserted."""
        if job.publish_now:
            self.settled([ChunkRef(job.id, chunk.seq, FIRST_FENCE) for chunk in job.chunks])

    def committed(self, jobs: Sequence[NewJob]) -> None:
        """The ledger's hook after a commit: publishes what was admitted. Never raises."""
        now = [message for job in jobs if job.publish_now for message in self._messages(job)]
        later = {(job.tenant, job.model) for job in jobs if not job.publish_now and not self._later(job)}
        if now:
            self.publish(now)
        if later:
            with self._lock:
                self._behind |= later
            self._wake_if_room(later)

    def _later(self, job: NewJob) -> bool:
        return job.not_before is not None and job.not_before > self._clock()

    def _messages(self, job: NewJob) -> list[ChunkMessage]:
        return [
            ChunkMessage(
                job=job.id,
                seq=chunk.seq,
                fence=FIRST_FENCE,
                tenant=job.tenant,
                model=job.model,
                version=job.version,
                priority=job.priority,
                count=chunk.count,
                alone=chunk.alone,
                attempts=chunk.attempts,
                max_attempts=job.max_attempts,
                run_timeout=job.run_timeout,
                created_at=job.created_at,
                queue_deadline_at=job.queue_deadline_at,
                deadline_at=job.deadline_at,
                traceparent=job.traceparent,
                payload=chunk.payload,
            )
            for chunk in job.chunks
            if chunk.not_before is None or chunk.not_before <= self._clock()
        ]

    # -- the stream

    def publish(self, chunks: Iterable[ChunkMessage]) -> int:
        """Publishes chunks that the ledger holds as queued (a commit's, the relay's, children), whatever the room.
        Gives how many were taken by the stream; the rest, said once in the log, is the relay's when its lease is
        up. Never raises."""
        by_pool: dict[str, list[ChunkMessage]] = {}
        without: set[tuple[str, str]] = set()
        for chunk in chunks:
            pool = self._pools(chunk.model, chunk.version)
            if pool is None:
                without.add((chunk.model, chunk.version))
                self.settled([chunk.ref])
            else:
                by_pool.setdefault(pool, []).append(chunk)
        self._warn_unserved(without)
        return sum(self._publish_to(pool, group) for pool, group in by_pool.items())

    def _warn_unserved(self, without: set[tuple[str, str]]) -> None:
        """Once a version: the relay comes back to its chunks every few seconds."""
        with self._lock:
            new = without - self._unserved
            self._unserved |= new
        if new:
            names = ", ".join(sorted(f"{model}@{version}" for model, version in new))
            _log.warning("no pool serves %s: its chunks stay queued in the ledger until one does", names)

    def _publish_to(self, pool: str, chunks: list[ChunkMessage]) -> int:
        by_pair: dict[Pair, list[Piece]] = {}
        for chunk in chunks:
            by_pair.setdefault((chunk.tenant, chunk.model), []).append(Piece(chunk.ref, chunk.weight_bytes))
        # Counted before it is sent: a fast worker settles a chunk before `stream.publish` returns.
        with self._lock:
            for pair, pieces in by_pair.items():
                self._window.publish(pair, pieces, self._monotonic())
        try:
            self._stream.publish(pool, list(messages.encode(chunks)), partial(self._lost, chunks))
        except Exception as error:
            # Also what nobody foresaw: chunks that count as being on their way would be passed over by the relay.
            known = isinstance(error, BatchyardError)
            _log.warning(
                "pool %s: %d chunks not published, left to the relay: %s", pool, len(chunks), error, exc_info=not known
            )
            self._lost(chunks)
            return 0
        return len(chunks)

    def _lost(self, chunks: Sequence[ChunkMessage]) -> None:
        """They may not be in the stream: the relay publishes them again when their lease is up."""
        self.settled([chunk.ref for chunk in chunks])

    def settled(self, refs: Iterable[ChunkRef | ChunkMessage]) -> None:
        """These chunks are done, refused or handed back: makes room, and wakes the relay if it left work behind.
        Whoever drops a chunk that it read from the stream says so here, else it counts as being on its way."""
        named = [ref.ref if isinstance(ref, ChunkMessage) else ref for ref in refs]
        with self._lock:
            freed = self._window.settle(named, self._monotonic()) & self._behind if named else set()
        if freed:
            self._wake_if_room(freed)

    def _wake_if_room(self, pairs: set[Pair]) -> None:
        with self._lock:
            room = any(self._window.room(pair, fill=_REFILL) for pair in pairs)
        if room:
            self._wake_relay()

    # -- the relay

    @property
    def has_room(self) -> bool:
        with self._lock:
            return self._window.room()

    @property
    def behind(self) -> frozenset[Pair]:
        """The (tenant, model) pairs with due work in the ledger that waits for room."""
        with self._lock:
            return frozenset(self._behind)

    def full_pairs(self) -> frozenset[Pair]:
        with self._lock:
            return self._window.full_pairs()

    def on_their_way(self, chunks: Sequence[ChunkMessage]) -> set[ChunkRef]:
        """Those that were published at this fence and not settled: to publish them again would help nobody."""
        with self._lock:
            now = self._monotonic()
            return {chunk.ref for chunk in chunks if self._window.holds(chunk.ref, now)}

    def caught_up(self, pairs: Iterable[Pair]) -> None:
        """The relay found nothing due any more of these."""
        with self._lock:
            self._behind.difference_update(pairs)


def _weight(chunk: NewChunk) -> int:
    return len(chunk.payload) if isinstance(chunk.payload, bytes) else 256
