"""Making a model repository entry, and running one item of a model, without a server."""

import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchyard.errors import BatchyardError
from jobs.errors import ModelError
from jobs.models import paths, reader, repository, scaffold
from jobs.models.spec import Artifact, ModelSpec, Tensor
from workers.child.calling import Caller, CallFailed, RefusedItem
from workers.child.loading import described, load
from workers.engine import EngineInfo
from workers.engines.onnxruntime import OnnxRuntimeEngine, external_locations
from workers.wire import Start

MAX_SIZE = 32
"""Batch size that a new model.yaml begins with."""
ARTIFACT = "model.onnx"


class ModelFailed(BatchyardError):
    """A model that cannot be made, loaded or run here; the text says why and what to do."""


@contextmanager
def _as_command_errors() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise ModelFailed(str(error)) from error


def init(models: Path, name: str, onnx: Path) -> Path:
    """Writes ``<models>/<name>/model.yaml`` and ``1/model.onnx`` for an ONNX file and gives the first one's path.

    Nothing is left behind when the file cannot be served. ModelFailed says why.
    """
    with _as_command_errors():
        if not reader.NAME.match(name):
            raise ModelError(name, "a name is of a-z, 0-9, _ and -, starts with a letter or digit, at most 63 long")
        target = models / name
        if target.exists():
            raise ModelError(name, f"is there already ({target}); choose another name, or remove it first")
        if not onnx.is_file():
            raise ModelError(str(onnx), "there is no such file")
        models.mkdir(parents=True, exist_ok=True)
        # Made aside and moved into place: a running stack never sees half an entry.
        with tempfile.TemporaryDirectory(dir=models, prefix=".making-") as aside:
            folder = _make(Path(aside), name, onnx)
            folder.rename(target)
    return target / reader.FILE


def _make(root: Path, name: str, onnx: Path) -> Path:
    folder = root / name
    version = folder / "1"
    version.mkdir(parents=True)
    _copy(onnx, version)
    spec = ModelSpec(name, "1", folder, "onnxruntime", "tensors", "1", artifact=Artifact(ARTIFACT))
    digest = repository.check_artifact(spec)
    assert digest is not None
    engine = OnnxRuntimeEngine(spec, threads=1)
    info = engine.info()
    engine.close()
    found = described(spec, info)
    most, note = _batch(info)
    text = scaffold.model_yaml(
        name,
        artifact=ARTIFACT,
        sha256=digest,
        inputs=found.inputs,
        outputs=found.outputs,
        max_size=most,
        batch_note=note,
    )
    (folder / reader.FILE).write_text(text, encoding="utf-8")
    repository.read_model(root, name)  # what was written must be read without a finding
    return folder


def _copy(onnx: Path, version: Path) -> None:
    """The file, and those beside it that hold its weights."""
    shutil.copyfile(onnx, version / ARTIFACT)
    source = onnx.resolve()
    descriptor = paths.open_inside(source.parent, (source.name,), onnx.name)
    for location in external_locations(descriptor, onnx.name):
        data = paths.open_inside(source.parent, paths.parts_of(location), onnx.name)
        copy = version / location
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open(data, "rb") as weights, copy.open("wb") as written:
            shutil.copyfileobj(weights, written)


def _batch(info: EngineInfo) -> tuple[int, str]:
    """Most items of a batch, and why."""
    whole = [tensor.name for tensor in (*info.inputs, *info.outputs) if tensor.whole]
    if whole:
        return 1, f"{', '.join(whole)}: no batch dimension in the artifact, so items run one by one"
    if info.batch_limit == 1:
        return 1, "the artifact's batch dimension is fixed at 1; export it with a dynamic one for more"
    if info.batch_limit is not None:
        return info.batch_limit, f"the artifact always takes {info.batch_limit}; smaller batches are filled up"
    return MAX_SIZE, "most items of one call; a larger one pays as long as the engine gains from it"


def run(
    models: Path, name: str, item: Any, parameters: Mapping[str, Any] | None = None, *, version: str | None = None
) -> Any:
    """The answer to one item's input, run in this process: what `/results` has as its `output`.

    When the model raises, its whole traceback is printed on stderr, and ModelFailed has the item's error.
    """
    with _as_command_errors():
        spec = repository.read_version(models.resolve(), name, version)
        ready = load(Start(str(models.resolve()), name, spec.version, threads=1, self_test=False))
        raised: list[BaseException] = []
        ready.session.watch = raised.append
        try:
            return json.loads(Caller(ready.session).json(item, parameters))
        except RefusedItem as error:
            raise ModelFailed(f"the input is refused: {error}; {_takes(ready.session.spec.inputs)}") from error
        except CallFailed as failed:
            if raised:
                traceback.print_exception(raised[-1], file=sys.stderr)
            reason = failed.reason
            lasting = ", permanent" if reason.permanent else ""
            raise ModelFailed(f"{reason.code} in {reason.stage}{lasting}: {reason.message}") from failed
        finally:
            ready.session.close()


def _takes(inputs: tuple[Tensor, ...]) -> str:
    shown = (f"{tensor.name}: {tensor.datatype} [{', '.join(map(str, tensor.shape))}]" for tensor in inputs)
    return f"the model takes {{{', '.join(shown)}}}"


def inspect(models: Path, name: str) -> dict[str, Any]:
    """What the repository says of a model: each version with its tensors and hash, or why it cannot be used."""
    with _as_command_errors():
        specs = repository.read_model(models.resolve(), name)
    return {
        "name": name,
        "default_version": specs[0].default_version,
        "engine": specs[0].engine,
        "input": specs[0].input,
        "versions": [_version(models.resolve(), spec) for spec in specs],
    }


def _version(models: Path, spec: ModelSpec) -> dict[str, Any]:
    try:
        ready = load(Start(str(models), spec.name, spec.version, threads=1))
    except ModelError as error:
        return {"version": spec.version, "error": str(error)}
    ready.session.close()
    loaded = ready.loaded
    return {
        "version": spec.version,
        "error": None,
        "artifact_sha256": loaded.artifact_sha256,
        "inputs": [_tensor(tensor) for tensor in ready.session.spec.inputs],
        "outputs": [_tensor(tensor) for tensor in ready.session.spec.outputs],
        "max_size": loaded.max_size,
        "batching": loaded.batching,
        "batching_reason": loaded.batching_reason,
        "load_seconds": round(loaded.load_seconds, 3),
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.wire_shape)}
