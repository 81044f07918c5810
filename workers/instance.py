"""One engine instance of a runner: forms, claims and sends batches, two deep, and hears what becomes of them."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from batcher.batch import Wait
from workers.engine_process import EngineGone, Loss
from workers.held import Flight, Piece
from workers.wire import Done, Loaded, Run, Segment, Start

if TYPE_CHECKING:
    from workers.runner import Runner

log = logging.getLogger("batchyard.runner")

DEPTH = 2
"""Batches in an engine process: one that runs and the next one, so that it need not wait for us."""
_IDLE = 0.5  # seconds between looks when nobody calls
_NEW = 0.2  # weight of the newest lead
_LONGEST_LEAD = 0.1  # seconds; a stalled claim must not make every later batch leave early


class Instance:
    """Its thread is the only one that sends; the process's thread tells it (Listener). State is under the runner's
    lock."""

    def __init__(self, runner: "Runner", number: int, start: Start) -> None:
        self._runner = runner
        self._flights: deque[Flight] = deque()
        self._launching: Flight | None = None  # formed, not sent yet
        self._generation: int | None = None  # of the process that is loaded
        self._last_done = 0.0
        self.process = runner.host.spawn(start, self, f"{start.model}@{start.version}#{number}")
        self._thread = threading.Thread(target=self._run, name=f"run {self.process.name}", daemon=True)

    def start(self) -> None:
        self.process.start()
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def busy(self) -> bool:
        """Something that somebody waits for is in the engine, or about to be."""
        with self._runner.holding.changed:
            return self._launching is not None or any(
                piece.chunk.live for flight in self._flights for piece in flight.pieces
            )

    # -- its thread

    def _run(self) -> None:
        while not self._runner.ended:
            try:
                self._turn()
            except Exception:
                # A fault of one batch must not end the thread that all others go through.
                log.exception("%s: a batch could not be sent", self.process.name)
                self._take_back()

    def _turn(self) -> None:
        runner = self._runner
        runner.open_arrived()
        with runner.holding.changed:
            flight = self._launching = self._form()
        if flight is not None:
            self._launch(flight)
            with runner.holding.changed:
                self._launching = None
                runner.holding.changed.notify_all()

    def _take_back(self) -> None:
        with self._runner.holding.changed:
            flight, self._launching = self._launching, None
            sent = flight in self._flights
            self._runner.holding.changed.wait(_IDLE)
        if flight is not None and not sent:
            self._runner.unsent(flight, flight.pieces)

    def _form(self) -> Flight | None:
        """Waits for a batch; None when something else is to be looked at first. Under the lock."""
        runner, holding = self._runner, self._runner.holding
        batcher = holding.batcher
        if holding.draining or self._generation is None or batcher is None or len(self._flights) >= DEPTH:
            holding.changed.wait(_IDLE)
            return None
        if holding.arrived:
            return None  # came after the last look: opened first
        now = runner.host.monotonic()
        answer = batcher.next(now, runner.host.clock(), self._free_at(), runner.lead)
        runner.drop_late()
        if isinstance(answer, Wait):
            holding.changed.wait(_IDLE if answer.until is None else max(0.0, min(_IDLE, answer.until - now)))
            return None
        return runner.new_flight(answer, now) if answer.spans else None

    def _free_at(self) -> float | None:
        """When the engine will have done what it was given; None: it has nothing."""
        if not self._flights:
            return None
        flight = self._flights[-1]
        assert self._runner.holding.batcher is not None
        began = flight.sent_at if flight.head_at is None else flight.head_at
        return began + self._runner.holding.batcher.estimate(flight.size)

    def _launch(self, flight: Flight) -> None:
        runner = self._runner
        runner.claim(flight)
        parts = runner.load(flight)
        with runner.holding.changed:
            stopped = [piece for piece in flight.pieces if piece.chunk.live and piece.chunk.stopped]
            generation = self._generation
            sending = [
                (piece, parts[piece.chunk]) for piece in flight.pieces if piece.chunk.live and not piece.chunk.stopped
            ]
            if generation is not None and sending:
                self._register(flight, [piece for piece, _ in sending])
        if stopped:
            runner.unsent(flight, stopped)
        if not sending:
            return
        if generation is None:
            runner.unsent(flight, [piece for piece, _ in sending])
            return
        runner.stats.formed(flight.batch)
        run = Run(flight.id, tuple(Segment(piece.positions, piece.chunk.message.attempts) for piece, _ in sending))
        try:
            self.process.send(run, [part for _, part in sending], generation)
        except EngineGone:
            log.info("%s: gone while a batch was sent", self.process.name)  # `lost` takes the flight along

    def _register(self, flight: Flight, pieces: Sequence[Piece]) -> None:
        """The flight is the process's from here on: `done` or `lost` ends it. Under the lock."""
        runner = self._runner
        flight.pieces = tuple(pieces)
        flight.run_timeout = min(piece.chunk.message.run_timeout for piece in pieces).total_seconds()
        now = flight.sent_at = runner.host.monotonic()
        runner.lead += _NEW * (min(now - flight.formed_at, _LONGEST_LEAD) - runner.lead)
        if not self._flights:
            flight.head_at = now
        self._flights.append(flight)

    # -- told by the process's thread

    def loaded(self, loaded: Loaded, generation: int) -> None:
        self._runner.loaded(loaded)
        with self._runner.holding.changed:
            self._generation = generation
            self._last_done = self._runner.host.monotonic()
            self._runner.holding.changed.notify_all()

    def load_failed(self, error: str) -> None:
        self._runner.load_failed(error)

    def started(self, flight: int, stage: str) -> None:
        with self._runner.holding.changed:
            if self._flights and self._flights[0].id == flight and self._flights[0].started_at is None:
                self._flights[0].started_at = self._runner.host.monotonic()

    def done(self, done: Done, parts: Sequence[memoryview]) -> None:
        runner = self._runner
        with runner.holding.changed:
            if not self._flights or self._flights[0].id != done.id:
                return
            flight = self._flights.popleft()
            now = runner.host.monotonic()
            if self._flights:
                self._flights[0].head_at = now
            if runner.holding.batcher is not None and done.error is None:
                turnaround = now - max(flight.sent_at, self._last_done)
                runner.holding.batcher.observe(flight.size, done.engine_seconds, turnaround)
            self._last_done = now
            runner.holding.changed.notify_all()
        runner.stats.ran(done.engine_seconds)
        runner.host.completer.post(lambda: runner.decider.landed(flight, done, parts))

    def lost(self, loss: Loss) -> bool:
        runner = self._runner
        with runner.holding.changed:
            flights, self._flights = list(self._flights), deque()
            self._generation = None
            runner.holding.changed.notify_all()
        if not runner.ended:
            runner.unloaded()
        if not flights:
            return False
        cut_at = flights[0].cut_at()
        if loss.overran and (cut_at is None or cut_at > runner.host.monotonic()):
            # The one that overran came back just before it was cut: the next one has done nothing.
            loss, flights[0].started_at = replace(loss, overran=False), None
        runner.host.completer.post(lambda: runner.decider.lost(flights, loss))
        return True

    def cut_at(self) -> float | None:
        """Without the lock: the watchdog must get through whoever holds it."""
        try:
            return self._flights[0].cut_at()
        except IndexError:
            return None
