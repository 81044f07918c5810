"""Looks at every job again and again, from outside, and keeps what it saw: the history that the oracle judges."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from tests.oracle.view import listed


@dataclass
class Watcher:
    """A thread that lists the jobs of a tenant every ``every`` seconds until it is stopped.

    ``where`` gives address and API key, asked anew each round: a service that was started again may listen elsewhere.
    A service that is away is no news; the next round tries again.
    """

    tenant: str
    where: Callable[[], tuple[str, str]]
    every: float = 0.3
    rounds: int = 0
    _states: dict[str, list[str]] = field(default_factory=dict, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _round: threading.Lock = field(default_factory=threading.Lock, repr=False)  # one round at a time, in order

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def _saw(self, job: str, state: str) -> None:
        # Only ever inside a round: two readers at once could note a later answer before an earlier one.
        with self._lock:
            states = self._states.setdefault(job, [])
            if not states or states[-1] != state:
                states.append(state)

    def history(self) -> Mapping[str, Sequence[str]]:
        with self._lock:
            return {job: tuple(states) for job, states in self._states.items()}

    def look(self) -> None:
        """One round, now. Raises httpx.HTTPError when the service is away."""
        url, key = self.where()
        with self._round, httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=5) as client:
            for job in listed(client, self.tenant):
                self._saw(job.id, job.state)
            self.rounds += 1

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.look()
            except (httpx.HTTPError, OSError, KeyError, AssertionError):
                continue  # being killed, or not up yet
