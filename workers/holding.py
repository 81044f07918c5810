"""The chunks of one model version that this worker holds, and the batcher that they are offered to.

`changed` guards the batcher, the held chunks and the flights of the engine instances.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from batcher.batch import Span
from batcher.forming import Batcher
from jobs.errors import BatchyardError, Undecodable
from jobs.models.spec import Tensor
from jobs.records import ChunkRef, Ranges
from workers import payloads
from workers.held import Held, HeldChunk
from workers.host import Host

log = logging.getLogger("batchyard.runner")

Key = tuple[str, int]  # job, seq
_HAND_BACK_AGAIN = 1.0  # seconds


class Holding:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.changed = threading.Condition()
        self.batcher: Batcher | None = None  # made when the artifact has been read
        self.inputs: Sequence[Tensor] = ()
        self.draining = False  # no batch is formed any more
        self._claiming = threading.Lock()  # a chunk spread over batches of two instances is claimed once
        self._held: dict[Key, HeldChunk] = {}
        self.arrived: deque[HeldChunk] = deque()  # not offered yet

    def chunks(self) -> list[HeldChunk]:
        with self.changed:
            return list(self._held.values())

    def clear(self) -> None:
        """Nothing is left to form a batch from."""
        with self.changed:
            if self.batcher is not None:
                self.batcher.clear()
            self.arrived.clear()

    def discard(self, chunk: HeldChunk) -> None:
        with self.changed:
            if self.batcher is not None:
                self.batcher.discard_chunk(chunk)

    def take(self, chunks: Iterable[HeldChunk]) -> list[HeldChunk]:
        """Holds chunks that were fetched; gives back those that are held already (published twice)."""
        again: list[HeldChunk] = []
        taken_away: list[HeldChunk] = []
        with self.changed:
            if self.draining:
                return list(chunks)  # the relay publishes them again
            for chunk in chunks:
                key = (chunk.message.job, chunk.message.seq)
                held = self._held.get(key)
                if held is not None and held.live and held.message.fence >= chunk.message.fence:
                    again.append(chunk)
                    continue
                if held is not None:
                    self.discard(held)
                    taken_away.append(held)
                self._held[key] = chunk
                self.arrived.append(chunk)
            self.changed.notify_all()
        if taken_away:  # the ledger gave them out anew: what still comes of them here would be refused
            self._host.completer.post(lambda: self.close(taken_away))
        return again

    def open_arrived(self) -> list[tuple[HeldChunk, Exception]]:
        """Reads the headers of what arrived (a blob's from the blob store) and offers it. Not under the lock. Gives
        those whose payload cannot be read."""
        if self.batcher is None:
            return []
        unreadable: list[tuple[HeldChunk, Exception]] = []
        while True:
            with self.changed:
                if not self.arrived or self.draining:
                    return unreadable
                chunks = [self.arrived.popleft() for _ in range(min(len(self.arrived), 64))]
            opened: list[tuple[HeldChunk, list[Span]]] = []
            now = self._host.monotonic()
            for chunk in chunks:
                try:
                    payloads.describe(chunk, self._host.blobs)
                    opened.append((chunk, payloads.spans(chunk, self.inputs, now)))
                except (BatchyardError, OSError) as error:
                    unreadable.append((chunk, error))
                except Exception as error:
                    # A header that contradicts itself: its neighbours must not wait for ever because of it.
                    unreadable.append((chunk, Undecodable(f"payload header: {type(error).__name__}: {error}")))
            with self.changed:
                for chunk, spans in opened:
                    if chunk.live and not chunk.stopped and not self.draining:
                        for span in spans:
                            self.batcher.offer(span)
                self.changed.notify_all()

    def offer(self, chunk: HeldChunk, now: float, positions: Ranges | None = None) -> None:
        assert self.batcher is not None
        for span in payloads.spans(chunk, self.inputs, now, positions):
            claimed = chunk.state is Held.CLAIMED
            self.batcher.offer(replace(span, queue_deadline_at=None) if claimed else span)

    def claim(self, chunks: Sequence[HeldChunk]) -> list[HeldChunk]:
        """Claims those that are not; gives the ones that are claimed then, the others are closed."""
        with self._claiming:
            fresh = [chunk for chunk in chunks if chunk.state is Held.FETCHED]
            if fresh:
                self._claim(fresh)
        return [chunk for chunk in chunks if chunk.state is Held.CLAIMED]

    def _claim(self, chunks: Sequence[HeldChunk]) -> None:
        incarnation = self._host.incarnation()
        refs = [chunk.message.ref for chunk in chunks]
        fences: list[int | None] = [None] * len(refs)
        void: list[ChunkRef] = []  # claimed, or perhaps claimed, and not wanted
        try:
            fences = self._host.ledger.call(lambda tx: tx.claim(refs, incarnation))
        except BatchyardError as error:
            log.warning("%d chunks cannot be claimed (%s); they come again", len(refs), error)
            # Nobody knows whether that was written; a claim that nobody knows of would never end.
            void += [replace(ref, fence=ref.fence + 1) for ref in refs]
        refused: list[HeldChunk] = []
        with self.changed:
            for chunk, ref, fence in zip(chunks, refs, fences, strict=True):
                if fence is None:
                    refused.append(chunk)
                elif chunk.live:
                    chunk.state, chunk.fence, chunk.incarnation = Held.CLAIMED, fence, incarnation
                else:
                    void.append(replace(ref, fence=fence))
            for chunk in refused:
                self.discard(chunk)
        self.close(refused)
        if refused:
            # Ours is perhaps a lease that has lapsed; whoever can claim them shall have them now, not when the
            # publishing lease is up.
            self._host.doubt()
            self._host.completer.post(lambda: self.release([chunk.message.ref for chunk in refused]))
        if void:
            self._host.completer.post(lambda: self.hand_back(void))

    def hand_back(self, refs: Sequence[ChunkRef]) -> None:
        """To the ledger; tried until it takes them. On the completer's thread."""
        try:
            self._host.ledger.call(lambda tx: tx.hand_back(refs))
        except BatchyardError as error:
            log.warning("%d chunks cannot be handed back (%s); trying again", len(refs), error)
            self._host.completer.later(_HAND_BACK_AGAIN, lambda: self.hand_back(refs))

    def release(self, refs: Sequence[ChunkRef]) -> None:
        """To the relay; what cannot be said now is found when its publishing lease is up. On the completer's thread."""
        try:
            self._host.ledger.call(lambda tx: tx.release(refs))
        except BatchyardError as error:
            log.warning("%d chunks wait until their publishing lease is up (%s)", len(refs), error)

    def close(self, chunks: Sequence[HeldChunk]) -> None:
        """Those that are not closed yet. Whoever closes a chunk settles it: once, or its record would be committed
        before its neighbours are done."""
        with self.changed:
            closing = [chunk for chunk in chunks if chunk.live]
            for chunk in closing:
                chunk.state = Held.CLOSED
        if closing:
            self.forget(closing)
            self._host.settle(closing)

    def let_go(self) -> list[HeldChunk]:
        """Gives up the chunks that nothing was done with, as if they had just been fetched. They are not settled."""
        with self.changed:
            free = [chunk for chunk in self._held.values() if chunk.state is Held.FETCHED and not chunk.flying]
            for chunk in free:
                self.discard(chunk)
                chunk.state = Held.CLOSED  # a claim that is under way is handed back by who made it
            self.forget(free)
        return [HeldChunk(chunk.message, chunk.origin) for chunk in free]

    def forget(self, chunks: Sequence[HeldChunk]) -> None:
        with self.changed:
            for chunk in chunks:
                key = (chunk.message.job, chunk.message.seq)
                if self._held.get(key) is chunk:
                    del self._held[key]
