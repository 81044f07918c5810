"""The runner of one model version: runs its chunks on its engine instances.

Who calls what: the intake gives chunks (`take`); instance threads form, claim and send; the completer's thread
decides (`decider`).
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from batcher.batch import Batch
from batcher.forming import Batcher
from jobs.errors import BatchyardError
from jobs.models.catalog import ModelVersion, VersionState
from jobs.models.spec import ModelSpec, Tensor
from jobs.records import BlobRef, ItemError
from jobs.states import ErrorCode
from workers import outcomes, payloads
from workers.decider import Decider
from workers.held import Flight, Held, HeldChunk, Piece
from workers.holding import Holding
from workers.host import Host
from workers.instance import Instance
from workers.limits import batch_limits, elements_of
from workers.stats import BatchStats
from workers.wire import DescribedTensor, Loaded, Start

log = logging.getLogger("batchyard.runner")


Files = tuple[tuple[str, int, int], ...]


class Runner:
    def __init__(self, version: ModelVersion, repository: str, threads: int, host: Host) -> None:
        self.source = version  # as the repository has it
        self.files = files_of(version.spec.folder, version.spec.version)
        self.version = version  # as the engine found it
        self.host = host
        self.holding = Holding(host)
        self.decider = Decider("@".join(version.spec.key), self.holding, host)
        self.stats = BatchStats()
        self.lead = 0.002  # seconds from forming a batch to its run, a moving average
        self.ended = False
        self.shown = False  # the catalog shows this one: not while an older form of the version still serves
        self.outcome = threading.Event()  # set once the first load has ended, either way
        self._flight = 0
        self._loaded = 0  # instances that are
        spec = version.spec
        start = Start(repository, spec.name, spec.version, threads)
        self.instances = tuple(Instance(self, number, start) for number in range(spec.instances))

    @property
    def spec(self) -> ModelSpec:
        return self.version.spec

    @property
    def held_items(self) -> int:
        return sum(chunk.decided.undecided for chunk in self.holding.chunks())

    def start(self) -> None:
        for instance in self.instances:
            instance.start()

    # -- the intake's thread

    def take(self, chunks: Sequence[HeldChunk]) -> list[HeldChunk]:
        """Gives back those that are held already."""
        again = self.holding.take(chunks)
        if self.version.state is VersionState.UNAVAILABLE:
            self._fail_waiting(self.version.error or "the version cannot be loaded")
        return again

    # -- instance threads

    def open_arrived(self) -> None:
        for chunk, error in self.holding.open_arrived():
            self._unreadable(chunk, error)

    def _unreadable(self, chunk: HeldChunk, error: Exception) -> None:
        if not payloads.lasting(error):
            log.warning("the payload of %s cannot be read now (%s); it comes again", chunk.ref, error)
            self.holding.close([chunk])
            return
        log.error("the payload of %s is unreadable: %s", chunk.ref, error)
        if self.holding.claim([chunk]):
            failure = ItemError(ErrorCode.SOURCE_UNREADABLE, "the stored input cannot be read", True, "decode")
            self.host.completer.post(lambda: self.decider.refuse([chunk], failure))

    def drop_late(self) -> None:
        """What the batcher dropped because its time was up. Under the lock."""
        assert self.holding.batcher is not None
        for dropped in self.holding.batcher.dropped():
            chunk: HeldChunk = dropped.span.chunk
            if chunk.state is Held.FETCHED and not chunk.flying:
                # The expirer ends it in the ledger; here it is only let go.
                self.holding.discard(chunk)
                self.holding.close([chunk])
            else:
                positions = list(range(dropped.span.start, dropped.span.stop))
                late = outcomes.deadline_exceeded()
                self.host.completer.post(partial(self.decider.end, chunk, positions, late))

    def new_flight(self, batch: Batch, now: float) -> Flight:
        """Its items count as being in an engine from here on. Under the lock."""
        self._flight += 1
        flight = Flight(self._flight, batch, tuple(pieces_of(batch)), formed_at=now)
        for piece in flight.pieces:
            piece.chunk.flying[flight.id] = piece.positions
        return flight

    def claim(self, flight: Flight) -> None:
        """Claims the chunks that are touched for the first time; those that cannot be got are closed."""
        self.holding.claim([piece.chunk for piece in flight.pieces])

    def load(self, flight: Flight) -> dict[HeldChunk, bytes]:
        """The payload frame of each live chunk, fetched where it lies in a blob. Pieces whose payload cannot be read
        leave the flight."""
        frames: dict[HeldChunk, bytes] = {}
        unreadable: list[Piece] = []
        for piece in flight.pieces:
            chunk = piece.chunk
            if not chunk.live:
                continue
            try:
                if chunk.payload is None:
                    assert isinstance(chunk.message.payload, BlobRef)
                    chunk.payload = payloads.fetch(chunk.message.payload, self.host.blobs)
                frames[chunk] = chunk.payload
            except (BatchyardError, OSError) as error:
                log.error("the payload of %s cannot be fetched: %s", chunk.ref, error)
                unreadable.append(piece)
                lasting = payloads.lasting(error)
                self.host.completer.post(partial(self.decider.unreadable, flight, piece, lasting))
        if unreadable:
            flight.pieces = tuple(piece for piece in flight.pieces if piece not in unreadable)
        return frames

    def unsent(self, flight: Flight, pieces: Sequence[Piece]) -> None:
        """Formed, but not to be sent: the process is gone, or the job was stopped."""
        self.host.completer.post(lambda: self.decider.returned(flight, pieces))

    # -- the process's thread

    def loaded(self, loaded: Loaded) -> None:
        spec = self.spec.with_tensors(_tensors(loaded.inputs), _tensors(loaded.outputs))
        if loaded.batching_reason is not None:
            log.warning("%s@%s is served one by one: %s", spec.name, spec.version, loaded.batching_reason)
        with self.holding.changed:
            self.version = replace(
                self.version,
                spec=spec,
                state=VersionState.READY,
                error=None,
                artifact_sha256=loaded.artifact_sha256,
                batching=loaded.batching,
                batching_reason=loaded.batching_reason,
                described=True,
            )
            self.holding.inputs = spec.inputs
            if self.holding.batcher is None:
                self.holding.batcher = Batcher(batch_limits(spec, loaded.max_size), elements_of(spec))
            self._loaded += 1
            version = self.version
        self._report(version)
        self.outcome.set()

    def load_failed(self, error: str) -> None:
        log.error("%s@%s cannot be loaded: %s", self.spec.name, self.spec.version, error)
        with self.holding.changed:
            if self._loaded:
                return  # another instance serves
            self.version = replace(self.version, state=VersionState.UNAVAILABLE, error=error)
            version = self.version
        self._report(version)
        self.outcome.set()
        self._fail_waiting(error)

    def _fail_waiting(self, error: str) -> None:
        if self.spec.unavailable == "fail":
            self.host.completer.post(lambda: self.decider.fail_all(error))

    def _report(self, version: ModelVersion) -> None:
        if self.shown:
            self.host.report(version)

    def unloaded(self) -> None:
        with self.holding.changed:
            self._loaded -= 1
            if self._loaded or self.ended:
                return
            self.version = replace(self.version, state=VersionState.LOADING)
            version = self.version
        self._report(version)

    # -- stopping

    def drain(self) -> None:
        """No batch is formed any more; what is in the engines goes on."""
        with self.holding.changed:
            self.holding.draining = True
            self.holding.changed.notify_all()

    @property
    def busy(self) -> bool:
        return any(instance.busy for instance in self.instances)

    def begin_end(self) -> None:
        with self.holding.changed:
            self.holding.draining = self.ended = True
            self.holding.changed.notify_all()
        self.outcome.set()  # nobody is to wait for a load that is broken off
        for instance in self.instances:
            instance.process.begin_stop()

    def finish_end(self, deadline: float) -> None:
        for instance in self.instances:
            instance.process.finish_stop(deadline)
            instance.join(1.0)


def _tensors(described: Iterable[DescribedTensor]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t.name, t.datatype, t.shape, t.pad, t.mask_for) for t in described)


def files_of(folder: Path, version: str) -> Files:
    """The handler's and the version's files with what shows a change: (path, size, time of the last change)."""
    below = [path for part in (folder.glob("*.py"), (folder / version).rglob("*")) for path in part]
    found = []
    for path in sorted(below):
        with contextlib.suppress(OSError):  # it may go away under our eyes
            status = path.stat()
            if path.is_file() and "__pycache__" not in path.parts:
                found.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(found)


def pieces_of(batch: Batch) -> list[Piece]:
    """The items of a batch by chunk, in the order in which they were taken."""
    taken: dict[HeldChunk, list[tuple[int, int]]] = {}
    for span in batch.spans:
        taken.setdefault(span.chunk, []).append((span.start, span.stop))
    return [Piece(chunk, _merged(sorted(positions))) for chunk, positions in taken.items()]


def _merged(positions: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in positions:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)
