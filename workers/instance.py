"""One engine instance of a runner: forms, claims and sends batches, two deep, and hears what becomes of them."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batcher.batch import Batch, Wait
from workers.engine_process import EngineGone, EngineProcess, Loss
from workers.held import Flight, Piece
from workers.wire import Done, Loaded, Run, Segment, Start

if TYPE_CHECKING:
    from workers.runner import Runner

DEPTH = 2
"""Batches in an engine process: one that runs and the next one, so that it need not wait for us."""


class Instance:
    """Its thread is the only one that sends; the process's thread tells it (Listener). State is under the runner's
    lock."""

    def __init__(self, runner: "Runner", number: int, start: Start) -> None:
        self._runner = runner
        self._flights: deque[Flight] = deque()
        self._generation: int | None = None  # of the process that is loaded
        self._last_done = 0.0
        self.process = EngineProcess(start, self, f"{start.model}@{start.version}#{number}")
        self._thread = threading.Thread(target=self._run, name=f"run {self.process.name}", daemon=True)

    def start(self) -> None:
        self.process.start()
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    # -- its thread

    def _run(self) -> None:
        runner = self._runner
        while True:
            runner.open_arrived()
            with runner.holding.changed:
                batch = self._next()
            if batch is None:
                if runner.ended:
                    return
                continue
            if batch.spans:
                self._launch(batch)

    def _next(self) -> Batch | None:
        """Waits for a batch; None when something else is to be looked at first. Under the lock."""
        runner = self._runner
        if (
            runner.holding.draining
            or self._generation is None
            or runner.holding.batcher is None
            or len(self._flights) >= DEPTH
        ):
            runner.holding.changed.wait(0.5)
            return None
        now = runner.host.monotonic()
        answer = runner.holding.batcher.next(now, runner.host.clock(), self._free_at(), runner.lead)
        runner.drop_late()
        if isinstance(answer, Wait):
            runner.holding.changed.wait(0.5 if answer.until is None else max(0.0, min(0.5, answer.until - now)))
            return None
        return answer

    def _free_at(self) -> float | None:
        """When the engine will have done what it was given; None: it has nothing."""
        if not self._flights:
            return None
        flight = self._flights[-1]
        assert self._runner.holding.batcher is not None
        began = flight.sent_at if flight.head_at is None else flight.head_at
        return began + self._runner.holding.batcher.estimate(flight.size)

    def _launch(self, batch: Batch) -> None:
        runner = self._runner
        formed_at = runner.host.monotonic()
        pieces = runner.claim(batch)
        if not pieces:
            return
        loaded = runner.payloads(pieces)
        if loaded is None:
            return
        pieces, parts = loaded
        with runner.holding.changed:
            flight = runner.new_flight(batch, pieces, formed_at)
            now = flight.sent_at = runner.host.monotonic()
            runner.lead += 0.2 * (min(now - formed_at, 0.1) - runner.lead)
            if not self._flights:
                flight.head_at = now
            generation = self._generation
            self._flights.append(flight)
        run = Run(flight.id, tuple(Segment(piece.positions, piece.chunk.message.attempts) for piece in pieces))
        try:
            if generation is None:
                raise EngineGone(self.process.name)
            self.process.send(run, parts, generation)
        except EngineGone:
            with runner.holding.changed:
                mine = flight in self._flights
                if mine:
                    self._flights.remove(flight)
            if mine:  # else the loss of the process has taken it along
                runner.unsent(flight)

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
        if flights:
            runner.host.completer.post(lambda: runner.decider.lost(flights, loss))
        return bool(flights)

    def cut_at(self) -> float | None:
        flights = self._flights
        try:
            return flights[0].cut_at()
        except IndexError:
            return None


def pieces_of(batch: Batch) -> list[Piece]:
    """The items of a batch by chunk, in the order in which they were taken."""
    taken: dict[int, tuple[object, list[tuple[int, int]]]] = {}
    for span in batch.spans:
        taken.setdefault(id(span.chunk), (span.chunk, []))[1].append((span.start, span.stop))
    return [Piece(chunk, _merged(sorted(positions))) for chunk, positions in taken.values()]  # type: ignore[arg-type]


def _merged(positions: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in positions:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
