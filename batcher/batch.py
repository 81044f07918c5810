"""What the batcher is offered and what it forms. Pure records: no clock, thread or I/O."""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from jobs.states import ErrorCode


class Closed(StrEnum):
    """Why a batch was closed."""

    FULL = "full"  # max_size or a preferred size reached
    DELAY = "delay"  # max_queue_delay was up, or waiting longer would end its items later
    DEADLINE = "deadline"  # an item would have missed its deadline
    MEMORY = "memory"  # the next item did not fit max_padded_elements
    IDLE = "idle"  # the engine was free and nothing else was there to add


@dataclass(frozen=True, slots=True)
class Limits:
    """Batch limits of one model version."""

    max_size: int
    preferred_sizes: tuple[int, ...] = ()
    max_queue_delay: float = 0.005  # seconds
    max_padded_elements: int | None = None


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive items of one chunk that are alike: same batch key, same lengths. The unit that is offered."""

    chunk: Any  # the worker's handle; opaque here, compared by identity
    job: str
    tenant: str
    priority: str
    start: int  # positions [start, stop) in the chunk
    stop: int
    key: Hashable  # batch key: what items must share to run together
    lengths: tuple[int, ...] = ()  # one per variable axis; () for fixed shapes
    alone: bool = False  # each item is a batch of its own
    offered_at: float = 0.0  # monotonic seconds
    queue_deadline_at: datetime | None = None
    deadline_at: datetime | None = None

    @property
    def count(self) -> int:
        return self.stop - self.start


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Items given to an engine in one call: one batch key, spans in order."""

    key: Hashable
    spans: tuple[Span, ...]
    closed: Closed
    elements: int  # real elements over all items (0 where no axis varies)
    padded_elements: int  # elements after padding to the longest

    @property
    def size(self) -> int:
        return sum(span.count for span in self.spans)


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Nothing to run now: ask again at ``until`` (monotonic seconds; None: when something is offered)."""

    until: float | None


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """A span that left without being run because its time was up: ``queue_timeout`` or ``deadline_exceeded``."""

    span: Span
    code: ErrorCode
