"""What the API needs of the rest of the process, handed over once by whoever wires it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from jobs.blob import BlobStore
from jobs.cache import Cache
from jobs.clock import Clock, system_clock
from jobs.errors import BatchyardError
from jobs.fleet import Fleet
from jobs.models.catalog import Catalog
from jobs.notifier import Notifier
from jobs.records import NewJob, Submitted
from jobs.settings import Settings
from jobs.store import Store, Transaction

T = TypeVar("T")

Outcome = Submitted | BatchyardError
Sink = Callable[[list[tuple[NewJob, Outcome]]], None]


class JobLedger(Protocol):
    """The part of the ledger's writer that the API uses."""

    def submit(self, job: NewJob, sink: Sink) -> None:
        """Raises Unavailable when full or stopped; `sink` is called once per commit with all of its results."""

    def post(self, change: Callable[[Transaction], T]) -> "Future[T]": ...

    @property
    def last_progress(self) -> float:
        """Monotonic seconds of the writer's last sign of life."""


class Admission(Protocol):
    """The part of the publisher that a submission passes."""

    def admit(self, job: NewJob) -> NewJob:
        """Before the ledger has it: reserves room in the window, or gives it back with `publish_now` False."""

    def withdraw(self, job: NewJob) -> None:
        """An admitted job was not inserted after all (a replay, an error)."""


class SignedBlobs(BlobStore, Protocol):
    """A blob store whose links are paths of the API itself."""

    def verify(self, token: str) -> str:
        """The key that a link's token names; NotFound for a forged one, Gone for an expired one."""


def _not_draining() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Services:
    ledger: JobLedger
    publisher: Admission
    store: Store
    blobs: SignedBlobs
    cache: Cache
    notifier: Notifier
    catalog: Catalog
    fleet: Fleet
    settings: Settings
    admin_key_digest: bytes  # SHA-256 of the admin key
    clock: Clock = system_clock
    draining: Callable[[], bool] = _not_draining  # the process is on its way out: not ready any more
