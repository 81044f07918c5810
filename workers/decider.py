"""Decides items of held chunks: from what came back from an engine, or was stopped, to outcomes.

Everything here runs on the completer's thread. What the decisions are is in workers/isolation.py and
workers/outcomes.py; this is who they concern.
"""

import logging
from collections.abc import Sequence

from jobs import ranges
from jobs.errors import BatchyardError
from jobs.records import ItemError
from workers import outcomes, payloads
from workers.engine_process import Loss
from workers.held import Flight, Held, HeldChunk, Piece
from workers.holding import Holding
from workers.host import Host
from workers.isolation import Suspicion, judge_batch
from workers.wire import BatchError, Done, Failure

log = logging.getLogger("batchyard.runner")


class Decider:
    def __init__(self, name: str, holding: Holding, host: Host) -> None:
        self._name = name
        self._holding = holding
        self._host = host

    # -- what came of a batch

    def landed(self, flight: Flight, done: Done, parts: Sequence[memoryview]) -> None:
        """A batch came back: its answers, or that the call as a whole raised."""
        self._unfly(flight, flight.pieces)
        if done.error is not None:
            self._raised(flight, done.error)
            return
        try:
            self._take_answers(flight, done, parts)
        except Exception:
            # No longer in the engine and not queued: what is not decided now would never be.
            log.exception("%s: an answer cannot be read", self._name)
            for piece in flight.pieces:
                self._unanswered(piece)
        self._check(flight.pieces)

    def _unanswered(self, piece: Piece) -> None:
        pending = set(piece.chunk.undecided()) if piece.chunk.live else set()
        for position in ranges.indexes(piece.positions):
            if position in pending:
                self._fail(piece.chunk, outcomes.unanswered(position))

    def _take_answers(self, flight: Flight, done: Done, parts: Sequence[memoryview]) -> None:
        failed: dict[int, set[int]] = {}
        for failure in done.failures:
            failed.setdefault(failure.segment, set()).add(failure.position)
            self._fail(flight.pieces[failure.segment].chunk, failure)
        each = done.engine_seconds / flight.size
        for number, piece in enumerate(flight.pieces):
            if piece.chunk.live:
                piece.chunk.decided.engine_seconds += each * piece.count
                part = done.results[number]
                self._answered(piece, failed.get(number), None if part < 0 else parts[part])

    def _answered(self, piece: Piece, failed: set[int] | None, frame: memoryview | None) -> None:
        positions = piece.positions
        if failed:
            positions = ranges.pack(position for position in ranges.indexes(positions) if position not in failed)
        missing = positions if frame is None else outcomes.succeed(piece.chunk, positions, bytes(frame))
        if missing:
            log.error("%s: no answer for %d items of %s", self._name, ranges.count(missing), piece.chunk.ref)
            for position in ranges.indexes(missing):
                self._fail(piece.chunk, outcomes.unanswered(position))

    def _fail(self, chunk: HeldChunk, failure: Failure, fatal: bool = False) -> None:
        if chunk.live:
            outcomes.fail(chunk, failure, fatal, self._host.incarnation(), self._host.clock())

    def _raised(self, flight: Flight, error: BatchError) -> None:
        """The call as a whole raised. Of a single item it is that item's failure; else nobody knows whose it was."""
        log.info("%s: a batch of %d raised: %s", self._name, flight.size, error.message)
        if judge_batch(flight.size, True, 0) is Suspicion.ISOLATE:
            self._isolate(flight)
            return
        piece = flight.pieces[0]
        self._fail(piece.chunk, outcomes.alone_failure(piece.positions[0][0], error))
        self._check(flight.pieces)

    def lost(self, flights: Sequence[Flight], loss: Loss) -> None:
        """A process died, or was cut, with these in it: only the first one's items are suspects."""
        for flight in flights:
            self._unfly(flight, flight.pieces)
        head, *behind = flights
        losses = max((piece.chunk.unstarted_losses for piece in head.pieces), default=0)
        suspicion = judge_batch(head.size, head.started_at is not None or loss.overran, losses)
        if suspicion is Suspicion.RETURN:
            for piece in head.pieces:
                piece.chunk.unstarted_losses += 1
            self._offer_again(head.pieces)
        elif suspicion is Suspicion.ISOLATE:
            self._isolate(head)
        else:
            self._culprit(head, loss)
        for flight in behind:
            self._offer_again(flight.pieces)

    def _isolate(self, flight: Flight) -> None:
        """Any of them may have done it: stored first, then one by one."""
        chunks = [piece.chunk for piece in flight.pieces if piece.chunk.live]
        refs = [chunk.ref for chunk in chunks]
        if not refs:
            return
        for chunk in chunks:
            chunk.alone = True  # and so are the children that carry on what is left of it
        try:
            marked = self._host.ledger.call(lambda tx: tx.mark_alone(refs))
        except BatchyardError as error:
            log.warning("suspects cannot be marked (%s); they go on in chunks that are", error)
            self._send_back(chunks)
            return
        self._holding.close([chunk for chunk, ours in zip(chunks, marked, strict=True) if not ours])
        self._offer_again(flight.pieces)

    def _culprit(self, flight: Flight, loss: Loss) -> None:
        """One item was running when it happened. Its chunk is finished at once, so that nothing can go round."""
        chunk, ((position, _),) = flight.pieces[0].chunk, flight.pieces[0].positions
        if not chunk.live:
            return
        limit = chunk.message.run_timeout
        self._fail(chunk, outcomes.fatal_failure(position, loss.overran, limit, loss.detail), fatal=True)
        chunk.alone = True
        self._send_back([chunk])

    # -- items that go on

    def returned(self, flight: Flight, pieces: Sequence[Piece]) -> None:
        """Items of a batch that was formed and then not sent."""
        self._unfly(flight, pieces)
        self._offer_again(pieces)

    def unreadable(self, flight: Flight, piece: Piece, lasting: bool) -> None:
        """The input of a piece could not be read before its batch was sent."""
        self._unfly(flight, [piece])
        for position in ranges.indexes(piece.positions):
            self._fail(piece.chunk, outcomes.unreadable(position, lasting))
        self._check([piece])

    def _offer_again(self, pieces: Sequence[Piece]) -> None:
        """Uncharged. What of them was decided meanwhile is left out; when no batch is formed any more, or the job was
        stopped, they are decided here."""
        now = self._host.monotonic()
        rest: list[HeldChunk] = []
        with self._holding.changed:
            for piece in pieces:
                chunk = piece.chunk
                if not chunk.live:
                    continue
                if chunk.stopped or self._holding.draining:
                    rest.append(chunk)
                    continue
                pending = set(chunk.undecided())
                positions = ranges.pack(p for p in ranges.indexes(piece.positions) if p in pending)
                if positions:
                    self._holding.offer(chunk, now, positions)
            self._holding.changed.notify_all()
        self._send_back(rest)

    def _send_back(self, chunks: Sequence[HeldChunk]) -> None:
        """All of them that is not in an engine goes on in an uncharged child chunk; of a stopped job it ends here."""
        for chunk in chunks:
            if not chunk.live:
                continue
            with self._holding.changed:
                self._holding.discard(chunk)
                rest = chunk.unsent()
            if chunk.stopped:
                outcomes.end(chunk, rest, None)
            else:
                outcomes.send_back(chunk, rest)
            self._finished(chunk)

    def _unfly(self, flight: Flight, pieces: Sequence[Piece]) -> None:
        with self._holding.changed:
            for piece in pieces:
                piece.chunk.flying.pop(flight.id, None)

    def _check(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._finished(piece.chunk)

    def _finished(self, chunk: HeldChunk) -> None:
        self._host.completer.check(chunk)
        if not chunk.live:
            self._holding.forget([chunk])

    # -- what others decided

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

    def stop_jobs(self, jobs: frozenset[str], patience: float) -> None:
        """Their work must not start or go on: what is in no engine is cancelled here and now, what is in one after
        `patience` seconds, so that the answers there are get written before the ledger ends the chunk by force."""
        with self._holding.changed:
            chunks = [chunk for chunk in self._holding.chunks() if chunk.message.job in jobs and chunk.live]
            for chunk in chunks:
                chunk.stopped = True
                self._holding.discard(chunk)
            claimed = [chunk for chunk in chunks if chunk.state is Held.CLAIMED]
            # One that is just being claimed is left to the batch that does it.
            self._holding.close([chunk for chunk in chunks if chunk.state is Held.FETCHED and not chunk.flying])
        self._send_back(claimed)
        late = [chunk for chunk in claimed if chunk.live]
        if late:
            self._host.completer.later(patience, lambda: self._cut(late))

    def _cut(self, chunks: Sequence[HeldChunk]) -> None:
        for chunk in chunks:
            self.end(chunk, chunk.undecided(), None)

    def fail_all(self, error: str) -> None:
        """The version cannot be loaded and says ``unavailable: fail``: what waits for it fails."""
        with self._holding.changed:
            chunks = [chunk for chunk in self._holding.chunks() if not chunk.flying]
            for chunk in chunks:
                self._holding.discard(chunk)
            self._holding.arrived.clear()  # all of them are among these
        for chunk in chunks:
            try:
                payloads.describe(chunk, self._host.blobs)
            except (BatchyardError, OSError):
                continue  # it fails all the same, without ids
        self.refuse(self._holding.claim(chunks), outcomes.unavailable(error))

    def give_back(self) -> None:
        """No batch is formed any more, and what is in the engines is no longer waited for: everything that is not
        decided goes back uncharged, and whatever still comes of it is ignored."""
        with self._holding.changed:
            self._holding.clear()
            chunks = [chunk for chunk in self._holding.chunks() if chunk.live]
            for chunk in chunks:
                chunk.flying.clear()
            # One that is just being claimed sees that it is closed, and is handed back by who claims it.
            unclaimed = [chunk for chunk in chunks if chunk.state is Held.FETCHED]
            self._holding.close(unclaimed)
            claimed = [chunk for chunk in chunks if chunk.live]
            untouched = [chunk for chunk in claimed if chunk.untouched()]
        if unclaimed:
            self._holding.release([chunk.ref for chunk in unclaimed])
        self._send_back([chunk for chunk in claimed if not chunk.untouched()])
        if untouched:
            log.info("%s: %d chunks go back to the ledger", self._name, len(untouched))
            self._holding.hand_back([chunk.ref for chunk in untouched])
            self._holding.close(untouched)

    def drop_everything(self) -> None:
        """The claims are void: whatever still comes of them is ignored."""
        with self._holding.changed:
            chunks = [chunk for chunk in self._holding.chunks() if chunk.live]
            self._holding.clear()
        self._holding.close(chunks)
