"""The worker's side as the local stack wires it, with real engine children and no HTTP: jobs go into the ledger and
come out of it."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil

from batchyard.local.bootstrap import Parts
from batchyard.local.data import Keys
from jobs import frames, ranges
from jobs.errors import BatchyardError
from jobs.frames import PayloadHeader, ResultHeader
from jobs.ids import new_id
from jobs.notifier import Ping
from jobs.records import BlobRef, Job, NewChunk, NewJob, Submitted
from jobs.settings import Settings
from jobs.states import JobState, Outcome, Priority

PATIENCE = 30.0
TENANT = "default"


class Worker:
    def __init__(self, data: Path, models: Path, **settings: Any) -> None:
        data.mkdir(exist_ok=True)
        self.parts = Parts(Settings(data=data, models=models, **settings), models, Keys("bysk_a", "bysk_b"))
        self.services = self.parts.services
        self.supervisor = self.parts.supervisor
        self.parts.start()
        self.parts.start_workers()
        assert self.parts.wait_loaded(PATIENCE)
        self._stopped = False

    def stop(self, drain: float = 10.0) -> None:
        if not self._stopped:
            self._stopped = True
            object.__setattr__(self.parts.settings, "drain", timedelta(seconds=drain))
            self.parts.stop()

    @property
    def engines(self) -> tuple[int, ...]:
        return self.supervisor.workers()[0].engines

    def engine(self, model: str, version: str = "1") -> int:
        """The pid of its one engine process, once there is one."""
        runner = self.supervisor.roster.runners[model, version]
        self.until(lambda: runner.instances[0].process.pid is not None)
        pid = runner.instances[0].process.pid
        assert pid is not None
        return pid

    # -- jobs

    def new_job(self, model: str, items: Sequence[Any], version: str = "1", **fields: Any) -> NewJob:
        """Of JSON items, cut as the API cuts them."""
        name = new_id("job")
        chunks: list[NewChunk] = []
        encoded = [msgspec.json.encode(item) for item in items]
        for start in range(0, len(items), 32):
            some = encoded[start : start + 32]
            extent = ((start, start + len(some)),)
            frame = frames.pack(PayloadHeader("json", extent), some)
            payload: bytes | BlobRef = frame
            if len(frame) > 256 * 1024:
                assert len(some) == 1, "a large item is a chunk of its own"
                payload = self.services.blobs.put(f"payloads/{name}/{len(chunks)}", frame)
            chunks.append(NewChunk(len(chunks), extent, payload, ids=("0",) if isinstance(payload, BlobRef) else None))
        return self._job(name, model, version, chunks, len(items), **fields)

    def rows_job(self, model: str, header: PayloadHeader, parts: Sequence[bytes], **fields: Any) -> NewJob:
        chunk = NewChunk(0, header.items, frames.pack(header, parts))
        return self._job(new_id("job"), model, "1", [chunk], chunk.count, **fields)

    def _job(
        self, name: str, model: str, version: str, chunks: Sequence[NewChunk], count: int, **fields: Any
    ) -> NewJob:
        spec = self.services.catalog.find(model, version)
        run_timeout = timedelta(seconds=30) if spec is None else spec.spec.run_timeout
        return NewJob(
            id=name, tenant=TENANT, model=model, version=version, priority=Priority.NORMAL, single=count == 1,
            chunks=tuple(chunks), created_at=self.services.clock(), run_timeout=run_timeout,
            max_attempts=fields.pop("max_attempts", 1), input_bytes=1, **fields,
        )  # fmt: skip

    def submit(self, *jobs: NewJob) -> list[str]:
        answers: list[Submitted | BatchyardError] = []
        done = threading.Event()

        def sink(some: list[tuple[NewJob, Submitted | BatchyardError]]) -> None:
            answers.extend(answer for _, answer in some)
            if len(answers) == len(jobs):
                done.set()

        for job in jobs:
            self.services.ledger.submit(self.services.publisher.admit(job), sink)
        assert done.wait(PATIENCE)
        assert all(isinstance(answer, Submitted) for answer in answers), answers
        return [job.id for job in jobs]

    def run(self, model: str, items: Sequence[Any], **fields: Any) -> Job:
        (name,) = self.submit(self.new_job(model, items, **fields))
        return self.wait(name)[0]

    def wait(self, *names: str) -> list[Job]:
        self.until(lambda: all(job.final for job in self.services.store.jobs_by_id(names).values()))
        found = self.services.store.jobs_by_id(names)
        return [found[name] for name in names]

    def job(self, name: str) -> Job:
        return self.services.store.jobs_by_id([name])[name]

    def cancel(self, name: str) -> None:
        """As the API does it."""
        self.services.ledger.post(lambda tx: tx.stop(TENANT, name, JobState.CANCELLED, None, False)).result(PATIENCE)
        self.services.notifier.ping(Ping((name,), stopped=(name,)))

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            threading.Event().wait(0.01)

    # -- results

    def outcomes(self, name: str) -> dict[int, Outcome]:
        found: dict[int, Outcome] = {}
        for chunk in self.services.store.results(name, 0, 10_000):
            for index, outcome in zip(ranges.indexes(chunk.items), chunk.outcomes, strict=True):
                if outcome != Outcome.MOVED:
                    assert index not in found, f"item {index} has two outcomes"
                    found[index] = Outcome(outcome)
        return found

    def frames(self, name: str) -> list[tuple[ResultHeader, list[memoryview]]]:
        chunks = self.services.store.results(name, 0, 10_000)
        return [frame for chunk in chunks for frame in frames.unpack_results(chunk.results or b"")]

    def answers(self, name: str) -> dict[int, Any]:
        """JSON answers by item index."""
        found: dict[int, Any] = {}
        for header, parts in self.frames(name):
            for at, (index, part) in enumerate(zip(ranges.indexes(header.items), parts, strict=False)):
                assert index not in found, f"item {index} has two answers"
                data = self.services.blobs.get(header.blobs[at][0].key) if at in header.blobs else bytes(part)
                found[index] = msgspec.json.decode(data)
        return found

    def errors(self, name: str) -> dict[int, tuple[str, int]]:
        """(code, attempts) by item index."""
        found: dict[int, tuple[str, int]] = {}
        for header, _ in self.frames(name):
            for index, error in zip(ranges.indexes(header.items), header.errors, strict=False):
                found[index] = (error.code, header.attempts)
        return found


def living(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
