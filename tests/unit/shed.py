"""A runner's chunks and its decider, with a ledger and a completer that do as they are told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from batcher.batch import Batch, Closed, Limits
from batcher.forming import Batcher
from jobs import frames
from jobs.blobs.directory import DirectoryBlobs
from jobs.errors import Unavailable
from jobs.frames import PayloadHeader, ResultHeader
from jobs.records import ChunkMessage, ChunkRef, Ranges
from jobs.states import ErrorCode, Outcome, Priority
from workers.decider import Decider
from workers.engine_process import Loss
from workers.held import Flight, Held, HeldChunk, Piece
from workers.holding import Holding
from workers.host import Host
from workers.offsets import Origin
from workers.wire import BatchError, Done

NOW = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)
S, F, C, M = (int(o) for o in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.MOVED))
DIED, CUT = Loss(False, "signal SIGKILL"), Loss(True, "signal SIGKILL")


class FakeLedger:
    """Also its own transaction. Grants every claim, unless told otherwise; `meanwhile` happens during a call."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.down = 0  # calls that fail
        self.not_ours: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None
        self.handed_back: list[ChunkRef] = []
        self.released: list[ChunkRef] = []
        self.marked: list[ChunkRef] = []
        self.claimed: list[ChunkRef] = []

    def call(self, change: Callable[[Any], Any]) -> Any:
        self.meanwhile()
        if self.down:
            self.down -= 1
            raise Unavailable("the ledger is away")
        return change(self)

    def claim(self, refs: Sequence[ChunkRef], incarnation: str) -> list[int | None]:
        self.claimed += refs
        return [None if ref.job in self.refused else ref.fence + 1 for ref in refs]

    def mark_alone(self, refs: Sequence[ChunkRef]) -> list[bool]:
        self.marked += refs
        return [ref.job not in self.not_ours for ref in refs]

    def release(self, refs: Sequence[ChunkRef]) -> int:
        self.released += refs
        return len(refs)

    def hand_back(self, refs: Sequence[ChunkRef]) -> int:
        self.handed_back += refs
        return len(refs)


class FakeCompleter:
    """Does what was posted when the test says so."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], object]] = []
        self.due_later: list[Callable[[], object]] = []
        self.ready: list[HeldChunk] = []

    def post(self, work: Callable[[], object]) -> None:
        self.posted.append(work)

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        self.due_later.append(work)

    def check(self, chunk: HeldChunk) -> None:
        if chunk.live and chunk.decided.undecided == 0:
            chunk.state = Held.CLOSED
            self.ready.append(chunk)

    def run(self) -> None:
        while self.posted:
            self.posted.pop(0)()

    def run_later(self) -> None:
        due, self.due_later = self.due_later, []
        for work in due:
            work()


@dataclass
class Shed:
    blobs: DirectoryBlobs
    ledger: FakeLedger = field(default_factory=FakeLedger)
    completer: FakeCompleter = field(default_factory=FakeCompleter)
    settled: list[HeldChunk] = field(default_factory=list)
    flights: int = 0

    def __post_init__(self) -> None:
        host = Host(
            ledger=self.ledger,  # type: ignore[arg-type]
            blobs=self.blobs,
            completer=self.completer,  # type: ignore[arg-type]
            settle=self.settled.extend,
            report=lambda version: None,
            incarnation=lambda: "wrk_1",
            clock=lambda: NOW,
            monotonic=lambda: 100.0,
        )
        self.holding = Holding(host)
        self.holding.batcher = Batcher(Limits(max_size=8, max_queue_delay=0.0))
        self.decider = Decider("m@1", self.holding, host)

    @property
    def queued(self) -> int:
        assert self.holding.batcher is not None
        return self.holding.batcher.queued

    def fetched(self, job: str, count: int = 4, *, fence: int = 0, header: PayloadHeader | None = None) -> HeldChunk:
        header = header or PayloadHeader("json", ((0, count),))
        payload = frames.pack(header, [b"%d" % at for at in range(count)])
        message = ChunkMessage(
            job=job, seq=0, fence=fence, tenant="acme", model="m", version="1", priority=Priority.NORMAL, count=count,
            alone=False, attempts=0, max_attempts=3, run_timeout=timedelta(seconds=30), created_at=NOW,
            queue_deadline_at=None, deadline_at=None, traceparent=None, payload=payload,
        )  # fmt: skip
        return HeldChunk(message, Origin(0, 0, 1))

    def take(self, *chunks: HeldChunk) -> list[HeldChunk]:
        again = self.holding.take(chunks)
        assert self.holding.open_arrived() == []
        return again

    def form(self) -> Flight:
        """A batch, as an instance forms it: its items count as flying."""
        assert self.holding.batcher is not None
        batch = self.holding.batcher.next(100.0, NOW)
        assert isinstance(batch, Batch), batch
        return self.fly(*(Piece(span.chunk, ((span.start, span.stop),)) for span in batch.spans), batch=batch)

    def fly(self, *pieces: Piece, batch: Batch | None = None) -> Flight:
        self.flights += 1
        flight = Flight(self.flights, batch or Batch(None, (), Closed.FULL, 0, 0), pieces, formed_at=100.0)
        for piece in pieces:
            piece.chunk.flying[flight.id] = piece.positions
        return flight

    def claim(self, flight: Flight) -> Flight:
        self.holding.claim([piece.chunk for piece in flight.pieces])
        flight.started_at = 100.0
        return flight

    def held(self, job: str, count: int = 4, *flights: Ranges) -> tuple[HeldChunk, list[Flight]]:
        """A claimed chunk with these positions in flights; nothing of it is in the batcher."""
        chunk = self.fetched(job, count)
        self.take(chunk)
        self.holding.discard(chunk)
        self.holding.claim([chunk])
        made = [self.fly(Piece(chunk, positions)) for positions in flights]
        for flight in made:
            flight.started_at = 100.0
        return chunk, made

    def land(self, flight: Flight) -> None:
        parts = [
            memoryview(frames.pack(ResultHeader("json", p.positions), [b"1"] * p.count))  # indexes are positions here
            for p in flight.pieces
        ]
        self.decider.landed(flight, Done(flight.id, 0.1, 0.1, tuple(range(len(parts)))), parts)

    def raised(self, flight: Flight) -> None:
        error = BatchError(ErrorCode.HANDLER_ERROR, "boom", False, "predict")
        self.decider.landed(flight, Done(flight.id, 0.1, 0.1, error=error), [])
