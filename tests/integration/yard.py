"""The worker's side as the local stack wires it, with real engine children and no HTTP: jobs go into the ledger and
come out of it."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from batchyard.local.bootstrap import Parts
from batchyard.local.data import Keys
from jobs import ranges
from jobs.errors import BatchyardError
from jobs.models.catalog import ModelVersion
from jobs.notifier import Ping
from jobs.records import Job, NewJob, Submitted
from jobs.settings import Settings
from jobs.states import JobState, Outcome
from tests.contracts.store_kit import SqliteAdapter
from tests.integration.yard_jobs import TENANT, Answer, lines_of
from tests.models.make import ARTIFACTS, FOLDER
from workers.runner import Runner

PATIENCE = 30.0
Changes = Mapping[str, tuple[str, str]]
"""By model: a text of its model.yaml, and what is put in its place."""

SMALL: Changes = {"slow": ("max_size: 32", "max_size: 5")}


def copy_models(root: Path, names: Sequence[str], changes: Changes) -> None:
    """Test models copied into `root`."""
    root.mkdir(exist_ok=True)
    for name in names:
        shutil.copytree(FOLDER / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        if name in ARTIFACTS:
            (root / name / "1" / "model.onnx").write_bytes(ARTIFACTS[name]())
        if name in changes:
            file, (old, new) = root / name / "model.yaml", changes[name]
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))


def living(pids: Sequence[int]) -> list[int]:
    """Of these processes, also those that are dead and not waited for."""
    return [pid for pid in pids if psutil.pid_exists(pid)]


class Yard:
    """A worker that can be stopped and started again on the same data; ends with the `with` block.

    Serves `folder / "models"`: the test models that are named, and what a test has put there before.
    """

    def __init__(self, folder: Path, *models: str, changes: Changes | None = None, **settings: Any) -> None:
        self.models = folder / "models"
        copy_models(self.models, models, changes or {})
        self._data = folder / "data"
        self._data.mkdir()
        self._settings = {"cancel_grace": timedelta(seconds=2)} | settings
        self._changed = threading.Condition()
        self.finals: dict[str, int] = {}  # how often each job was said to have ended
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        settings = Settings(data=self._data, models=self.models, **self._settings)
        self.parts = Parts(settings, self.models, Keys("bysk_a", "bysk_b"))
        self.services = self.parts.services
        self.supervisor = self.parts.supervisor
        self.store = self.services.store
        self.catalog = self.services.catalog
        self.blobs = self.services.blobs
        self._stopped = False
        self.services.notifier.subscribe(self._told)
        self.parts.start()
        self.parts.start_workers()
        assert self.parts.wait_loaded(PATIENCE)

    def stop(self, drain: float = 10.0) -> None:
        """No engine process is left behind."""
        if self._stopped:
            return
        self._stopped = True
        (worker,) = self.supervisor.workers()
        object.__setattr__(self.parts.settings, "drain", timedelta(seconds=drain))
        self.parts.stop()
        assert living(worker.engines) == []

    def _told(self, ping: Ping) -> None:
        with self._changed:
            for job in ping.finals:
                self.finals[job.id] = self.finals.get(job.id, 0) + 1
            self._changed.notify_all()

    # -- jobs

    def submit(self, *jobs: NewJob) -> None:
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
        stopped = self.services.ledger.call(lambda tx: tx.stop(TENANT, job.id, JobState.CANCELLED, None, False))
        assert stopped is not None
        finals = (stopped.job,) if stopped.changed and stopped.job.final else ()
        self.services.notifier.ping(Ping((job.id,), finals=finals, stopped=(job.id,)))

    def answers(self, job: NewJob) -> dict[int, Answer]:
        """By item index, what is decided of it; no item twice."""
        found: dict[int, Answer] = {}
        for chunk in self.store.results(job.id, 0, job.total):
            told = list(lines_of(chunk.results or b"", self.blobs))
            lines = dict(told)
            assert len(lines) == len(told), "an item has two lines"
            assert lines.keys() <= set(ranges.indexes(chunk.items))
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
        """The pid of its one engine process, once there is one."""
        (instance,) = self.runner(model, version).instances
        self.until(lambda: instance.process.pid is not None)
        pid = instance.process.pid
        assert pid is not None
        return pid

    def flying(self, model: str) -> bool:
        """A batch is in an engine of it, and has reported a stage."""
        flights = [flight for instance in self.runner(model).instances for flight in list(instance._flights)]
        return any(flight.started_at is not None for flight in flights)

    def until_flying(self, model: str) -> None:
        self.until(lambda: self.flying(model))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            threading.Event().wait(0.01)

    def until_nothing_is_held(self) -> None:
        """Neither by the worker nor on its way."""
        self.until(lambda: self.held() == 0)
        self.until(lambda: self.services.publisher._window.chunks == 0)

    def held(self) -> int:
        return sum(len(runner.holding.chunks()) for runner in self.supervisor.roster.watched())

    def version(self, model: str, version: str = "1") -> ModelVersion:
        found = self.catalog.find(model, version)
        assert found is not None
        return found
