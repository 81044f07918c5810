"""The supervisor: the worker's side of one process. Wires intake, runners and completer, and starts and stops them.

It runs no code of a model and imports no engine: those live in the engine children.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from jobs.blob import BlobStore
from jobs.clock import Clock, system_clock
from jobs.errors import BatchyardError
from jobs.fleet import ModelStats, WorkerInfo
from jobs.ledger import Ledger
from jobs.models.catalog import Catalog, VersionState
from jobs.notifier import Notifier, Ping
from jobs.publisher import Publisher
from jobs.settings import Settings
from jobs.stream import Record, Stream
from workers.completer import Completer
from workers.heartbeat import Heartbeat
from workers.held import HeldChunk
from workers.host import Host
from workers.intake import Intake
from workers.roster import Roster
from workers.runner import Runner

log = logging.getLogger("batchyard.worker")

_WATCH_EVERY = 0.05  # seconds between looks at run limits
_STALLED = 10.0  # seconds without progress of a loop
_THREADS = 1  # intra-op threads of an engine
_END = 2.0  # seconds that engine processes with nothing to do have for leaving


class Supervisor:
    """Also the Fleet that the API asks (jobs/fleet.py)."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        stream: Stream,
        blobs: BlobStore,
        notifier: Notifier,
        publisher: Publisher,
        catalog: Catalog,
        repository: Path,
        settings: Settings,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._notifier = notifier
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._blobs = blobs
        self._catalog = catalog
        self.intake = Intake(stream, settings.pool, self._route, publisher, self._keep_bad, settings.crash)
        self.completer = Completer(
            ledger,
            blobs,
            publisher,
            notifier,
            self.intake.settle,
            inline_bytes=settings.limits.inline_bytes,
            clock=clock,
            crash=settings.crash,
        )
        self.roster = Roster(repository, _THREADS, catalog, self._host)
        self.heartbeat = Heartbeat(
            ledger, settings.worker_name, os.getpid(), settings.lease, clock, self._alive, self._lapsed
        )
        self._end_subscription: Callable[[], None] = lambda: None
        self._stopping = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._running = False

    def start(self) -> None:
        """Starts everything; engines load in the background (`wait_loaded`)."""
        self.heartbeat.start()
        self.completer.start()
        self._end_subscription = self._notifier.subscribe(self._told)
        self.roster.start()
        self._watchdog.start()
        self.intake.start()
        self._running = True

    def wait_loaded(self, timeout: float = 300.0) -> bool:
        return self.roster.wait_loaded(timeout)

    def stop(self, drain: timedelta) -> None:
        """Fetches nothing more, lets running batches end (for `drain` at most), hands back the rest."""
        if not self._running:
            return
        self._running = False
        deadline = self._monotonic() + drain.total_seconds()
        self.intake.stop()
        runners = self.roster.close()
        for runner in runners:
            runner.drain()
        pause = threading.Event()
        while any(runner.busy for runner in runners) and self._monotonic() < deadline:
            pause.wait(0.01)
        self.completer.wait_idle(5.0)
        for runner in runners:
            self.completer.post(runner.decider.give_back)
        self.completer.wait_idle(5.0)
        for runner in runners:
            runner.begin_end()
        ended_by = self._monotonic() + _END
        for runner in runners:
            runner.finish_end(ended_by)
        self._stopping.set()
        self._watchdog.join()
        self._end_subscription()
        self.completer.stop(5.0)
        self.intake.close()
        self.heartbeat.stop()

    # -- routing

    def _host(self) -> Host:
        return Host(
            ledger=self._ledger,
            blobs=self._blobs,
            completer=self.completer,
            settle=self.intake.settle,
            report=self._catalog.report,
            incarnation=lambda: self.heartbeat.incarnation,
            clock=self._clock,
            monotonic=self._monotonic,
            doubt=self.heartbeat.look,
        )

    def _route(self, chunks: list[HeldChunk]) -> list[HeldChunk]:
        by_version: dict[tuple[str, str], list[HeldChunk]] = {}
        for chunk in chunks:
            by_version.setdefault((chunk.message.model, chunk.message.version), []).append(chunk)
        returned: list[HeldChunk] = []
        for name, group in by_version.items():
            returned += self.roster.take(name, group)
        return returned

    def _keep_bad(self, record: Record, reason: str) -> None:
        log.error("partition %d, offset %d: undecodable record (%s)", record.partition, record.offset, reason)
        topic, at, offset, value = self._settings.pool, record.partition, record.offset, record.value
        try:
            self._ledger.post(lambda tx: tx.keep_bad_record(topic, at, offset, reason, value))
        except BatchyardError as error:
            log.error("partition %d, offset %d: passed, and not kept either (%s)", at, offset, error)

    def _told(self, ping: Ping) -> None:
        if ping.stopped:
            stopped = frozenset(ping.stopped)
            patience = self._settings.cancel_grace.total_seconds() / 2
            self.completer.post(lambda: self._each(lambda runner: runner.decider.stop_jobs(stopped, patience)))

    def _each(self, act: Callable[[Runner], None]) -> None:
        for runner in self.roster.watched():
            act(runner)

    def _lapsed(self) -> None:
        self.completer.post(lambda: self._each(lambda runner: runner.decider.drop_everything()))
        self.completer.wait_idle(5.0)

    # -- watching

    def _watch(self) -> None:
        while not self._stopping.wait(_WATCH_EVERY):
            now = self._monotonic()
            for runner in self.roster.watched():
                for instance in runner.instances:
                    try:
                        instance.process.check(now)
                    except Exception:
                        # The others' run limits hold whatever happens to one.
                        log.exception("%s: could not be looked at", instance.process.name)

    def _alive(self) -> bool:
        long_ago = time.monotonic() - _STALLED
        # While this worker stops nothing is fetched any more, but what runs is still its own.
        fetching = not self._running or self.intake.last_progress > long_ago
        return fetching and self.completer.last_progress > long_ago

    # -- Fleet

    def stats(self, model: str, version: str) -> ModelStats:
        runner = self.roster.runners.get((model, version))
        return ModelStats() if runner is None else runner.stats.snapshot()

    def live_workers(self, model: str, version: str) -> int:
        runner = self.roster.runners.get((model, version))
        return int(runner is not None and runner.version.state is VersionState.READY and self._running)

    def workers(self) -> tuple[WorkerInfo, ...]:
        runners = self.roster.runners
        return (
            WorkerInfo(
                incarnation=self.heartbeat.incarnation,
                name=self._settings.worker_name,
                pid=os.getpid(),
                started_at=self.heartbeat.started_at,
                models=tuple("@".join(name) for name in sorted(runners)),
                engines=tuple(
                    instance.process.pid
                    for runner in runners.values()
                    for instance in runner.instances
                    if instance.process.pid is not None
                ),
                held_items=sum(runner.held_items for runner in runners.values()),
            ),
        )

    def ready(self) -> bool:
        return self._running and self._alive()

    def reload(self) -> Mapping[str, str]:
        return self.roster.reload()
