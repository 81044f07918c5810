"""The ONNX Runtime engine (extra ``[onnxruntime]``)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.errors import ModelError
from jobs.models import paths
from jobs.models.spec import ModelSpec
from workers.engine import Arrays, EngineInfo, TensorInfo

_DATATYPES = {
    "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16",
    "tensor(bool)": "BOOL", "tensor(string)": "BYTES",
    **{f"tensor(int{bits})": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip


class OnnxRuntimeEngine:
    """One session on the CPU. `threads` is the number of intra-op threads."""

    def __init__(self, spec: ModelSpec, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelError(
                spec.name, "engine onnxruntime needs the extra: pip install 'batchyard[onnxruntime]'"
            ) from error
        assert spec.artifact is not None  # model.yaml is refused without one
        self._where = f"{spec.name}/{spec.version}/{spec.artifact.path}"
        path = spec.version_folder.joinpath(*paths.parts_of(spec.artifact.path))
        _check_external_data(path, spec, self._where)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; what matters reaches us as an exception
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own classes derive from Exception alone
            raise ModelError(self._where, f"cannot be loaded: {plain(error)}") from error
        self._text = frozenset(one.name for one in self._session.get_inputs() if one.type == "tensor(string)")
        self._outputs = [one.name for one in self._session.get_outputs()]

    def info(self) -> EngineInfo:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        leading = {one.shape[0] if one.shape else None for one in inputs}
        fixed = [dim for dim in leading if isinstance(dim, int)]
        return EngineInfo(
            tuple(self._tensor(one) for one in inputs),
            tuple(self._tensor(one) for one in outputs),
            min(fixed) if fixed else None,
        )

    def _tensor(self, one: Any) -> TensorInfo:
        datatype = _DATATYPES.get(one.type)
        if datatype is None:
            raise ModelError(self._where, f"{one.name} is {one.type}, which no tensor datatype stands for")
        if not one.shape:
            raise ModelError(self._where, f"{one.name} has no dimension that could be the batch")
        return TensorInfo(
            one.name,
            datatype,
            tuple(
                # A symbolic dimension keeps its name: inputs and outputs that share one share a length.
                dim if isinstance(dim, int | str) else f"{one.name}_{at}"
                for at, dim in enumerate(one.shape[1:], 1)
            ),
        )

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> Arrays:
        if self._text:
            feeds = {name: _as_text(array) if name in self._text else array for name, array in feeds.items()}
        answers = self._session.run(self._outputs, dict(feeds))
        return {name: np.asarray(answer) for name, answer in zip(self._outputs, answers, strict=True)}

    def close(self) -> None:
        del self._session


def _as_text(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The runtime's strings are str."""
    text = np.empty(array.shape, dtype=object)
    text.reshape(-1)[:] = [element.decode() if isinstance(element, bytes) else element for element in array.ravel()]
    return text


def _check_external_data(path: Path, spec: ModelSpec, where: str) -> None:
    """Weights outside the artifact must lie beside it, as plain files: the runtime would follow any path."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError, or whatever a damaged file makes of it
        raise ModelError(where, f"is no ONNX model: {plain(error)}") from error
    for tensor in _tensors(model.graph):
        if not uses_external_data(tensor):
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        try:
            parts = (spec.version, *paths.parts_of(spec.artifact.path)[:-1], *paths.parts_of(location))  # type: ignore[union-attr]
        except ValueError as error:
            raise ModelError(where, f"tensor {tensor.name!r} keeps its data in {location!r}: {error}") from None
        os.close(paths.open_inside(spec.folder, parts, where, single=True))


def _tensors(graph: Any) -> list[Any]:
    """Initializers and tensor attributes, of subgraphs too."""
    found = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        found += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                if len(inner.node) or len(inner.initializer):
                    found += _tensors(inner)
    return found


def plain(error: Exception) -> str:
    """The first line of what a runtime says, without paths of this machine."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    words = [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in text.split(" ")]
    return " ".join(words)[:500]
