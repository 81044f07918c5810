"""Jobs through a worker with real engine children, told item by item as `/results` would tell them."""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jobs import frames, ranges
from jobs.ids import new_id
from jobs.models.catalog import ModelVersion
from jobs.notifier import Ping
from jobs.records import Job, NewChunk, NewJob
from jobs.states import JobState, Outcome, Priority
from jobs.tensors.binary import from_bytes
from tests.contracts.store_kit import SqliteAdapter
from tests.integration.worker_kit import PATIENCE, TENANT, Worker
from tests.models.make import ARTIFACTS, FOLDER
from tests.unit.children import json_payload, ragged_payload, rows_payload
from workers.runner import Runner

Array = np.ndarray[Any, Any]


def copy_models(root: Path, *names: str, **changes: tuple[str, str]) -> Path:
    """Test models copied into `root`; `changes` by name: a text of its model.yaml and what is put in its place."""
    for name in names:
        shutil.copytree(FOLDER / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        if name in ARTIFACTS:
            (root / name / "1" / "model.onnx").write_bytes(ARTIFACTS[name]())
        if name in changes:
            file, (old, new) = root / name / "model.yaml", changes[name]
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
    return root


@dataclass(frozen=True)
class Answer:
    state: str
    output: Any = None
    code: str | None = None
    attempts: int | None = None


class Yard:
    """A worker that can be stopped and started again on the same data."""

    def __init__(self, data: Path, models: Path, **settings: Any) -> None:
        self._data = data
        self._models = models
        self._settings = {"cancel_grace": timedelta(seconds=2)} | settings
        self._changed = threading.Condition()
        self.finals: dict[str, int] = {}  # how often each job was said to have ended
        self.start()

    def start(self) -> None:
        self.worker = Worker(self._data, self._models, **self._settings)
        self.supervisor = self.worker.supervisor
        self.store = self.worker.services.store
        self.catalog = self.worker.services.catalog
        self.blobs = self.worker.services.blobs
        self.worker.services.notifier.subscribe(self._told)

    def stop(self, drain: float = 10.0) -> None:
        self.worker.stop(drain)

    def _told(self, ping: Ping) -> None:
        with self._changed:
            for job in ping.finals:
                self.finals[job.id] = self.finals.get(job.id, 0) + 1
            self._changed.notify_all()

    # -- jobs

    def submit(self, *jobs: NewJob) -> None:
        self.worker.submit(*jobs)

    def wait(self, *jobs: NewJob, patience: float = PATIENCE) -> list[Job]:
        """The jobs as they ended, which somebody was told of."""
        with self._changed:
            done = self._changed.wait_for(lambda: all(job.id in self.finals for job in jobs), patience)
        now = [self.job(job) for job in jobs]
        assert done, [job for job in now if not job.final]
        return now

    def run(self, *jobs: NewJob) -> list[Job]:
        self.submit(*jobs)
        return self.wait(*jobs)

    def job(self, job: NewJob) -> Job:
        return self.store.jobs_by_id([job.id])[job.id]

    def cancel(self, job: NewJob) -> None:
        """As the API does it."""
        services = self.worker.services
        stopped = services.ledger.call(lambda tx: tx.stop(TENANT, job.id, JobState.CANCELLED, None, False))
        assert stopped is not None
        finals = (stopped.job,) if stopped.changed and stopped.job.final else ()
        services.notifier.ping(Ping((job.id,), finals=finals, stopped=(job.id,)))

    def answers(self, job: NewJob) -> dict[int, Answer]:
        """By item index, what is decided of it; no item twice."""
        found: dict[int, Answer] = {}
        for chunk in self.store.results(job.id, 0, job.total):
            lines = dict(_lines(chunk.results or b""))
            for index, outcome in zip(ranges.indexes(chunk.items), chunk.outcomes, strict=True):
                if outcome in (Outcome.MOVED, Outcome.PENDING):
                    assert index not in lines
                    continue
                assert index not in found, f"item {index} is answered twice"
                state = Outcome(outcome).name.lower()
                found[index] = lines.get(index, Answer(state))
                assert found[index].state == state
        return found

    # -- behind the scenes

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        adapter = SqliteAdapter.__new__(SqliteAdapter)  # onto the file that is there
        adapter.path = self._data / "ledger.db"
        return adapter.sql(statement)

    def attempts(self, job: NewJob) -> list[tuple[Any, ...]]:
        """(item, number, code)"""
        return self.sql(f"SELECT item, number, code FROM attempts WHERE job = '{job.id}' ORDER BY item, number")

    def terminal_events(self, job: NewJob) -> int:
        ((number,),) = self.sql(f"SELECT count(*) FROM events WHERE job = '{job.id}' AND terminal")
        return int(number)

    def runner(self, model: str, version: str = "1") -> Runner:
        return self.supervisor.roster.runners[model, version]

    def engine(self, model: str, version: str = "1") -> int:
        return self.worker.engine(model, version)

    def flying(self, model: str) -> bool:
        """A batch is in an engine of it, and has reported a stage."""
        flights = [flight for instance in self.runner(model).instances for flight in list(instance._flights)]
        return any(flight.started_at is not None for flight in flights)

    def until_flying(self, model: str) -> None:
        self.until(lambda: self.flying(model))

    def until(self, condition: Callable[[], object]) -> None:
        self.worker.until(lambda: bool(condition()))

    def until_nothing_is_held(self) -> None:
        """Neither by the worker nor on its way."""
        self.until(lambda: self.held() == 0)
        self.until(lambda: self.worker.services.publisher._window.chunks == 0)

    def held(self) -> int:
        return sum(len(runner.holding.chunks()) for runner in self.supervisor.roster.watched())

    def version(self, model: str, version: str = "1") -> ModelVersion:
        found = self.catalog.find(model, version)
        assert found is not None
        return found


def _lines(results: bytes) -> Iterator[tuple[int, Answer]]:
    for header, parts in frames.unpack_results(results):
        indexes = list(ranges.indexes(header.items))
        if header.kind == "none":
            for index, error in zip(indexes, header.errors, strict=True):
                yield index, Answer(header.state, None, error.code, header.attempts)
            continue
        for row, index in enumerate(indexes):
            output: Any
            if header.kind == "json":
                output = msgspec.json.decode(parts[row]) if parts[row] else None
            elif header.kind == "rows":
                output = {
                    c.name: from_bytes(part, c.datatype, (len(indexes), *c.shape))[row]
                    for c, part in zip(header.columns, parts, strict=True)
                }
            else:
                width = len(header.columns)
                output = {
                    c.name: from_bytes(parts[row * width + at], c.datatype, header.shapes[row][at])
                    for at, c in enumerate(header.columns)
                }
            yield index, Answer(header.state, output, None, header.attempts)


@contextmanager
def running(data: Path, models: Path, **settings: Any) -> Iterator[Yard]:
    yard = Yard(data, models, **settings)
    try:
        yield yard
    finally:
        yard.stop()


def new_job(model: str, payloads: Sequence[bytes], counts: Sequence[int], **fields: Any) -> NewJob:
    """A chunk for each payload."""
    chunks: list[NewChunk] = []
    start = 0
    for seq, (payload, count) in enumerate(zip(payloads, counts, strict=True)):
        chunks.append(NewChunk(seq, ((start, start + count),), payload))
        start += count
    given: dict[str, Any] = {
        "id": new_id("job"), "tenant": TENANT, "model": model, "version": "1", "priority": Priority.NORMAL,
        "single": False, "chunks": tuple(chunks), "created_at": datetime.now(UTC),
        "run_timeout": timedelta(seconds=30), "max_attempts": 3, "input_bytes": sum(map(len, payloads)),
    }  # fmt: skip
    return NewJob(**(given | fields))


def json_job(model: str, values: Sequence[Any], cut: int = 32, **fields: Any) -> NewJob:
    """Values of items ``{"id": index, "value": value}``, or whole items (dicts); `cut` items a chunk."""
    items = [value if isinstance(value, dict) else {"id": at, "value": value} for at, value in enumerate(values)]
    parts = [items[at : at + cut] for at in range(0, len(items), cut)]
    payloads = [json_payload(part, first=at * cut) for at, part in enumerate(parts)]
    return new_job(model, payloads, [len(part) for part in parts], **fields)


def slow_job(items: int, ms: int, cut: int = 32, fast: int = 0, **fields: Any) -> NewJob:
    """Each item takes `ms` milliseconds, the first `fast` ones none."""
    values = [{"id": at, "value": at, "ms": 0 if at < fast else ms} for at in range(items)]
    return json_job("slow", values, cut, **fields)


def rows_job(model: str, x: Array, **fields: Any) -> NewJob:
    return new_job(model, [rows_payload({"x": x})], [len(x)], **fields)


def ragged_job(model: str, rows: Sequence[Array], **fields: Any) -> NewJob:
    return new_job(model, [ragged_payload([{"x": row} for row in rows])], [len(rows)], **fields)


def echoed(values: Sequence[object]) -> dict[int, Answer]:
    """What the json test models answer to these values."""
    return {at: Answer("succeeded", {"id": at, "value": value}, None, 1) for at, value in enumerate(values)}
