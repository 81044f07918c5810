"""The completer: one thread that decides items and writes finished chunks, everything that is ready in one commit.

What happened elsewhere (a batch came back, a process died, a job was stopped) is posted as a callable and runs here, so
outcomes are touched by no other thread. Nothing is dropped when the ledger cannot be written: it is tried again.
"""

import heapq
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from jobs.blob import BlobStore
from jobs.clock import Clock
from jobs.crash import CrashPoints
from jobs.errors import BatchyardError, StoreError, Unavailable
from jobs.ledger import Ledger
from jobs.notifier import Notifier, Ping
from jobs.publisher import Publisher
from jobs.records import Finish
from jobs.store import Finished, ResultChunk
from workers import outcomes, outputs
from workers.held import Held, HeldChunk

log = logging.getLogger("batchyard.completer")

Work = Callable[[], None]
_MOST_AT_ONCE = 1000  # pieces of work before what is ready is written
_REFUSALS = 5  # of the same chunk by the ledger, before no more is written than that its items failed
_SET_ASIDE = 30.0  # seconds, for a chunk of which not even that can be written
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds, after a write that failed


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A chunk on its way into the ledger."""

    chunk: HeldChunk
    finish: Finish


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
        self._later: list[tuple[float, int, Work]] = []  # heap: due (monotonic seconds), order, what
        self._order = itertools.count()
        self._ready: list[HeldChunk] = []
        self._waiting: list[threading.Event] = []  # set after the next write
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="completer", daemon=True)
        self.zombie_finishes = 0
        self.last_progress = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def post(self, work: Work) -> None:
        """Runs `work` on the completer's thread, in the order posted."""
        self._work.put(work)

    def later(self, seconds: float, work: Work) -> None:
        """Runs `work` after so long. To be called on the completer's thread."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), work))

    def wait_idle(self, timeout: float) -> bool:
        """Until everything posted so far has run and is written."""
        done = threading.Event()
        self.post(lambda: self._waiting.append(done))
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
            going = self._take_turn()
            self.last_progress = time.monotonic()
            while self._later and self._later[0][0] <= self.last_progress:
                self._guarded(heapq.heappop(self._later)[2])
            waiting, self._waiting = self._waiting, []
            if self._ready:
                self._guarded(self._write)
            for event in waiting:
                event.set()

    def _take_turn(self) -> bool:
        """Does what is posted; waits for it, up to a second, when there is nothing. False: it was the end."""
        wait = 1.0 if not self._later else min(1.0, max(0.0, self._later[0][0] - time.monotonic()))
        try:
            for _ in range(_MOST_AT_ONCE):
                work = self._work.get(timeout=wait)
                if work is None:
                    return False
                self._guarded(work)
                wait = 0.0
        except queue.Empty:
            pass
        return True

    def _guarded(self, work: Work) -> None:
        try:
            work()
        except Exception:
            # One batch's fault must not end the thread that all answers go through.
            log.exception("an answer could not be taken")

    def _write(self) -> None:
        chunks, self._ready = self._ready, []
        by_incarnation: dict[str, list[Entry]] = {}
        for chunk in chunks:
            finish = self._finish(chunk)
            if finish is not None:
                by_incarnation.setdefault(chunk.incarnation, []).append(Entry(chunk, finish))
        self._crash.passing("engine_result")
        written = [entry.chunk for name, group in by_incarnation.items() for entry in self._persist(group, name)]
        self._crash.passing("result_offset")
        # What could not be written while stopping is still running in the ledger: it is rescued and runs again.
        self._settle(written)

    def _finish(self, chunk: HeldChunk) -> Finish | None:
        """None: given up, which happens only while stopping."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return outcomes.finish(chunk, self._shrink, self._clock(), self._chance)
            except (Unavailable, StoreError, OSError) as error:
                log.warning("outputs of %s cannot be stored (%s); trying again", chunk.ref, error)
                if self._abandoned.wait(pause):
                    return None
                pause = min(2 * pause, _LONGEST_PAUSE)
                self.last_progress = time.monotonic()
            except Exception:
                # A job that fails for no good reason is better than one that never ends.
                log.exception("the outcome of %s cannot be built; its items fail", chunk.ref)
                return outcomes.bare_finish(chunk)

    def _shrink(self, chunk: HeldChunk, frame: bytes) -> bytes:
        return outputs.shrink(
            frame, chunk.ref, self._blobs, self._inline_bytes, lambda: self._crash.passing("blob_row")
        )

    def _persist(self, group: Sequence[Entry], incarnation: str) -> Sequence[Entry]:
        """In one commit; one by one where the ledger refuses the group, so that nobody is held up by another's fault.
        Gives those that need no more work."""
        pause, refusals = _FIRST_PAUSE, 0
        while not self._abandoned.is_set():
            finishes = [entry.finish for entry in group]
            try:
                finished = self._ledger.call(lambda tx: tx.finish(finishes, incarnation))  # noqa: B023
            except Unavailable as error:
                log.warning("%d finished chunks cannot be written (%s); trying again", len(group), error)
            except Exception as error:
                # Whatever it was: these chunks are closed here, nobody else would come back to them.
                if len(group) > 1:
                    return [written for entry in group for written in self._persist([entry], incarnation)]
                known = isinstance(error, BatchyardError)
                log.error("the outcome of %s cannot be written: %r", group[0].chunk.ref, error, exc_info=not known)
                refusals += 1
                if refusals == _REFUSALS:
                    group = [Entry(group[0].chunk, outcomes.bare_finish(group[0].chunk))]
                elif refusals > _REFUSALS:
                    self.later(_SET_ASIDE, partial(self._ready.append, group[0].chunk))
                    return []
            else:
                self._tell(finished, {entry.chunk.message.job: entry for entry in group})
                return group
            self._abandoned.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self.last_progress = time.monotonic()
        return []

    def _tell(self, finished: Finished, lone: Mapping[str, Entry]) -> None:
        late = len(finished.accepted) - sum(finished.accepted)
        if late:
            self.zombie_finishes += late
            log.info("%d chunks had been taken away meanwhile; what came of them here changed nothing", late)
        if finished.children:
            self._publisher.publish(finished.children)
        if finished.jobs:
            finals = tuple(job for job in finished.jobs if job.final)
            results = {
                job.id: ResultChunk(e.chunk.message.seq, header.items, e.finish.outcomes, e.finish.results, None, None)
                for job in finals
                if job.single and (e := lone[job.id]).finish.results and (header := e.chunk.header) is not None
            }
            # Who waits for a single input is answered from this, without another look at the ledger.
            self._notifier.ping(Ping(tuple(job.id for job in finished.jobs), finals=finals, results=results))
