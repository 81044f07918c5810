"""The completer: one thread that decides items and writes finished chunks, everything that is ready in one commit.

What happened elsewhere (a batch came back, a process died, a job was stopped) is posted as a callable and runs here, so
outcomes are touched by no other thread. Nothing is dropped when the ledger cannot be written: it is tried again.
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from jobs.blob import BlobStore
from jobs.clock import Clock
from jobs.crash import CrashPoints
from jobs.errors import BatchyardError
from jobs.ledger import Ledger
from jobs.notifier import Notifier, Ping
from jobs.publisher import Publisher
from jobs.records import Finish
from jobs.store import Finished, ResultChunk
from workers import outcomes, outputs
from workers.held import Held, HeldChunk

log = logging.getLogger("batchyard.completer")

Work = Callable[[], None]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds, after a write that failed


class Completer:
    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        publisher: Publisher,
        notifier: Notifier,
        settle: Callable[[Sequence[HeldChunk]], None],
        *,
        inline_bytes: int,
        clock: Clock,
        crash: CrashPoints,
    ) -> None:
        """`settle` is told of every chunk that needs no more work from its stream record."""
        self._ledger = ledger
        self._blobs = blobs
        self._publisher = publisher
        self._notifier = notifier
        self._settle = settle
        self._inline_bytes = inline_bytes
        self._clock = clock
        self._crash = crash
        self._chance = random.Random()
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._ready: list[HeldChunk] = []
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="completer", daemon=True)
        self.zombie_finishes = 0
        self.last_progress = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def post(self, work: Work) -> None:
        """Runs `work` on the completer's thread, in the order posted."""
        self._work.put(work)

    def wait_idle(self, timeout: float) -> bool:
        """Until everything posted so far has run and is written."""
        done = threading.Event()
        self.post(lambda: self._work.put(done.set))  # twice round: the write follows the first
        return done.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Writes what is decided, for `timeout` seconds at most, and ends."""
        self._work.put(None)
        self._thread.join(timeout)
        self._abandoned.set()
        self._thread.join(_LONGEST_PAUSE + 1.0)

    # -- on the completer's thread

    def check(self, chunk: HeldChunk) -> None:
        """To be called after items of it were decided: takes it when none is left."""
        if chunk.live and chunk.decided.undecided == 0:
            chunk.state = Held.CLOSED
            self._ready.append(chunk)

    def _run(self) -> None:
        going = True
        while going:
            try:
                work = self._work.get(timeout=1.0)
            except queue.Empty:
                self.last_progress = time.monotonic()
                continue
            while True:
                if work is None:
                    going = False
                else:
                    self._guarded(work)
                if self._work.empty():
                    break
                work = self._work.get()
            if self._ready:
                self._write()
            self.last_progress = time.monotonic()

    def _guarded(self, work: Work) -> None:
        try:
            work()
        except Exception:
            # One batch's fault must not end the thread that all answers go through.
            log.exception("an answer could not be taken")

    def _write(self) -> None:
        chunks, self._ready = self._ready, []
        finishes = [self._finish(chunk) for chunk in chunks]
        by_incarnation: dict[str, list[Finish]] = {}
        for chunk, finish in zip(chunks, finishes, strict=True):
            by_incarnation.setdefault(chunk.incarnation, []).append(finish)
        lone = {chunk.message.job: (chunk, finish) for chunk, finish in zip(chunks, finishes, strict=True)}
        self._crash.passing("engine_result")
        for incarnation, group in by_incarnation.items():
            finished = self._persist(group, incarnation)
            if finished is None:
                return  # given up while stopping; the ledger has them as running, and they run again
            self._tell(finished, lone)
        self._crash.passing("result_offset")
        self._settle(chunks)

    def _finish(self, chunk: HeldChunk) -> Finish:
        pause = _FIRST_PAUSE
        while True:
            try:
                return outcomes.finish(chunk, self._shrink, self._clock(), self._chance)
            except (BatchyardError, OSError) as error:
                log.warning("outputs of %s cannot be stored (%s); trying again", chunk.ref, error)
                if self._abandoned.wait(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _shrink(self, chunk: HeldChunk, frame: bytes) -> bytes:
        return outputs.shrink(
            frame, chunk.ref, self._blobs, self._inline_bytes, lambda: self._crash.passing("blob_row")
        )

    def _persist(self, group: list[Finish], incarnation: str) -> Finished | None:
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._ledger.call(lambda tx: tx.finish(group, incarnation))
            except BatchyardError as error:
                log.warning("%d finished chunks cannot be written (%s); trying again", len(group), error)
                if self._abandoned.wait(pause):
                    return None
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _tell(self, finished: Finished, lone: Mapping[str, tuple[HeldChunk, Finish]]) -> None:
        late = len(finished.accepted) - sum(finished.accepted)
        if late:
            self.zombie_finishes += late
            log.info("%d chunks had been taken away meanwhile; what came of them here changed nothing", late)
        if finished.children:
            self._publisher.publish(finished.children)
        if finished.jobs:
            finals = tuple(job for job in finished.jobs if job.final)
            results = {
                job.id: ResultChunk(chunk.message.seq, chunk.header.items, finish.outcomes, finish.results, None, None)
                for job in finals
                if job.single
                for chunk, finish in [lone[job.id]]
                if finish.results and chunk.header is not None
            }
            # Who waits for a single input is answered from this, without another look at the ledger.
            self._notifier.ping(Ping(tuple(job.id for job in finished.jobs), finals=finals, results=results))
