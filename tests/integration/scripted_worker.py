"""What stands behind the API: a real ledger, and a worker that answers what it is told to in place of the engines."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from jobs import frames
from jobs.blob import BlobStore
from jobs.ledger import Ledger
from jobs.notifier import Ping
from jobs.notifiers.process import ProcessNotifier
from jobs.records import BlobRef, ChunkRef, Finish, NewChunk, NewJob
from jobs.states import Outcome
from jobs.store import Store

WORKER = "wrk_script"
RESULT_OF_ITEM = Callable[[int, bytes], bytes | frames.ResultError]


def echo(index: int, part: bytes) -> bytes | frames.ResultError:
    return part


class ScriptedWorker:
    """`work` runs everything that was committed and not run yet; inside `working` that happens by itself."""

    def __init__(self, store: Store, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.notifier = ProcessNotifier()
        self.committed: list[NewJob] = []
        self._changed = threading.Condition()  # guards `committed`, which the ledger's thread adds to
        self.ledger = Ledger(store, on_committed=self._committed)

    def _committed(self, jobs: Sequence[NewJob]) -> None:
        with self._changed:
            self.committed.extend(jobs)
            self._changed.notify_all()

    def chunks_of(self, job: NewJob, answer: RESULT_OF_ITEM = echo, only: Sequence[int] | None = None) -> list[Finish]:
        """Claims (some of) the chunks of a fresh job and gives the finishes that end them."""
        chunks = [chunk for chunk in job.chunks if only is None or chunk.seq in only]
        refs = [ChunkRef(job.id, chunk.seq, 0) for chunk in chunks]
        fences = self.ledger.call(lambda tx: tx.claim(refs, WORKER))
        assert None not in fences
        return [
            self._finish(ChunkRef(job.id, chunk.seq, fence or 0), chunk, answer)
            for chunk, fence in zip(chunks, fences, strict=True)
        ]

    def _finish(self, ref: ChunkRef, chunk: NewChunk, answer: RESULT_OF_ITEM) -> Finish:
        payload = self.blobs.get(chunk.payload.key) if isinstance(chunk.payload, BlobRef) else chunk.payload
        header, parts = frames.unpack_payload(payload)
        indexes = [index for start, stop in header.items for index in range(start, stop)]
        if header.kind != "json":
            return Finish(ref, bytes([Outcome.SUCCEEDED]) * chunk.count, tensor_results(header, parts))
        results, outcomes = b"", []
        for position, (index, part) in enumerate(zip(indexes, parts, strict=True)):
            made = answer(index, bytes(part))
            ids = None if header.ids is None else (header.ids[position],)
            items = ((index, index + 1),)
            if isinstance(made, bytes):
                results += frames.pack(frames.ResultHeader("json", items, ids=ids), [made])
                outcomes.append(Outcome.SUCCEEDED)
            else:
                results += frames.pack(frames.ResultHeader("none", items, "failed", ids, errors=(made,)), [])
                outcomes.append(Outcome.FAILED)
        return Finish(ref, bytes(outcomes), results, engine_seconds=0.01)

    def finish(self, finishes: Sequence[Finish], ping: bool = True, carry: bool = True) -> None:
        """Writes them and tells the notifier, as the completer does."""
        done = self.ledger.call(lambda tx: tx.finish(finishes, WORKER))
        assert all(done.accepted)
        if ping:
            finals = tuple(job for job in done.jobs if job.final) if carry else ()
            self.notifier.ping(Ping(tuple(job.id for job in done.jobs), finals))

    def work(self, answer: RESULT_OF_ITEM = echo, **telling: bool) -> None:
        """Runs every job committed so far."""
        with self._changed:
            jobs, self.committed = self.committed, []
        for job in jobs:
            self.finish(self.chunks_of(job, answer), **telling)

    @contextlib.asynccontextmanager
    async def working(self, answer: RESULT_OF_ITEM = echo) -> AsyncIterator[None]:
        """Runs what comes for as long as the context lasts."""
        stop = False

        def run() -> None:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: stop or self.committed)
                    if stop:
                        return
                self.work(answer)

        running = asyncio.get_running_loop().run_in_executor(None, run)
        try:
            yield
        finally:
            with self._changed:
                stop = True
                self._changed.notify_all()
            await running


def tensor_results(header: frames.PayloadHeader, parts: Sequence[memoryview]) -> bytes:
    """y = the first two of x, for `rows` payloads of one FP32 [4] column."""
    rows = bytes(parts[0])
    data = b"".join(rows[at : at + 8] for at in range(0, len(rows), 16))
    return frames.pack(
        frames.ResultHeader("rows", header.items, ids=header.ids, columns=(frames.Column("y", "FP32", (2,)),)), [data]
    )
