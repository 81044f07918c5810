"""What a worker holds: chunks it has fetched, and the flights that carry their items through an engine.

Who may change what: `state`, `flying`, `stopped`, `alone` and the payload belong to the runner (under its lock);
outcomes and everything a finish is made of belong to the completer, which is one thread.
"""

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from batcher.batch import Batch
from jobs import ranges
from jobs.frames import PayloadHeader
from jobs.records import Attempt, BlobRef, ChunkMessage, ChunkRef, ItemError, Ranges
from jobs.states import Outcome
from workers.offsets import Origin


class Held(Enum):
    FETCHED = "fetched"  # not claimed: nothing of it has run here
    CLAIMED = "claimed"
    CLOSED = "closed"  # finished, refused, handed back or void: whatever still comes for it is ignored


class Line(msgspec.Struct, frozen=True, gc=False):
    """The result line of an item that has no output."""

    position: int
    error: ItemError
    attempts: int  # charged, this one included


@dataclass(slots=True)
class Decided:
    """What became of the items of a chunk so far, by position in the chunk."""

    outcomes: bytearray  # jobs.states.Outcome, one an item
    undecided: int
    frames: list[bytes] = field(default_factory=list)  # result frames of succeeded items
    failed: list[Line] = field(default_factory=list)
    expired: list[Line] = field(default_factory=list)
    retried: list[tuple[int, float | None]] = field(default_factory=list)  # position, the pause asked for (seconds)
    returned: list[int] = field(default_factory=list)  # go on in an uncharged child chunk
    attempts: list[Attempt] = field(default_factory=list)
    engine_seconds: float = 0.0
    output_bytes: int = 0


class HeldChunk:
    """One chunk in memory. Compared by identity."""

    __slots__ = (
        "alone", "decided", "fence", "flying", "header", "incarnation", "message", "origin", "payload", "state",
        "stopped", "unstarted_losses",
    )  # fmt: skip

    def __init__(self, message: ChunkMessage, origin: Origin) -> None:
        self.message = message
        self.origin = origin
        self.payload: bytes | None = None if isinstance(message.payload, BlobRef) else message.payload
        self.header: PayloadHeader | None = None
        self.state = Held.FETCHED
        self.fence: int | None = None  # of the claim
        self.incarnation = ""  # that claimed it
        self.alone = message.alone
        self.stopped = False  # its job was: nothing more of it is sent
        self.flying: dict[int, Ranges] = {}  # flight -> positions
        self.unstarted_losses = 0
        self.decided = Decided(bytearray(message.count), message.count)

    @property
    def live(self) -> bool:
        return self.state is not Held.CLOSED

    @property
    def ref(self) -> ChunkRef:
        """As of the claim (or of the message, before it)."""
        message = self.message
        return ChunkRef(message.job, message.seq, message.fence if self.fence is None else self.fence)

    def untouched(self) -> bool:
        """No item of it is decided and none is in an engine."""
        return self.decided.undecided == self.message.count and not self.flying

    def undecided(self) -> list[int]:
        pending = int(Outcome.PENDING)
        return [position for position, outcome in enumerate(self.decided.outcomes) if outcome == pending]

    def unsent(self) -> list[int]:
        """Undecided positions that no engine has."""
        flying = {position for flown in self.flying.values() for position in ranges.indexes(flown)}
        return [position for position in self.undecided() if position not in flying]


class Piece(msgspec.Struct, frozen=True, gc=False):
    """The items of one chunk in a flight: sorted, disjoint ranges of positions."""

    chunk: HeldChunk
    positions: Ranges

    @property
    def count(self) -> int:
        return ranges.count(self.positions)


@dataclass(slots=True, eq=False)
class Flight:
    """A batch on its way through one engine process. Times are monotonic seconds."""

    id: int
    batch: Batch
    pieces: tuple[Piece, ...]  # of the batch; once it is sent, what is left of them
    formed_at: float
    run_timeout: float = 0.0  # seconds; known when it is sent
    sent_at: float = 0.0
    head_at: float | None = None  # nothing is before it in its process since
    started_at: float | None = None  # its first stage was reported

    @property
    def size(self) -> int:
        return sum(piece.count for piece in self.pieces)

    def cut_at(self) -> float | None:
        """When its run limit is up: counted from its first stage, or from when a stage could have been reported."""
        began = self.head_at if self.started_at is None else self.started_at
        return None if began is None else began + self.run_timeout
