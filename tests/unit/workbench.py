"""A runner with a real completer and a real ledger, and an engine process that is a script.

What the script does with an item is said by the item's value: see `ScriptedChild`.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from jobs import frames, ranges
from jobs.blobs.directory import DirectoryBlobs
from jobs.crash import CrashPoints
from jobs.errors import BatchyardError
from jobs.frames import PayloadHeader, ResultHeader
from jobs.ids import new_id
from jobs.ledger import Ledger
from jobs.models.catalog import ModelVersion
from jobs.models.spec import BatchSettings, ModelSpec
from jobs.notifier import Ping
from jobs.records import ChunkMessage, Job, NewChunk, NewJob, Submitted
from jobs.states import Outcome, Priority
from jobs.store import WorkerRow
from jobs.stores.sqlite import SqliteStore
from tests.contracts.store_kit import ManualClock, empty_sqlite
from workers.completer import Completer
from workers.engine_process import EngineGone, Listener, Loss
from workers.held import HeldChunk
from workers.host import Host
from workers.offsets import Origin
from workers.runner import Runner
from workers.wire import BatchError, Done, Failure, Loaded, Run, Start

PATIENCE = 10.0
WORKER = "wrk_bench"


class ScriptedChild:
    """Values: ``raise`` (the whole call), ``die``, ``die_early`` (before a stage is reported), ``die_late`` (when `go`
    is set), ``hang``, ``fail``, ``permanent``, ``forget`` (left out of the answer), ``block`` (until `go` is set); all
    others are answered."""

    def __init__(self, start: Start, listener: Listener, name: str) -> None:
        self.name = name
        self.listener = listener
        self.pid = 4711
        self.generation = 0
        self.batches: list[list[Any]] = []
        self.ran: Counter[Any] = Counter()
        self.deaths = 0
        self.go = threading.Event()
        self.blocked = threading.Event()
        self.skew: Callable[[float], None] = lambda seconds: None
        self.max_size = 8
        self.before_run: Callable[[], object] = lambda: None
        self.fail_loads: list[str] = []  # errors of the next loads
        self._inbox: queue.SimpleQueue[tuple[Run, list[bytes]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, run: Run, parts: Sequence[bytes | memoryview], generation: int) -> None:
        if generation != self.generation:
            raise EngineGone(self.name)
        self._inbox.put((run, [bytes(part) for part in parts]))

    def check(self, now: float) -> None: ...

    def begin_stop(self) -> None:
        self._inbox.put(None)

    def finish_stop(self, deadline: float) -> None:
        self.go.set()
        self._thread.join(PATIENCE)

    def _live(self) -> None:
        self._load()
        while (got := self._inbox.get()) is not None:
            self._run(*got)

    def _load(self) -> None:
        if self.fail_loads:
            self.listener.load_failed(self.fail_loads.pop(0))
            return
        self.generation += 1
        self.listener.loaded(Loaded((), (), None, self.max_size, "sound", None, 0.01), self.generation)

    def _lose(self, overran: bool = False) -> None:
        self.deaths += 1
        self.generation += 1  # nothing more is taken
        while not self._inbox.empty():
            if self._inbox.get() is None:
                self._inbox.put(None)
                break
        self.listener.lost(Loss(overran, "signal SIGKILL"))
        self._load()

    def _run(self, run: Run, parts: list[bytes]) -> None:
        self.before_run()
        items = [
            (number, position, msgspec.json.decode(payload[position]))
            for number, (segment, part) in enumerate(zip(run.segments, parts, strict=True))
            for payload in [frames.unpack_payload(part)[1]]
            for position in ranges.indexes(segment.positions)
        ]
        values = [item["value"] for _, _, item in items]
        self.batches.append(values)
        if "die_early" in values:
            self._lose()
            return
        self.listener.started(run.id, "predict")
        self.ran.update(item["id"] for _, _, item in items)
        if "block" in values or "die_late" in values:
            self.blocked.set()
            assert self.go.wait(PATIENCE)
        if "die" in values or "die_late" in values:
            self._lose()
        elif "hang" in values:
            self.skew(3600.0)
            self._lose(overran=True)
        elif "raise" in values:
            error = BatchError("handler_error", "RuntimeError: raise", False, "predict", "Traceback …")
            self.listener.done(Done(run.id, 0.001, 0.001, error=error), [])
        else:
            self._answer(run, parts, items)

    def _answer(self, run: Run, parts: list[bytes], items: list[tuple[int, int, Any]]) -> None:
        failures: list[Failure] = []
        good: dict[int, list[int]] = {}
        for number, position, item in items:
            if item["value"] in ("fail", "permanent"):
                permanent = item["value"] == "permanent"
                failures.append(Failure(number, position, "handler_error", item["value"], permanent, "predict", "Tb"))
            elif item["value"] != "forget":
                good.setdefault(number, []).append(position)
        answers: list[memoryview] = []
        numbers: list[int] = []
        for number, segment in enumerate(run.segments):
            positions = good.get(number)
            numbers.append(len(answers) if positions else -1)
            if positions:
                header, payload = frames.unpack_payload(parts[number])
                answer = ResultHeader("json", ranges.select(header.items, positions), attempts=segment.attempts + 1)
                answers.append(memoryview(frames.pack(answer, [payload[position] for position in positions])))
        self.listener.done(Done(run.id, 0.001, 0.001, tuple(numbers), tuple(failures)), answers)


@dataclass
class Published:
    """Children that may be published at once, kept for `Workbench.take`."""

    chunks: list[ChunkMessage] = field(default_factory=list)

    def publish(self, chunks: Sequence[ChunkMessage]) -> int:
        self.chunks += chunks
        return len(chunks)


@dataclass
class Pings:
    told: list[Ping] = field(default_factory=list)

    def ping(self, ping: Ping) -> None:
        self.told.append(ping)


class Workbench:
    def __init__(self, folder: Path, *, max_size: int = 8, instances: int = 1, **spec: Any) -> None:
        self._path = folder / "ledger.db"
        self._path.write_bytes(empty_sqlite())
        self.clock = ManualClock()
        self.store = SqliteStore(self._path, self.clock)
        self.ledger = Ledger(self.store)
        self.ledger.start()
        self.blobs = DirectoryBlobs(folder / "blobs", b"secret", self.clock)
        self.pings = Pings()
        self.published = Published()
        self.settled: list[HeldChunk] = []
        self.children: list[ScriptedChild] = []
        self.reported: list[ModelVersion] = []
        self.skew = 0.0
        self.incarnation = WORKER
        self.completer = Completer(
            self.ledger,
            self.blobs,
            self.published,  # type: ignore[arg-type]
            self.pings,  # type: ignore[arg-type]
            self.settled.extend,
            inline_bytes=1024,
            clock=self.clock,
            crash=CrashPoints(),
        )
        host = Host(
            ledger=self.ledger,
            blobs=self.blobs,
            completer=self.completer,
            settle=self.settled.extend,
            report=self.reported.append,
            incarnation=lambda: self.incarnation,
            clock=self.clock,
            monotonic=lambda: time.monotonic() + self.skew,
            spawn=self._spawn,
        )
        self.spec = ModelSpec(
            "scripted", "1", folder, "python", "json", "1", instances=instances,
            batch=BatchSettings(max_size=max_size, max_queue_delay=timedelta(0)), **spec,
        )  # fmt: skip
        self.register(WORKER)
        self.runner = Runner(ModelVersion(self.spec), str(folder), 1, host)
        self.runner.shown = True
        self.completer.start()

    def _spawn(self, start: Start, listener: Listener, name: str) -> ScriptedChild:
        child = ScriptedChild(start, listener, name)
        child.skew = self._skew
        child.max_size = self.spec.batch.max_size
        self.children.append(child)
        return child

    def _skew(self, seconds: float) -> None:
        self.skew += seconds

    @property
    def child(self) -> ScriptedChild:
        return self.children[0]

    def register(self, incarnation: str) -> None:
        with self.store.begin() as tx:
            tx.ensure_tenant("acme")
            now = self.clock()
            tx.register_worker(WorkerRow(incarnation, "bench", 1, now, now + timedelta(days=365)))

    def start(self) -> "Workbench":
        self.runner.start()
        return self

    def close(self) -> None:
        for child in self.children:
            child.go.set()
        self.runner.begin_end()
        self.runner.finish_end(time.monotonic() + PATIENCE)
        self.completer.stop(PATIENCE)
        self.ledger.stop()
        self.store.close()

    # -- work

    def submit(self, *values: Any, max_attempts: int = 3, cut: int | None = None, **job: Any) -> str:
        """A job with an item a value; its chunks hold `cut` items."""
        name = new_id("job")
        cut = cut or len(values)
        chunks = []
        for seq, start in enumerate(range(0, len(values), cut)):
            some = values[start : start + cut]
            items = ((start, start + len(some)),)
            parts = [
                msgspec.json.encode({"id": f"{name}/{start + at}", "value": value}) for at, value in enumerate(some)
            ]
            chunks.append(NewChunk(seq, items, frames.pack(PayloadHeader("json", items), parts)))
        new = NewJob(
            id=name, tenant="acme", model="scripted", version="1", priority=Priority.NORMAL,
            single=len(values) == 1, chunks=tuple(chunks), created_at=self.clock(),
            run_timeout=timedelta(seconds=30), max_attempts=max_attempts, input_bytes=1, publish_now=False, **job,
        )  # fmt: skip
        answered: list[Submitted | BatchyardError] = []
        done = threading.Event()

        def sink(answers: list[tuple[NewJob, Submitted | BatchyardError]]) -> None:
            answered.extend(answer for _, answer in answers)
            done.set()

        self.ledger.submit(new, sink)
        assert done.wait(PATIENCE)
        assert isinstance(answered[0], Submitted), answered
        return name

    def feed(self) -> int:
        """What the relay and the intake do: everything due goes to the runner. Gives how many chunks."""
        due = self.take()
        self.runner.holding.take([HeldChunk(message, Origin(0, 0, 1)) for message in due])
        return len(due)

    def take(self) -> list[ChunkMessage]:
        """Everything that is due or was published."""
        published, self.published.chunks = self.published.chunks, []
        return published + self.ledger.call(lambda tx: tx.take_due(1000, timedelta(hours=1)))

    def alone_in_ledger(self, name: str) -> bool:
        with contextlib.closing(sqlite3.connect(self._path)) as db:
            return bool(db.execute("SELECT min(alone) FROM chunks WHERE job = ?", (name,)).fetchone()[0])

    def job(self, name: str) -> Job:
        return self.store.jobs_by_id([name])[name]

    def finish(self, *names: str) -> list[Job]:
        """Feeds, moving the clock on past every pause, until these jobs are final."""
        deadline = time.monotonic() + PATIENCE
        while not all(self.job(name).final for name in names):
            assert time.monotonic() < deadline, [self.job(name) for name in names]
            if not self.feed():
                self.clock.advance(1.0)
            threading.Event().wait(0.01)
        return [self.job(name) for name in names]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            threading.Event().wait(0.005)

    def outcomes(self, name: str) -> dict[int, Outcome]:
        """By item index; MOVED items are found in their last chunk."""
        found: dict[int, Outcome] = {}
        for chunk in self.store.results(name, 0, 10_000):
            for index, outcome in zip(ranges.indexes(chunk.items), chunk.outcomes, strict=True):
                if outcome != Outcome.MOVED:
                    assert index not in found, f"item {index} has two outcomes"
                    found[index] = Outcome(outcome)
        return found

    def lines(self, name: str) -> dict[int, tuple[ResultHeader, bytes]]:
        """Result line of each item that has one: its frame's header and its part."""
        found: dict[int, tuple[ResultHeader, bytes]] = {}
        for chunk in self.store.results(name, 0, 10_000):
            for header, parts in frames.unpack_results(chunk.results or b""):
                for at, index in enumerate(ranges.indexes(header.items)):
                    assert index not in found, f"item {index} has two lines"
                    found[index] = (header, bytes(parts[at]) if parts else b"")
        return found

    def answers(self, name: str) -> dict[int, Any]:
        return {index: msgspec.json.decode(part)["value"] for index, (_, part) in self.lines(name).items() if part}
