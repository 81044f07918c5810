"""One engine child from spawn to spawn: start-up, messages, death, restart. Never forked, never left behind.

A thread of its own lives through the child's lives and tells the listener what happens, in order. A child ends when
its pipe does, so it also ends when this process is killed. Whoever sends may block (a stopped child reads nothing);
the watchdog then kills the child, which ends the blocking.
"""

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.errors import Undecodable
from workers.channel import Channel
from workers.child_output import pump
from workers.isolation import RestartPause
from workers.wire import Done, FromChild, Loaded, LoadFailed, Run, Start, Started, Stop

log = logging.getLogger("batchyard.engine")

LOAD_TIMEOUT = 300.0
"""Seconds from spawn to Loaded: reading the artifact, warm-up and the self-test."""


class EngineGone(Exception):
    """The process that this was meant for is not there any more; the listener has been told, or will be."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A process that was ready is gone."""

    overran: bool  # it was cut, because its batch was past its run limit
    detail: str  # how it ended


class Listener(Protocol):
    """Told by the process's own thread; must return soon and never raise."""

    def loaded(self, loaded: Loaded, generation: int) -> None: ...

    def load_failed(self, error: str) -> None: ...

    def started(self, flight: int, stage: str) -> None: ...

    def done(self, done: Done, parts: Sequence[memoryview]) -> None: ...

    def lost(self, loss: Loss) -> bool:
        """Everything in flight is gone. Whether anything was."""

    def cut_at(self) -> float | None:
        """When the run limit of what runs is up (monotonic seconds); None: nothing runs."""


class EngineProcess:
    def __init__(
        self,
        start: Start,
        listener: Listener,
        name: str,
        *,
        load_timeout: float = LOAD_TIMEOUT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._start = start
        self._listener = listener
        self._load_timeout = load_timeout
        self._monotonic = monotonic
        self._pause = RestartPause()
        self._lock = threading.Lock()  # guards the three below against kill and send from other threads
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromChild] | None = None
        self._generation = 0
        self._send_lock = threading.Lock()
        self._load_by: float | None = None
        self._overran = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"engine {name}", daemon=True)

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def start(self) -> None:
        self._thread.start()

    def send(self, run: Run, parts: Sequence[bytes | memoryview], generation: int) -> None:
        """To the process that reported `generation` as loaded; EngineGone if that one is no more."""
        with self._send_lock:
            with self._lock:
                channel = self._channel
                if channel is None or generation != self._generation:
                    raise EngineGone(self.name)
            try:
                channel.send(run, parts)
            except OSError as error:
                raise EngineGone(f"{self.name}: {error}") from error

    def check(self, now: float) -> None:
        """The watchdog's look: kills a process past its limit, and notices one whose pipe outlives it."""
        with self._lock:
            process, channel, load_by = self._process, self._channel, self._load_by
        if process is None:
            return
        limit = load_by if load_by is not None else self._listener.cut_at()
        if limit is not None and limit <= now:
            with self._lock:
                if self._process is not process:
                    return  # gone by itself; another may be there already
                self._overran = True
            self.kill()
        elif process.poll() is not None and channel is not None:
            channel.shutdown()

    def kill(self) -> None:
        with self._lock:
            process, channel = self._process, self._channel
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if channel is not None:
            channel.shutdown()

    def begin_stop(self) -> None:
        """Asks the child to finish what it was sent and to leave; returns at once."""
        self._stopping.set()
        threading.Thread(target=self._say_stop, name=f"stop {self.name}", daemon=True).start()

    def _say_stop(self) -> None:
        with self._lock:
            channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError), self._send_lock:
                channel.send(Stop(), ())

    def finish_stop(self, deadline: float) -> None:
        """Waits until `deadline` (monotonic) for the child to leave, then ends its pipe, then kills it by its pid."""
        self._stopping.set()
        self._thread.join(max(0.0, deadline - self._monotonic()))
        if self._thread.is_alive():
            with self._lock:
                channel = self._channel
            if channel is not None:
                channel.shutdown()
            self._thread.join(0.5)
        while self._thread.is_alive():
            self.kill()
            self._thread.join(0.2)

    # -- the thread

    def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._life()
            except Exception:
                # Whatever went wrong with one process, there is to be another.
                log.exception("%s: lost hold of the engine process", self.name)
                pause = self._pause.load_failed()
            if pause:
                self._stopping.wait(pause)

    def _life(self) -> float:
        """One process from spawn to end; gives the pause before the next."""
        try:
            channel = self._spawn()
        except OSError as error:
            self._listener.load_failed(f"cannot start an engine process: {error}")
            return self._pause.load_failed()
        try:
            failure = self._load(channel)
            if failure is None:
                self._guarded_serve(channel)
        finally:
            ending = self._end(channel)
        if failure is not None:
            if not self._stopping.is_set():
                self._listener.load_failed(failure or f"the engine process ended while loading: {ending}")
            return self._pause.load_failed()
        had_work = self._listener.lost(Loss(self._overran, ending))
        if self._stopping.is_set():
            return 0.0
        log.warning("%s: the engine process is gone: %s%s", self.name, ending, " (cut)" if self._overran else "")
        return self._pause.died_in_service() if had_work else self._pause.died_idle()

    def _spawn(self) -> Channel[FromChild]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process = subprocess.Popen(
                # -P: the folder this process was started in must not shadow a module of the child.
                [sys.executable, "-P", "-m", "workers.child.main", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C reaches this process alone, which then stops its children in order
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        assert process.stdout is not None
        pump(process.stdout, f"{self.name} ({process.pid})")
        channel = Channel.of_supervisor(ours)
        with self._lock:
            self._process, self._channel = process, channel
            self._generation += 1
            self._overran = False
            self._load_by = self._monotonic() + self._load_timeout
        return channel

    def _load(self, channel: Channel[FromChild]) -> str | None:
        """None: it is loaded. Else what went wrong; "" when it simply ended."""
        with contextlib.suppress(OSError), self._send_lock:
            channel.send(self._start, ())
        received = self._receive(channel)
        with self._lock:
            self._load_by = None
        if received is None:
            return f"not loaded within {self._load_timeout:g} s" if self._overran else ""
        message, _ = received
        if isinstance(message, Loaded):
            try:
                self._listener.loaded(message, self._generation)
            except Exception as error:
                log.exception("%s: cannot be used as loaded", self.name)
                return f"cannot be used as loaded: {type(error).__name__}: {error}"
            return None
        return message.error if isinstance(message, LoadFailed) else f"unexpected {type(message).__name__}"

    def _guarded_serve(self, channel: Channel[FromChild]) -> None:
        """So that the listener hears of the loss, whatever happens."""
        try:
            self._serve(channel)
        except Exception:
            log.exception("%s: a message of the engine process could not be taken", self.name)

    def _serve(self, channel: Channel[FromChild]) -> None:
        """Until the pipe ends."""
        while True:
            received = self._receive(channel)
            if received is None:
                return
            message, parts = received
            if isinstance(message, Done):
                self._pause.finished_batch()
                self._listener.done(message, parts)
            elif isinstance(message, Started):
                self._listener.started(message.id, message.stage)

    def _receive(self, channel: Channel[FromChild]) -> tuple[FromChild, list[memoryview]] | None:
        """None: nothing more will come, or nothing that could be understood."""
        try:
            return channel.receive()
        except OSError:
            return None
        except Undecodable as error:
            log.error("%s: %s", self.name, error)
            return None

    def _end(self, channel: Channel[FromChild]) -> str:
        """Makes sure that the process is gone; says how it ended."""
        with self._lock:
            process, self._channel = self._process, None
        assert process is not None
        channel.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self._lock:
            self._process = None
        code = process.returncode
        if code >= 0:
            return f"exit status {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
