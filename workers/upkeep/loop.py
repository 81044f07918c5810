"""The thread under every upkeep agent: runs a duty at an interval, at once when woken, and survives its errors."""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from jobs.clock import Clock, system_clock

_log = logging.getLogger(__name__)

_JITTER = 0.1  # of the interval, either way: doubled agents drift apart
_LONGEST_PAUSE = 30.0  # seconds between tries of a duty that keeps failing


class Duty(Protocol):
    """What an agent does, one step at a time. A step that is done twice, here or elsewhere, does no harm."""

    @property
    def name(self) -> str: ...

    @property
    def interval(self) -> float:
        """Seconds from the end of one step to the start of the next."""

    @property
    def backlog(self) -> int:
        """What the last step knew of and had to leave; 0 when it was through."""

    def step(self) -> int:
        """Does what is due; gives how much that was. May raise: the agent tries again later."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """For readiness and the operator."""

    name: str
    last_run: datetime | None  # of a step that went well
    last_error: str | None  # None again after a step that went well
    failures: int  # steps that failed one after another
    backlog: int


class Agent:
    """Start it once; `stop` ends it after the step that is running. All methods may be called by any thread."""

    def __init__(
        self, duty: Duty, *, clock: Clock = system_clock, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._duty = duty
        self._clock = clock
        self._uniform = uniform
        self._signal = threading.Event()  # set by wake and by stop
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._last_run: datetime | None = None
        self._last_error: str | None = None
        self._failures = 0

    @property
    def state(self) -> AgentState:
        return AgentState(self._duty.name, self._last_run, self._last_error, self._failures, self._duty.backlog)

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError(f"agent {self._duty.name} was started already")
        self._thread = threading.Thread(target=self._run, name=f"upkeep-{self._duty.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Its next step comes at once, also when it is waiting after an error."""
        self._signal.set()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread and waits for it (`timeout` seconds at most); False: its step is still running."""
        self._stopping = True
        self._signal.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def run_once(self) -> float:
        """One step, whatever comes of it; gives the seconds to wait before the next."""
        try:
            self._duty.step()
        except Exception as error:
            self._failures += 1
            self._last_error = f"{type(error).__name__}: {error}"
            # The first of a row with its traceback: more of the same would drown the log.
            _log.error("upkeep %s: %s", self._duty.name, self._last_error, exc_info=self._failures == 1)
            doubled = self._duty.interval * 2.0 ** min(self._failures, 16)
            return self._jittered(min(doubled, max(_LONGEST_PAUSE, self._duty.interval)))
        if self._failures:
            _log.info("upkeep %s works again after %d failed steps", self._duty.name, self._failures)
        self._failures = 0
        self._last_error = None
        self._last_run = self._clock()
        return self._jittered(self._duty.interval)

    def _jittered(self, seconds: float) -> float:
        return seconds * self._uniform(1.0 - _JITTER, 1.0 + _JITTER)

    def _run(self) -> None:
        while not self._stopping:
            # Cleared before the step: a wake that comes while it runs brings another step.
            self._signal.clear()
            if self._stopping:
                return
            self._signal.wait(self.run_once())
