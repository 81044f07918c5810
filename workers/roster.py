"""The runners of this worker, one for each model version of the repository, which it follows on reload."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from jobs.models.catalog import Catalog, ModelVersion, VersionState
from jobs.models.repository import read_repository
from workers.held import HeldChunk
from workers.host import Host
from workers.runner import Runner, files_of

log = logging.getLogger("batchyard.models")

Name = tuple[str, str]  # model, version
_LOAD_WAIT = 300.0  # seconds that a reload waits for new versions
_RETIRE = 60.0  # seconds that running batches of a version that is gone may take


class Roster:
    def __init__(self, repository: Path, threads: int, catalog: Catalog, host: Callable[[], Host]) -> None:
        self._repository = repository
        self._threads = threads
        self._catalog = catalog
        self._host = host
        self._reloading = threading.Lock()
        self._changing = threading.Lock()  # guards the next two
        self._watched: list[Runner] = []
        self._closed = False
        self.runners: Mapping[Name, Runner] = {}  # replaced whole, so that readers need no lock

    def start(self) -> None:
        """Starts every version; does not wait for them."""
        versions = read_repository(self._repository).versions
        self._catalog.replace_all(versions)
        runners = {v.spec.key: self._runner(v) for v in versions if v.state is not VersionState.UNAVAILABLE}
        self.runners = runners
        for version in versions:
            if version.error is not None:
                log.error("%s@%s: %s", version.spec.name, version.spec.version, version.error)
        for runner in runners.values():
            runner.shown = True
            self._start(runner)

    def take(self, name: Name, chunks: list[HeldChunk]) -> list[HeldChunk]:
        """Gives chunks of a version to its runner; gives back those that nobody here takes, or that are held already.
        What nobody here serves is left to the relay, which publishes it again when its lease is up."""
        while chunks and (runner := self.runners.get(name)) is not None:
            back = runner.take(chunks)
            if not runner.holding.draining or self.runners.get(name) is runner:
                return back
            chunks = back  # a reload was faster: its successor takes them
        return chunks

    def wait_loaded(self, timeout: float) -> bool:
        """Until every version is ready or unavailable."""
        return all(runner.outcome.wait(timeout) for runner in self.runners.values())

    def watched(self) -> list[Runner]:
        """All runners that may have an engine process: those that serve, load or end."""
        with self._changing:
            return list(self._watched)

    def close(self) -> list[Runner]:
        """Starts no runner any more; gives those that are watched."""
        with self._changing:
            self._closed = True
            return list(self._watched)

    def reload(self) -> Mapping[str, str]:
        """Reads the repository again. A version that changed goes on serving as it was until its new form is loaded,
        and for good if that cannot be; one that is gone runs what it holds and ends."""
        with self._reloading:
            read = {version.spec.key: version for version in read_repository(self._repository).versions}
            before = self.runners
            kept, fresh = self._compare(before, read)
            for runner in fresh.values():
                self._start(runner)
            for runner in fresh.values():
                runner.outcome.wait(_LOAD_WAIT)
            runners = dict(kept)
            retired: list[Runner] = [runner for name, runner in before.items() if name not in read]
            states: dict[str, str] = {}
            for name, runner in fresh.items():
                if runner.version.state is VersionState.READY or name not in before:
                    runners[name] = runner
                    retired += [before[name]] if name in before else []
                else:
                    runners[name] = before[name]
                    states["@".join(name)] = f"kept as it was: {runner.version.error}"
                    retired.append(runner)
            for runner in retired:
                runner.shown = False
            for runner in runners.values():
                runner.shown = True
            # Served first and shown then: what is submitted because it was seen finds its runner.
            self.runners = runners
            self._publish(read, runners, states)
            for runner in retired:
                threading.Thread(target=self._retire, args=(runner,), name="retire", daemon=True).start()
            return states

    def _compare(
        self, before: Mapping[Name, Runner], read: Mapping[Name, ModelVersion]
    ) -> tuple[dict[Name, Runner], dict[Name, Runner]]:
        kept: dict[Name, Runner] = {}
        fresh: dict[Name, Runner] = {}
        for name, version in read.items():
            running = before.get(name)
            if running is not None and (version.error is not None or self._unchanged(running, version)):
                kept[name] = running
            elif version.state is not VersionState.UNAVAILABLE:
                fresh[name] = self._runner(version)
        return kept, fresh

    def _unchanged(self, runner: Runner, version: ModelVersion) -> bool:
        same = runner.source.spec == replace(version.spec, default_version=runner.source.spec.default_version)
        return (
            same
            and runner.source.artifact_sha256 == version.artifact_sha256
            and runner.files == files_of(version.spec.folder, version.spec.version)
        )

    def _publish(
        self, read: Mapping[Name, ModelVersion], runners: Mapping[Name, Runner], states: dict[str, str]
    ) -> None:
        shown: dict[Name, ModelVersion] = {}
        for name, version in read.items():
            runner = runners.get(name)
            current = version if runner is None else runner.version
            error = version.error if runner is not None and version.error else current.error
            shown[name] = replace(current, error=error)
            states.setdefault("@".join(name), error or str(current.state))
        versions = []
        for name, current in shown.items():
            default = self._default(read[name].spec.name, read[name].spec.default_version, shown)
            versions.append(replace(current, spec=replace(current.spec, default_version=default)))
        self._catalog.replace_all(versions)

    def _default(self, model: str, wanted: str, shown: Mapping[Name, ModelVersion]) -> str:
        """The default version as model.yaml has it, unless that one cannot be loaded and the default before can."""
        before = self._catalog.models().get(model)
        if before is None or before.default_version == wanted:
            return wanted
        new, old = shown.get((model, wanted)), shown.get((model, before.default_version))
        ready = VersionState.READY
        if old is not None and old.state is ready and (new is None or new.state is not ready):
            log.error("%s@%s is not ready; %s stays the default", model, wanted, before.default_version)
            return before.default_version
        return wanted

    def _retire(self, runner: Runner) -> None:
        """Passes on what waits to what serves now, lets running batches end, gives back the rest, ends the engines."""
        if runner not in self.watched():
            return  # it was not started, because everything ends
        runner.drain()
        runner.host.settle(self.take(runner.spec.key, runner.holding.let_go()))
        deadline = runner.host.monotonic() + _RETIRE
        pause = threading.Event()
        while runner.busy and runner.host.monotonic() < deadline:
            pause.wait(0.05)
        runner.host.completer.post(runner.decider.give_back)
        runner.host.completer.wait_idle(5.0)
        runner.begin_end()
        runner.finish_end(runner.host.monotonic() + 5.0)
        with self._changing:
            self._watched = [watched for watched in self._watched if watched is not runner]

    def _start(self, runner: Runner) -> None:
        with self._changing:
            if self._closed:
                runner.outcome.set()
                return
            self._watched.append(runner)
            runner.start()

    def _runner(self, version: ModelVersion) -> Runner:
        return Runner(version, str(self._repository), self._threads, self._host())
