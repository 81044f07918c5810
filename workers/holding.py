"""The chunks of one model version that this worker holds, and the batcher that they are offered to.

`changed` guards the batcher, the held chunks and the flights of the engine instances.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from batcher.forming import Batcher
from jobs.errors import BatchyardError
from jobs.models.spec import Tensor
from jobs.records import ChunkRef, Ranges
from workers import payloads
from workers.held import Held, HeldChunk
from workers.host import Host

log = logging.getLogger("batchyard.runner")

Key = tuple[str, int]  # job, seq


class Holding:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.changed = threading.Condition()
        self.batcher: Batcher | None = None  # made when the artifact has been read
        self.inputs: Sequence[Tensor] = ()
        self.draining = False  # no batch is formed any more
        self._held: dict[Key, HeldChunk] = {}
        self._arrived: deque[HeldChunk] = deque()

    def chunks(self) -> list[HeldChunk]:
        with self.changed:
            return list(self._held.values())

    def clear(self) -> None:
        """Nothing is left to form a batch from."""
        with self.changed:
            if self.batcher is not None:
                self.batcher.clear()
            self._arrived.clear()

    def discard(self, chunk: HeldChunk) -> None:
        with self.changed:
            if self.batcher is not None:
                self.batcher.discard_chunk(chunk)

    def take(self, chunks: Iterable[HeldChunk]) -> list[HeldChunk]:
        """Holds chunks that were fetched; gives back those that are held already (published twice)."""
        again: list[HeldChunk] = []
        with self.changed:
            if self.draining:
                return list(chunks)  # the relay publishes them again
            for chunk in chunks:
                key = (chunk.message.job, chunk.message.seq)
                held = self._held.get(key)
                if held is not None and held.live and held.message.fence >= chunk.message.fence:
                    again.append(chunk)
                    continue
                self._held[key] = chunk
                self._arrived.append(chunk)
            self.changed.notify_all()
        return again

    def open_arrived(self) -> list[tuple[HeldChunk, Exception]]:
        """Reads the headers of what arrived (a blob's from the blob store) and offers it. Not under the
        lock. Gives those whose payload cannot be read."""
        if self.batcher is None:
            return []
        unreadable: list[tuple[HeldChunk, Exception]] = []
        while True:
            with self.changed:
                if not self._arrived or self.draining:
                    return unreadable
                chunks = [self._arrived.popleft() for _ in range(min(len(self._arrived), 64))]
            opened: list[HeldChunk] = []
            for chunk in chunks:
                try:
                    payloads.describe(chunk, self._host.blobs)
                    opened.append(chunk)
                except (BatchyardError, OSError) as error:
                    unreadable.append((chunk, error))
            now = self._host.monotonic()
            with self.changed:
                for chunk in opened:
                    if chunk.live and not chunk.stopped and not self.draining:
                        self.offer(chunk, now)
                self.changed.notify_all()

    def offer(self, chunk: HeldChunk, now: float, positions: Ranges | None = None) -> None:
        assert self.batcher is not None
        for span in payloads.spans(chunk, self.inputs, now, positions):
            claimed = chunk.state is Held.CLAIMED
            self.batcher.offer(replace(span, queue_deadline_at=None) if claimed else span)

    def claim(self, chunks: Sequence[HeldChunk]) -> list[HeldChunk]:
        """Those that were got; the others are closed."""
        incarnation = self._host.incarnation()
        refs = [chunk.message.ref for chunk in chunks]
        try:
            fences = self._host.ledger.call(lambda tx: tx.claim(refs, incarnation))
        except BatchyardError as error:
            log.warning("%d chunks cannot be claimed (%s); they come again", len(refs), error)
            fences = [None] * len(refs)
        refused: list[HeldChunk] = []
        void: list[ChunkRef] = []
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
        self.close([chunk for chunk in refused if chunk.live])
        if void:  # let go while they were being claimed
            self._host.ledger.post(lambda tx: tx.hand_back(void))
        return [chunk for chunk in chunks if chunk.state is Held.CLAIMED]

    def close(self, chunks: Sequence[HeldChunk]) -> None:
        if not chunks:
            return
        with self.changed:
            for chunk in chunks:
                chunk.state = Held.CLOSED
        self.forget(chunks)
        self._host.settle(chunks)

    def forget(self, chunks: Sequence[HeldChunk]) -> None:
        with self.changed:
            for chunk in chunks:
                key = (chunk.message.job, chunk.message.seq)
                if self._held.get(key) is chunk:
                    del self._held[key]
