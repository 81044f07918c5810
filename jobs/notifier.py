"""Port of the notifier: one ping per commit says which jobs changed. A lost ping costs a second, never an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jobs.records import Job
from jobs.store import ResultChunk


@dataclass(frozen=True, slots=True)
class Ping:
    """What one commit changed.

    ``jobs`` are the ids of jobs that changed; ``finals`` the ones of them that ended, as they are now (may be empty
    even then: a notifier need not carry records); ``results`` may have the chunk that holds the one item of a final
    (none: read it); ``stopped`` are jobs whose work in workers must not go on.
    """

    jobs: tuple[str, ...]
    finals: tuple[Job, ...] = ()
    stopped: tuple[str, ...] = ()
    results: Mapping[str, ResultChunk] = field(default_factory=dict)


class Notifier(Protocol):
    def ping(self, ping: Ping) -> None:
        """Tells every subscriber, in this and other processes. Never raises, never waits for a subscriber."""

    def subscribe(self, told: Callable[[Ping], None]) -> Callable[[], None]:
        """`told` is called from any thread and must return at once; gives the function that ends it."""
