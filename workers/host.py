"""What a runner has from its supervisor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.blob import BlobStore
from jobs.clock import Clock
from jobs.ledger import Ledger
from jobs.models.catalog import ModelVersion
from workers.completer import Completer
from workers.held import HeldChunk


@dataclass(frozen=True, slots=True)
class Host:
    ledger: Ledger
    blobs: BlobStore
    completer: Completer
    settle: Callable[[Sequence[HeldChunk]], None]
    report: Callable[[ModelVersion], None]  # a version's new state
    incarnation: Callable[[], str]
    clock: Clock
    monotonic: Callable[[], float]
