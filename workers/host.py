"""What a runner has from its supervisor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.blob import BlobStore
from jobs.clock import Clock
from jobs.ledger import Ledger
from jobs.models.catalog import ModelVersion
from workers.completer import Completer
from workers.engine_process import EngineProcess, Listener
from workers.held import HeldChunk
from workers.wire import Run, Start


class Child(Protocol):
    """An engine process as its instance sees it (workers/engine_process.py)."""

    name: str

    @property
    def pid(self) -> int | None: ...

    def start(self) -> None: ...

    def send(self, run: Run, parts: Sequence[bytes | memoryview], generation: int) -> None: ...

    def check(self, now: float) -> None: ...

    def begin_stop(self) -> None: ...

    def finish_stop(self, deadline: float) -> None: ...


Spawn = Callable[[Start, Listener, str], Child]


@dataclass(frozen=True, slots=True)
class Host:
    ledger: Ledger
    blobs: BlobStore
    completer: Completer
    settle: Callable[[Sequence[HeldChunk]], None]
    report: Callable[[ModelVersion], None]  # a version's new state
    incarnation: Callable[[], str]
    clock: Clock
    monotonic: Callable[[], float]
    doubt: Callable[[], None] = lambda: None  # a claim was refused: does the incarnation still count?
    spawn: Spawn = EngineProcess
