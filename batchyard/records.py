"""What the API answers, as frozen values. Fields unknown to this version stand in ``raw``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Self

FINAL_STATES = frozenset({"succeeded", "failed", "partially_failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class Item:
    """One inference input of a job. ``id`` defaults to its index, ``parameters`` win over the job's."""

    input: Any
    id: str | None = None
    parameters: Mapping[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"input": self.input}
        if self.id is not None:
            wire["id"] = self.id
        if self.parameters is not None:
            wire["parameters"] = self.parameters
        return wire


@dataclass(frozen=True, slots=True)
class Counts:
    """Items of a job by what became of them."""

    total: int = 0
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.expired

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Self:
        return cls(**{f.name: int(wire.get(f.name) or 0) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class Usage:
    engine_seconds: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Self:
        return cls(
            float(wire.get("engine_seconds") or 0),
            int(wire.get("input_bytes") or 0),
            int(wire.get("output_bytes") or 0),
        )


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why an item (or a job as a whole) has no output. ``permanent``: running it again would not help."""

    code: str
    message: str
    permanent: bool = True
    stage: str | None = None

    @classmethod
    def parse(cls, wire: Mapping[str, Any] | None) -> Self | None:
        if wire is None:
            return None
        permanent = bool(wire.get("permanent", True))
        return cls(str(wire.get("code", "")), str(wire.get("message", "")), permanent, wire.get("stage"))


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a job's results.

    ``output`` is what the model answered, as the API wrote it: a number that JSON cannot hold comes as one of the
    strings "NaN", "Infinity" and "-Infinity"; ``float(value)`` reads both. A tensor is
    ``{"shape": […], "datatype": …, "data": […]}``.
    """

    index: int
    id: str
    state: str
    output: Any = None
    error: ItemError | None = None
    attempts: int = 0
    version: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Self:
        return cls(
            index=int(wire["index"]),
            id=str(wire["id"]),
            state=str(wire["state"]),
            output=wire.get("output"),
            error=ItemError.parse(wire.get("error")),
            attempts=int(wire.get("attempts") or 0),
            version=wire.get("version"),
            raw=wire,
        )


@dataclass(frozen=True)
class JobRecord:
    """A job as it was when it was read. ``client.Job`` and ``async_client.AsyncJob`` add the verbs."""

    id: str
    kind: str
    model: str
    version: str
    state: str
    priority: str
    paused: bool
    sealed: bool
    counts: Counts
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    results_expire_at: datetime | None
    usage: Usage
    error: ItemError | None
    output: Any
    parent_job: str | None
    metadata: Mapping[str, str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def final(self) -> bool:
        """Nothing about it will change any more."""
        return self.state in FINAL_STATES

    @property
    def succeeded(self) -> bool:
        """Every item succeeded."""
        return self.state == "succeeded"


def job_fields(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of JobRecord from the API's job object."""
    return {
        "id": str(wire["id"]),
        "kind": str(wire.get("kind", "inline")),
        "model": str(wire["model"]),
        "version": str(wire["version"]),
        "state": str(wire["state"]),
        "priority": str(wire.get("priority", "normal")),
        "paused": bool(wire.get("paused", False)),
        "sealed": bool(wire.get("sealed", True)),
        "counts": Counts.parse(wire.get("counts") or {}),
        "created_at": datetime.fromisoformat(wire["created_at"]),
        "started_at": _time(wire.get("started_at")),
        "finished_at": _time(wire.get("finished_at")),
        "deadline_at": _time(wire.get("deadline_at")),
        "results_expire_at": _time(wire.get("results_expire_at")),
        "usage": Usage.parse(wire.get("usage") or {}),
        "error": ItemError.parse(wire.get("error")),
        "output": wire.get("output"),
        "parent_job": wire.get("parent_job"),
        "metadata": dict(wire.get("metadata") or {}),
        "raw": wire,
    }


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    version: str
    state: str  # loading | ready | unavailable
    error: str | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model as served now; everything else the API says about it is in ``raw``."""

    name: str
    default_version: str
    ready: bool
    input: str  # json | tensors
    versions: tuple[ModelVersion, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Self:
        return cls(
            name=str(wire["name"]),
            default_version=str(wire.get("default_version", "")),
            ready=bool(wire.get("ready", False)),
            input=str(wire.get("input", "")),
            versions=tuple(
                ModelVersion(str(v["version"]), str(v.get("state", "")), v.get("error"), v.get("engine"))
                for v in wire.get("versions") or ()
            ),
            raw=wire,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job's stream. ``name`` is ``progress`` (``data`` has counts, rate_per_second, eta_at) or ``state``
    (``data`` is the job)."""

    name: str
    data: Mapping[str, Any]
    id: str | None = None
