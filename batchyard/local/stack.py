"""`batchyard up`: one front process on this machine, from the lock on its data to the last line of its log."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from api.admin import create_admin_app
from api.app import create_app
from api.server import serve
from batchyard.errors import BatchyardError
from batchyard.local import logs
from batchyard.local.bootstrap import Parts
from batchyard.local.data import Keys, Lock, prepare, write_env
from jobs.errors import BatchyardError as CoreError
from jobs.models.catalog import Catalog, VersionState
from jobs.settings import FILE, Settings

log = logging.getLogger("batchyard.stack")

GC_THRESHOLD = 20_000
"""Containers that may be made, less those freed, before the young ones are looked over for cycles."""

LOOK_SECONDS = 0.2
"""How often the wait for the models looks whether the process is to end."""


@dataclass(frozen=True, slots=True)
class Options:
    given: Mapping[str, Any]  # settings named on the command line
    default_models: Path | None  # the repository where none is named anywhere
    log_level: str = "warning"
    as_json: bool = False


def up(options: Options) -> int:
    """Runs until SIGINT or SIGTERM; gives the exit code. BatchyardError where it cannot start."""
    logs.configure(options.log_level)
    settings = _settings(options)
    folder = prepare(settings.data)
    with Lock(folder):
        repository = _repository(settings.models or options.default_models, folder)
        try:
            Stack(replace(settings, data=folder), repository, options.as_json).run()
        except CoreError as error:
            raise BatchyardError(str(error)) from error
    return 0


def _settings(options: Options) -> Settings:
    file = Path(FILE) if Path(FILE).is_file() else None
    try:
        settings = Settings.from_environment(file=file, **options.given)
    except ValueError as error:
        raise BatchyardError(f"the settings cannot be used:\n{error}") from error
    for name in ("postgres_url", "redis_url", "kafka", "s3"):
        if getattr(settings, name) is not None:
            _say(f"{name} is set; the local stack uses no services and leaves it alone")
    return settings


def _repository(models: Path | None, folder: Path) -> Path:
    if models is None:
        _say("no models: give a model repository with --models, or make the folder ./models")
        empty = folder / "models"
        empty.mkdir(exist_ok=True)
        return empty
    if not models.is_dir():
        raise BatchyardError(f"the model repository {models} is no folder; give another with --models")
    return models.resolve()


class Stack:
    def __init__(self, settings: Settings, repository: Path, as_json: bool) -> None:
        self._settings = settings
        self._as_json = as_json
        self._keys = Keys.kept(settings.data)
        self._parts = Parts(settings, repository, self._keys)
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._starter = threading.Thread(target=self._start_workers, name="start", daemon=True)
        self._url = ""
        self._failure: Exception | None = None

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        try:
            self._parts.start()
            uvloop.run(self._serve())
        finally:
            self._stop()
            if self._starter.ident is not None:
                self._starter.join()
            self._parts.stop()
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        self._stop_event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping.is_set():
            return
        services = self._parts.services
        app, admin_app = create_app(services), create_admin_app(services)
        try:
            await serve(app, admin_app, self._settings, self._listening, self._stop_event)
        except OSError as error:
            raise BatchyardError(
                f"{error.strerror or error}; give other ports with --port and --admin-port (0 = any that is free)"
            ) from error

    def _listening(self, port: int, admin_port: int) -> None:
        """The ports are ours: tells them, and starts what takes its time beside the event loop."""
        self._url = f"http://{self._settings.host}:{port}"
        write_env(self._settings.data, self._url, f"http://127.0.0.1:{admin_port}", self._keys)
        self._starter.start()

    def _start_workers(self) -> None:
        try:
            self._parts.start_workers()
            while not self._parts.wait_loaded(LOOK_SECONDS):
                if self._stopping.is_set():
                    return
        except Exception as error:
            self._failure = error
            self._stop()
            return
        _rest_collector()
        _report(self._parts.catalog)
        _say(f"address and keys are in {self._settings.data / 'env'}; Ctrl-C stops")
        sys.stdout.write((json.dumps({"ready": self._url}) if self._as_json else f"ready {self._url}") + "\n")
        sys.stdout.flush()

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if self._stopping.is_set():
            # The ledger is safe at any moment, and the engine children end with their pipes.
            os._exit(128 + number)
        _say("stopping: running batches end first, the rest goes on at the next start (once more: stop at once)")
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        self._parts.draining.value = True
        if self._loop is not None and self._stop_event is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_event.set)


def _rest_collector() -> None:
    """What was made so far stays, so it need not be looked at again. Objects of requests under way are freed by their
    count of references; at the default threshold the collector would walk over them some hundred times a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def _report(catalog: Catalog) -> None:
    """What a user must know about the models before work comes."""
    versions = [version for model in catalog.models().values() for version in model.versions.values()]
    for version in versions:
        name = f"{version.spec.name}@{version.spec.version}"
        if version.state is VersionState.UNAVAILABLE:
            _say(f"! {name} is unavailable: {version.error}")
        elif version.batching == "unsound":
            _say(f"! {name} CANNOT BE BATCHED and is served one by one: {version.batching_reason}")
    ready = sum(version.state is VersionState.READY for version in versions)
    _say(f"{ready} of {len(versions)} model versions are ready")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
