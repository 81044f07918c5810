"""What to do about failures: pure decisions. No loop can spin, because each of them makes something smaller.

A batch that raised, died or overran as a whole -> its items one by one (uncharged; stored first). A failure of an item
by itself -> charged; another try after a growing pause, in a child chunk, until its attempts are used up. A death or an
overrun of an item alone -> charged as well, and the second one is final. What was only queued behind a dying batch goes
back uncharged.
"""

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(seconds=60)
JITTER = 0.2
MAX_DEATHS = 2
"""An item that brings its process down or hangs it is not tried more often than this."""


class Fate(Enum):
    """Of one item that failed by itself."""

    RETRY = "retry"  # MOVED to a child chunk, charged
    FAIL = "fail"  # FAILED, charged


class Suspicion(Enum):
    """Of a batch that ended without answers."""

    RETURN = "return"  # it never started: its items go back uncharged
    ISOLATE = "isolate"  # any of its items may have done it: marked alone, then one by one
    CULPRIT = "culprit"  # it had one item: that one did it


@dataclass(frozen=True, slots=True)
class Retry:
    """Limits of one item's tries."""

    charged: int  # attempts before this one
    max_attempts: int


def judge_failure(retry: Retry, permanent: bool, fatal: bool) -> Fate:
    """Of an item that failed by itself. `fatal`: it killed or hung the process."""
    limit = min(MAX_DEATHS, retry.max_attempts) if fatal else retry.max_attempts
    return Fate.FAIL if permanent or retry.charged + 1 >= limit else Fate.RETRY


def judge_batch(size: int, started: bool, unstarted_losses: int) -> Suspicion:
    """Of a batch that raised, or was first in a process that died or was cut.

    One that had not reported a stage goes back once; a process that keeps dying before it can report is taken for
    started, or the batch would come and go for ever.
    """
    if not started and not unstarted_losses:
        return Suspicion.RETURN
    return Suspicion.CULPRIT if size == 1 else Suspicion.ISOLATE


def backoff(charged: int, asked: float | None, chance: random.Random) -> timedelta:
    """The pause before the try that follows `charged` attempts; `asked` (seconds) is the handler's own wish."""
    if asked is not None:
        return min(timedelta(seconds=max(0.0, asked)), timedelta(hours=1))
    base = min(FIRST_BACKOFF * 2 ** min(max(charged - 1, 0), 16), LONGEST_BACKOFF)
    return timedelta(seconds=base.total_seconds() * (1 + chance.uniform(-JITTER, JITTER)))


@dataclass(slots=True)
class RestartPause:
    """How long an engine process stays down before it is started again.

    A version that cannot be loaded: 1, 2, 4 … 30 s. A death in service: at once; again without a finished batch in
    between: 0.1, 0.2 … 2 s, since the items that do it are charged and run out.
    """

    _failed_loads: int = 0
    _barren_deaths: int = 0

    def finished_batch(self) -> None:
        self._barren_deaths = 0
        self._failed_loads = 0

    def load_failed(self) -> float:
        self._failed_loads += 1
        return float(min(30.0, 2.0 ** min(self._failed_loads - 1, 10)))

    def died_in_service(self) -> float:
        self._barren_deaths += 1
        return 0.0 if self._barren_deaths == 1 else float(min(2.0, 0.05 * 2.0 ** min(self._barren_deaths - 1, 10)))

    def died_idle(self) -> float:
        """With nothing to run, so nobody is charged for it: at once, then 1, 2, 4 … 30 s."""
        self._failed_loads += 1
        return 0.0 if self._failed_loads == 1 else float(min(30.0, 2.0 ** min(self._failed_loads - 2, 10)))
