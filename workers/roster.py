"""The runners of this worker, one for each model version of the repository, which it follows on reload."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jobs.models.catalog import Catalog, ModelVersion, VersionState
from jobs.models.repository import read_repository
from workers.host import Host
from workers.runner import Runner

log = logging.getLogger("batchyard.models")

Name = tuple[str, str]  # model, version
_LOAD_WAIT = 300.0  # seconds that a reload waits for new versions


class Roster:
    def __init__(self, repository: Path, threads: int, catalog: Catalog, host: Callable[[], Host]) -> None:
        self._repository = repository
        self._threads = threads
        self._catalog = catalog
        self._host = host
        self._reloading = threading.Lock()
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
            runner.start()

    def wait_loaded(self, timeout: float) -> bool:
        """Until every version is ready or unavailable."""
        return all(runner.outcome.wait(timeout) for runner in self.runners.values())

    def reload(self) -> Mapping[str, str]:
        """Reads the repository again. A version that changed goes on serving as it was until its new form is loaded,
        and for good if that cannot be; one that is gone runs what it holds and ends."""
        with self._reloading:
            read = {version.spec.key: version for version in read_repository(self._repository).versions}
            before = self.runners
            kept, fresh = self._compare(before, read)
            for runner in fresh.values():
                runner.start()
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
            self.runners = runners
            self._publish(read, runners, states)
            self._retire(retired)
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
        return same and runner.source.artifact_sha256 == version.artifact_sha256

    def _publish(
        self, read: Mapping[Name, ModelVersion], runners: Mapping[Name, Runner], states: dict[str, str]
    ) -> None:
        shown = []
        for name, version in read.items():
            runner = runners.get(name)
            current = version if runner is None else runner.version
            # The default may have moved without anything else changing.
            spec = replace(current.spec, default_version=version.spec.default_version)
            error = version.error if runner is not None and version.error else current.error
            shown.append(replace(current, spec=spec, error=error))
            states.setdefault("@".join(name), error or str(current.state))
        self._catalog.replace_all(shown)

    def _retire(self, runners: Sequence[Runner]) -> None:
        for runner in runners:
            runner.drain()
            runner.host.completer.post(runner.decider.give_back)
            runner.begin_end()
            threading.Thread(target=runner.finish_end, args=(runner.host.monotonic() + 60.0,), daemon=True).start()

    def _runner(self, version: ModelVersion) -> Runner:
        return Runner(version, str(self._repository), self._threads, self._host())
