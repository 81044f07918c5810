"""Decides items of held chunks: from what came back from an engine, or was stopped, to outcomes.

Everything here runs on the completer's thread. What the decisions are is in workers/isolation.py and
workers/outcomes.py; this is who they concern.
"""

import logging
from collections.abc import Sequence

from jobs import ranges
from jobs.errors import BatchyardError
from jobs.records import ChunkRef, ItemError
from workers import outcomes, payloads
from workers.engine_process import Loss
from workers.held import Flight, Held, HeldChunk
from workers.holding import Holding
from workers.host import Host
from workers.isolation import Suspicion, judge_batch
from workers.wire import Done

log = logging.getLogger("batchyard.runner")


class Decider:
    def __init__(self, name: str, holding: Holding, host: Host) -> None:
        self._name = name
        self._holding = holding
        self._host = host

    def landed(self, flight: Flight, done: Done, parts: Sequence[memoryview]) -> None:
        """A batch came back: its answers, or that the call as a whole raised."""
        self._unfly(flight)
        if done.error is not None:
            error = done.error
            log.info("%s: a batch of %d raised: %s", self._name, flight.size, error.message)
            self._isolate(flight)
            return
        worker = self._host.incarnation()
        now = self._host.clock()
        failed: dict[int, set[int]] = {}
        for failure in done.failures:
            failed.setdefault(failure.segment, set()).add(failure.position)
        for number, piece in enumerate(flight.pieces):
            chunk = piece.chunk
            if not chunk.live:
                continue
            chunk.decided.engine_seconds += done.engine_seconds * piece.count / flight.size
            if done.results[number] >= 0:
                positions = piece.positions
                if number in failed:
                    positions = ranges.pack(p for p in ranges.indexes(positions) if p not in failed[number])
                outcomes.succeed(chunk, positions, bytes(parts[done.results[number]]))
        for failure in done.failures:
            chunk = flight.pieces[failure.segment].chunk
            if chunk.live:
                outcomes.fail(chunk, failure, False, worker, now)
        self._check(flight)

    def lost(self, flights: Sequence[Flight], loss: Loss) -> None:
        """A process died, or was cut, with these in it: only the first one's items are suspects."""
        for flight in flights:
            self._unfly(flight)
        head, *behind = flights
        losses = max((piece.chunk.unstarted_losses for piece in head.pieces), default=0)
        suspicion = judge_batch(head.size, head.started_at is not None or loss.overran, losses)
        if suspicion is Suspicion.RETURN:
            for piece in head.pieces:
                piece.chunk.unstarted_losses += 1
            self._offer_again(head)
        elif suspicion is Suspicion.ISOLATE:
            self._isolate(head)
        else:
            self._culprit(head, loss)
        for flight in behind:
            self._offer_again(flight)

    def _isolate(self, flight: Flight) -> None:
        """Any of them may have done it: stored first, then one by one."""
        chunks = [piece.chunk for piece in flight.pieces if piece.chunk.live]
        refs = [chunk.ref for chunk in chunks]
        try:
            marked = self._host.ledger.call(lambda tx: tx.mark_alone(refs))
        except BatchyardError as error:
            log.warning("suspects cannot be marked (%s); their chunks come again", error)
            self._send_back(chunks)
            return
        for chunk, still_ours in zip(chunks, marked, strict=True):
            chunk.alone = True
            if not still_ours:
                self._holding.close([chunk])
        self._offer_again(flight)

    def _culprit(self, flight: Flight, loss: Loss) -> None:
        """One item was running when it happened. Its chunk is finished at once, so that nothing can go round."""
        piece = flight.pieces[0]
        chunk = piece.chunk
        if not chunk.live:
            return
        position = piece.positions[0][0]
        failure = outcomes.fatal_failure(0, position, loss.overran, chunk.message.run_timeout, loss.detail)
        outcomes.fail(chunk, failure, True, self._host.incarnation(), self._host.clock())
        with self._holding.changed:
            if self._holding.batcher is not None:
                self._holding.batcher.discard_chunk(chunk)
            rest = chunk.unsent()
        if chunk.stopped:
            outcomes.end(chunk, rest, None)
        else:
            chunk.alone = True
            outcomes.send_back(chunk, rest)
        self._check(flight)

    def return_flight(self, flight: Flight) -> None:
        self._unfly(flight)
        self._offer_again(flight)

    def _offer_again(self, flight: Flight) -> None:
        now = self._host.monotonic()
        ended: list[tuple[HeldChunk, list[int]]] = []
        with self._holding.changed:
            for piece in flight.pieces:
                if piece.chunk.live and piece.chunk.stopped:
                    ended.append((piece.chunk, list(ranges.indexes(piece.positions))))
                elif piece.chunk.live and not self._holding.draining:
                    self._holding.offer(piece.chunk, now, piece.positions)
            self._holding.changed.notify_all()
        for chunk, positions in ended:
            self.end(chunk, positions, None)

    def _unfly(self, flight: Flight) -> None:
        with self._holding.changed:
            for piece in flight.pieces:
                piece.chunk.flying.pop(flight.id, None)

    def _check(self, flight: Flight) -> None:
        for piece in flight.pieces:
            self._finished(piece.chunk)

    def _finished(self, chunk: HeldChunk) -> None:
        self._host.completer.check(chunk)
        if not chunk.live:
            self._holding.forget([chunk])

    def end(self, chunk: HeldChunk, positions: Sequence[int], error: ItemError | None) -> None:
        if chunk.live:
            pending = set(chunk.undecided())
            outcomes.end(chunk, [position for position in positions if position in pending], error)
            self._finished(chunk)

    def refuse(self, chunks: Sequence[HeldChunk], error: ItemError) -> None:
        for chunk in chunks:
            if chunk.live:
                outcomes.refuse(chunk, chunk.undecided(), error)
                self._finished(chunk)

    def _send_back(self, chunks: Sequence[HeldChunk]) -> None:
        for chunk in chunks:
            with self._holding.changed:
                if self._holding.batcher is not None:
                    self._holding.batcher.discard_chunk(chunk)
                rest = chunk.unsent()
            outcomes.send_back(chunk, rest)
            self._finished(chunk)

    def stop_jobs(self, jobs: frozenset[str]) -> None:
        """Their work must not start or go on: what is not in an engine is cancelled here and now."""
        with self._holding.changed:
            chunks = [chunk for chunk in self._holding.chunks() if chunk.message.job in jobs and chunk.live]
            for chunk in chunks:
                chunk.stopped = True
                if self._holding.batcher is not None:
                    self._holding.batcher.discard_chunk(chunk)
            claimed = [(chunk, chunk.unsent()) for chunk in chunks if chunk.state is Held.CLAIMED]
        self._holding.close([chunk for chunk in chunks if chunk.state is Held.FETCHED])
        for chunk, unsent in claimed:
            self.end(chunk, unsent, None)

    def fail_all(self, error: str) -> None:
        """The version cannot be loaded and says ``unavailable: fail``: what waits for it fails."""
        with self._holding.changed:
            chunks = list(self._holding.chunks())
            self._holding.clear()
        for chunk in chunks:
            try:
                payloads.describe(chunk, self._host.blobs)
            except (BatchyardError, OSError):
                continue  # it fails all the same, without ids
        self._holding.claim([chunk for chunk in chunks if chunk.state is Held.FETCHED])
        self.refuse([chunk for chunk in chunks if chunk.state is Held.CLAIMED], outcomes.unavailable(error))

    def give_back(self) -> None:
        """Everything that is not in an engine goes back uncharged (the worker stops)."""
        with self._holding.changed:
            self._holding.clear()
            chunks = [chunk for chunk in self._holding.chunks() if chunk.state is Held.CLAIMED]
            untouched = [chunk for chunk in chunks if chunk.untouched()]
            for chunk in untouched:
                chunk.state = Held.CLOSED
        refs: list[ChunkRef] = [chunk.ref for chunk in untouched]
        if refs:
            count = self._host.ledger.call(lambda tx: tx.hand_back(refs))
            log.info("%s: %d chunks handed back", self._name, count)
        self._send_back([chunk for chunk in chunks if chunk.live and not chunk.flying])

    def drop_everything(self) -> None:
        """The claims are void: whatever still comes of them is ignored."""
        with self._holding.changed:
            chunks = list(self._holding.chunks())
            self._holding.clear()
        self._holding.close(chunks)
