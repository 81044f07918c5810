"""From a Start message to a session that serves: reads the version, opens its engine and handler, tests itself."""

import time
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import ModelError
from jobs.models import repository
from jobs.models.spec import ModelSpec, Tensor
from workers.child.handlers import load_handler
from workers.child.selftest import SelfTest
from workers.child.session import Session
from workers.engine import EngineInfo, TensorInfo
from workers.engines.registry import open_engine
from workers.wire import DescribedTensor, Loaded, Start


@dataclass(frozen=True, slots=True)
class Ready:
    session: Session
    loaded: Loaded


def load(start: Start) -> Ready:
    """ModelError says why the version cannot be served."""
    began = time.perf_counter()
    spec = repository.read_version(Path(start.repository).absolute(), start.model, start.version)
    digest = repository.check_artifact(spec)
    engine = open_engine(spec, start.threads)
    limit = None
    if engine is not None:
        info = engine.info()
        spec = described(spec, info)
        limit = info.batch_limit
    else:
        spec = spec.with_tensors(spec.inputs, spec.outputs)
    session = Session(spec, engine, load_handler(spec), limit)
    reason = None
    if start.self_test:
        reason = _tested(spec, session, limit)
    most = 1 if reason else min(spec.batch.max_size, limit or spec.batch.max_size)
    loaded = Loaded(
        inputs=_wire(spec.inputs),
        outputs=_wire(spec.outputs),
        artifact_sha256=digest,
        max_size=most,
        batching="unsound" if reason else "sound",
        batching_reason=reason,
        load_seconds=time.perf_counter() - began,
    )
    return Ready(session, loaded)


def _tested(spec: ModelSpec, session: Session, limit: int | None) -> str | None:
    test = SelfTest(spec, session)
    test.warm_up()
    if limit == 1 and spec.batch.max_size > 1:
        return "the artifact takes one row at a time: its batch dimension is fixed at 1"
    return test.unsound()


def described(spec: ModelSpec, info: EngineInfo) -> ModelSpec:
    """With the artifact's inputs and outputs where model.yaml leaves them out; ModelError where the two disagree."""
    return spec.with_tensors(
        _merged(spec, "input", spec.inputs, info.inputs), _merged(spec, "output", spec.outputs, info.outputs)
    )


def _merged(
    spec: ModelSpec, what: str, declared: tuple[Tensor, ...], found: tuple[TensorInfo, ...]
) -> tuple[Tensor, ...]:
    if not declared:
        return tuple(Tensor(one.name, one.datatype, one.shape) for one in found)
    known = {one.name: one for one in found}
    for tensor in declared:
        actual = known.get(tensor.name)
        if actual is None:
            raise _disagree(spec, f"{what} {tensor.name} is not in the artifact; it has {', '.join(known)}")
        if actual.datatype != tensor.datatype or not _compatible(tensor.shape, actual.shape):
            raise _disagree(
                spec,
                f"{what} {tensor.name} is {tensor.datatype} {list(tensor.shape)} in model.yaml and "
                f"{actual.datatype} {list(actual.shape)} in the artifact (both without the batch dimension)",
            )
    missing = set(known) - {tensor.name for tensor in declared}
    if what == "input" and missing:
        raise _disagree(spec, f"model.yaml leaves out the input {min(missing)} of the artifact")
    return declared


def _compatible(declared: tuple[int | str, ...], actual: tuple[int | str, ...]) -> bool:
    return len(declared) == len(actual) and all(
        mine == its
        for mine, its in zip(declared, actual, strict=True)
        if isinstance(mine, int) and isinstance(its, int)
    )


def _disagree(spec: ModelSpec, message: str) -> ModelError:
    return ModelError(f"{spec.name}/model.yaml", message)


def _wire(tensors: tuple[Tensor, ...]) -> tuple[DescribedTensor, ...]:
    return tuple(DescribedTensor(t.name, t.datatype, t.shape, t.pad, t.mask_for) for t in tensors)
