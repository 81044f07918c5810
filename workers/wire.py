"""What the supervisor and an engine child say to each other: one frame a message, whole batches, nothing an item.

Supervisor -> child: Start (once), Run, Stop. Child -> supervisor: Loaded | LoadFailed (once), Started, Done.
The parts of a Run frame are the payload frames of its segments; those of a Done frame are result frames.
"""

from typing import Any

import msgspec


class Start(msgspec.Struct, frozen=True, tag=True):
    """Everything the child needs: it reads no settings and opens nothing outside `folder`."""

    repository: str
    model: str
    version: str
    threads: int
    self_test: bool = True


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Some items of one chunk inside a batch; its payload frame is the part at the same position."""

    positions: tuple[tuple[int, int], ...]  # half-open ranges of positions in the chunk
    attempts: int  # charged tries before this one


class Run(msgspec.Struct, frozen=True, tag=True):
    """One batch. The child answers with Started (each stage) and one Done."""

    id: int
    segments: tuple[Segment, ...]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish what was sent, then exit 0. The end of the pipe means the same, at once."""


class DescribedTensor(msgspec.Struct, frozen=True, array_like=True):
    name: str
    datatype: str
    shape: tuple[int | str, ...]
    pad: float | int | bool | str | None = None
    mask_for: str | None = None


class Loaded(msgspec.Struct, frozen=True, tag=True):
    inputs: tuple[DescribedTensor, ...]
    outputs: tuple[DescribedTensor, ...]
    artifact_sha256: str | None
    max_size: int  # the model's, or 1 where it cannot batch
    batching: str  # sound | unsound
    batching_reason: str | None
    load_seconds: float


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    error: str


class Started(msgspec.Struct, frozen=True, tag=True):
    id: int
    stage: str  # preprocess | run | predict | postprocess


class Failure(msgspec.Struct, frozen=True):
    """An item that failed by itself (a handler or engine reported it), its neighbours being fine."""

    segment: int
    position: int  # in the chunk
    code: str
    message: str
    permanent: bool
    stage: str
    traceback: str | None = None
    retry_after: float | None = None  # seconds, from `raise Retry(after=…)`


class BatchError(msgspec.Struct, frozen=True):
    """The call as a whole raised; no item of it has an answer."""

    code: str
    message: str
    permanent: bool
    stage: str
    traceback: str | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """``results[i]`` is the index of the part that holds the result frame of segment i's succeeded items, or -1."""

    id: int
    engine_seconds: float  # the engine's call alone
    busy_seconds: float  # preprocess to postprocess
    results: tuple[int, ...] = ()
    failures: tuple[Failure, ...] = ()
    error: BatchError | None = None


ToChild = Start | Run | Stop
FromChild = Loaded | LoadFailed | Started | Done

to_child_decoder = msgspec.json.Decoder(ToChild)
from_child_decoder = msgspec.json.Decoder(FromChild)


def parameters_of(*layers: Any) -> dict[str, Any]:
    """Later layers win: the model's, the job's, the item's own."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if layer:
            merged.update(layer)
    return merged
