"""The ONNX Runtime engine (extra ``[onnxruntime]``)."""

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.errors import ModelError
from jobs.models import paths
from jobs.models.spec import ModelSpec
from workers.engine import Arrays, EngineInfo, TensorInfo

_DATATYPES = {
    "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip


class OnnxRuntimeEngine:
    """One session on the CPU. `threads` is the number of intra-op threads."""

    def __init__(self, spec: ModelSpec, threads: int) -> None:
        runtime = _import("onnxruntime", spec.name)
        assert spec.artifact is not None  # model.yaml is refused without one
        self._where = f"{spec.name}/{spec.version}/{spec.artifact.path}"
        parts = (spec.version, *paths.parts_of(spec.artifact.path))
        descriptor = paths.open_inside(spec.folder, parts, self._where, single=True)
        for location in external_locations(descriptor, self._where):
            beside = (*parts[:-1], *paths.parts_of(location))
            os.close(paths.open_inside(spec.folder, beside, self._where, single=True))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; what matters reaches us as an exception
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are shared
        try:
            artifact = spec.folder.joinpath(*parts)
            self._session = runtime.InferenceSession(artifact, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own classes derive from Exception alone
            raise ModelError(self._where, f"cannot be loaded: {_first_line(error)}") from error
        self._text = frozenset(one.name for one in self._session.get_inputs() if one.type == "tensor(string)")
        self._outputs = [one.name for one in self._session.get_outputs()]

    def info(self) -> EngineInfo:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        leading = [one.shape[0] if one.shape else None for one in inputs]
        fixed = {dim for dim in leading if isinstance(dim, int)}
        limit: int | None = None
        if fixed and all(isinstance(dim, int) for dim in leading) and len(fixed) == 1:
            limit = fixed.pop()
        elif 1 in fixed:
            limit = 1
        return EngineInfo(
            # An input whose first dimension is fixed at another length than the batch's is no row of anything.
            tuple(self._tensor(one, whole=not one.shape or _fixed(one.shape[0], limit)) for one in inputs),
            # An output whose shape the artifact does not tell is looked at when it first comes out.
            tuple(self._tensor(one, whole=bool(one.shape) and _fixed(one.shape[0], limit or 1)) for one in outputs),
            limit,
        )

    def _tensor(self, one: Any, *, whole: bool) -> TensorInfo:
        datatype = _DATATYPES.get(one.type)
        if datatype is None:
            raise ModelError(self._where, f"{one.name} is {one.type}, which this engine cannot serve")
        first = 0 if whole else 1
        # A symbolic dimension keeps its name: inputs and outputs that share one share a length.
        shape = tuple(
            dim if isinstance(dim, int) or (isinstance(dim, str) and dim) else f"{one.name}_{at}"
            for at, dim in enumerate(one.shape[first:], first)
        )
        return TensorInfo(one.name, datatype, shape, whole)

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays:
        if self._text:
            feeds = {name: _as_text(array) if name in self._text else array for name, array in feeds.items()}
        answers = self._session.run(self._outputs, dict(feeds))
        return {name: np.asarray(answer) for name, answer in zip(self._outputs, answers, strict=True)}

    def close(self) -> None:
        del self._session


def _fixed(dim: object, batch: int | None) -> bool:
    return isinstance(dim, int) and dim != batch


def _as_text(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The runtime's strings are str."""
    text = np.empty(array.shape, dtype=object)
    text.reshape(-1)[:] = [element.decode() if isinstance(element, bytes) else element for element in array.ravel()]
    return text


def external_locations(descriptor: int, where: str) -> list[str]:
    """Relative paths of files beside an ONNX artifact that hold its weights; ModelError for one that leads elsewhere.

    The runtime would follow any path, so none may be absolute or climb. Closes `descriptor`, the artifact's.
    """
    with os.fdopen(descriptor, "rb") as file:
        if not os.fstat(descriptor).st_size:
            raise ModelError(where, "is empty")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            if mapped.find(b"location") < 0:
                return []  # the key that every such tensor has: spares most artifacts a second parse
        data = file.read()
    onnx = _import("onnx", where)
    try:
        model = onnx.load_model_from_string(data)  # reads nothing but these bytes
    except Exception as error:  # protobuf's DecodeError, or whatever a damaged file makes of it
        raise ModelError(where, f"is no ONNX model: {_first_line(error)}") from error
    found: dict[str, None] = {}
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL and not tensor.external_data:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        try:
            paths.parts_of(location)
        except ValueError as error:
            raise ModelError(where, f"tensor {tensor.name!r} keeps its data in {location!r}: {error}") from None
        found[location] = None
    return list(found)


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor of a model: initializers and attributes, of subgraphs, functions and training graphs too."""
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            graphs += [graph for graph in (attribute.g, *attribute.graphs) if graph.ByteSize()]


def _import(package: str, where: str) -> ModuleType:
    try:
        return __import__(package)
    except ImportError as error:
        hint = "engine onnxruntime needs the extra: pip install 'batchyard[onnxruntime]'"
        raise ModelError(where, f"{hint} ({package} cannot be imported)") from error


def _first_line(error: Exception) -> str:
    """Of what a runtime says, without paths of this machine."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return " ".join(Path(word).name if word.startswith("/") else word for word in text.split(" "))[:500]
