"""A model version as declared in ``model.yaml`` (schema 1): frozen values, no files, no parsing (see reader.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

FLOATING = frozenset({"FP16", "BF16", "FP32", "FP64"})
DATATYPES = FLOATING | {
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "BYTES",
}  # fmt: skip
UNBOUNDED = 2**31 - 1
"""Maximum of an axis that names none."""
ENGINES = ("onnxruntime", "python", "tensorrt", "openvino", "remote")


@dataclass(frozen=True, slots=True)
class Axis:
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output without the batch dimension. A dimension is a length or the name of an axis."""

    name: str
    datatype: str
    shape: tuple[int | str, ...]
    pad: float | int | bool | str | None = None
    mask_for: str | None = None

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """As the API shows it: -1 for a variable dimension."""
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.shape)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    max_size: int = 32
    preferred_sizes: tuple[int, ...] = ()
    max_queue_delay: timedelta = timedelta(milliseconds=5)
    max_padded_elements: int | None = None
    p99_objective: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    path: str  # relative to the version's folder
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    name: str
    version: str
    folder: Path  # <repository>/<name>
    engine: str
    input: str  # json | tensors
    default_version: str
    artifact: Artifact | None = None
    pool: str = "default"
    inputs: tuple[Tensor, ...] = ()  # empty until the artifact was read, where model.yaml leaves them out
    outputs: tuple[Tensor, ...] = ()
    axes: Mapping[str, Axis] = field(default_factory=dict)
    batch: BatchSettings = BatchSettings()
    run_timeout: timedelta = timedelta(seconds=30)
    max_attempts: int = 3
    instances: int = 1
    handler_concurrency: int = 1
    handler_mode: str = "process"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    non_finite: str = "string"  # | fail
    unavailable: str = "wait"  # | fail
    sample: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return (self.name, self.version)

    def with_tensors(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> "ModelSpec":
        """The same with its tensors as the artifact was found to have them; axes not declared may have any length."""
        named = {dim for tensor in (*inputs, *outputs) for dim in tensor.shape if isinstance(dim, str)}
        axes = {**{name: Axis(1, UNBOUNDED) for name in sorted(named)}, **self.axes}
        return replace(self, inputs=tuple(inputs), outputs=tuple(outputs), axes=axes)

    @property
    def version_folder(self) -> Path:
        return self.folder / self.version

    @property
    def handler_path(self) -> Path | None:
        """``<version>/handler.py`` if there is one, else ``<name>/handler.py``."""
        for candidate in (self.version_folder / "handler.py", self.folder / "handler.py"):
            if candidate.is_file():
                return candidate
        return None
