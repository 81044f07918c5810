"""Port through which the API asks about the workers' side without knowing it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Since the version was loaded, over all workers."""

    batches: int = 0
    batch_items: int = 0
    padded_elements: int = 0
    elements: int = 0
    engine_seconds: float = 0.0
    closed: Mapping[str, int] = field(default_factory=dict)  # by reason: full | delay | deadline | memory | idle


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    incarnation: str
    name: str
    pid: int
    started_at: datetime
    models: tuple[str, ...]  # "name@version"
    engines: tuple[int, ...]  # pids of the engine children
    held_items: int


class Fleet(Protocol):
    def stats(self, model: str, version: str) -> ModelStats: ...

    def live_workers(self, model: str, version: str) -> int: ...

    def workers(self) -> tuple[WorkerInfo, ...]: ...

    def ready(self) -> bool:
        """The loops that serve work make progress."""

    def reload(self) -> Mapping[str, str]:
        """Reads the model repository again; gives state (or error) by "name@version" once the outcome is known."""
