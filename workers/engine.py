"""Port of an engine: runs a batch on a runtime, inside the engine child."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]
"""Tensors by name; the leading dimension is the batch."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    datatype: str  # Open Inference Protocol V2 name
    shape: tuple[int | str, ...]  # without the batch dimension; a name = variable, the same name = the same length
    whole: bool = False  # has no batch dimension: `shape` is all of it, and the model serves one item at a time


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the loaded artifact itself says. ``batch_limit`` is set where its batch dimension is fixed: it then takes
    exactly as many rows, never fewer."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batch_limit: int | None


class Engine(Protocol):
    def info(self) -> EngineInfo: ...

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """One call; raises what the runtime raises (the child turns it into engine_error)."""

    def close(self) -> None: ...
