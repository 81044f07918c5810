"""From a Start message to a session that serves: reads the version, opens its engine and handler, tests itself."""

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jobs.errors import ModelError
from jobs.models import repository
from jobs.models.spec import ModelSpec, Tensor
from workers.child.calling import Answer
from workers.child.calls import Call, EngineCall, PredictCall
from workers.child.failures import told
from workers.child.handlers import LoadedHandler, load_handler
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
    try:
        spec = repository.read_version(Path(start.repository), start.model, start.version)
        digest = repository.check_artifact(spec)
        session, spec, reason = _session(spec, start)
    except ModelError:
        raise
    except Exception as error:
        traceback.print_exception(error, file=sys.stderr)
        raise ModelError(f"{start.model}/{start.version}", f"cannot be loaded: {told(error)}") from error
    loaded = Loaded(
        inputs=_wire(spec.inputs),
        outputs=_wire(spec.outputs),
        artifact_sha256=digest,
        max_size=session.max_size,
        batching="unsound" if reason else "sound",
        batching_reason=reason,
        load_seconds=time.perf_counter() - began,
    )
    return Ready(session, loaded)


def _session(spec: ModelSpec, start: Start) -> tuple[Session, ModelSpec, str | None]:
    """The session, the spec as found, and why batching is unsound, if it is."""
    engine = open_engine(spec, start.threads)
    handler = load_handler(spec)
    call: Call | None = None
    if engine is not None:
        info = engine.info()
        spec = described(spec, info)
        call = EngineCall(spec, engine, info)
    elif spec.input == "tensors":
        spec = spec.with_tensors(spec.inputs, spec.outputs)
        assert handler is not None  # engine python is refused without
        call = PredictCall(spec, handler)
    session = Session(spec, call, handler)
    if call is not None and call.limit is not None:
        session.max_size = min(session.max_size, call.limit)
    if not start.self_test:
        return session, spec, None
    reason, answer = _tested(spec, session, call, handler)
    if reason is not None:
        session.max_size = 1
    return session, _as_seen(spec, call, handler, answer), reason


def _tested(
    spec: ModelSpec, session: Session, call: Call | None, handler: LoadedHandler | None
) -> tuple[str | None, Answer | None]:
    test = SelfTest(spec, session)
    unknown = test.warm_up()
    if spec.batch.max_size == 1:
        return None, test.answer  # one by one is what was asked for
    if call is not None and call.whole:
        return f"{', '.join(sorted(call.whole))}: no batch dimension in the artifact", test.answer
    if call is not None and call.limit == 1:
        return "the artifact takes one row at a time: its batch dimension is fixed at 1", test.answer
    return unknown or test.unsound(session.max_size), test.answer


def described(spec: ModelSpec, info: EngineInfo) -> ModelSpec:
    """With the artifact's inputs and outputs where model.yaml leaves them out; ModelError where the two disagree."""
    return spec.with_tensors(
        _merged(spec, "input", spec.inputs, info.inputs), _merged(spec, "output", spec.outputs, info.outputs)
    )


def _merged(spec: ModelSpec, what: str, declared: Sequence[Tensor], found: Sequence[TensorInfo]) -> Sequence[Tensor]:
    if not declared:
        return [Tensor(one.name, one.datatype, one.shape) for one in found]
    known = {one.name: one for one in found}
    for tensor in declared:
        actual = known.get(tensor.name)
        if actual is None:
            raise _disagree(spec, f"{what} {tensor.name} is not in the artifact; it has {', '.join(known)}")
        if actual.datatype != tensor.datatype or not _compatible(tensor.shape, actual.shape):
            raise _disagree(
                spec,
                f"{what} {tensor.name} is {tensor.datatype} {_shown(tensor.shape)} in model.yaml and "
                f"{actual.datatype} {_shown(actual.shape)} in the artifact (both without the batch dimension)",
            )
    missing = set(known) - {tensor.name for tensor in declared}
    if what == "input" and missing:
        raise _disagree(spec, f"leaves out the input {min(missing)} of the artifact")
    return declared


def _compatible(declared: tuple[int | str, ...], actual: tuple[int | str, ...]) -> bool:
    if not actual and declared:
        return True  # an artifact may not tell an output's shape
    return len(declared) == len(actual) and all(
        mine == its
        for mine, its in zip(declared, actual, strict=True)
        if isinstance(mine, int) and isinstance(its, int)
    )


def _as_seen(spec: ModelSpec, call: Call | None, handler: LoadedHandler | None, answer: Answer | None) -> ModelSpec:
    """Outputs whose shape the artifact did not tell, or told wrong, as the first item's came out."""
    processed = handler is not None and handler.postprocesses
    if spec.input != "tensors" or call is None or processed or not isinstance(answer, dict):
        return spec
    outputs = [_seen(tensor, answer.get(tensor.name), whole=tensor.name in call.whole) for tensor in spec.outputs]
    return spec.with_tensors(spec.inputs, outputs)


def _seen(tensor: Tensor, array: object, *, whole: bool) -> Tensor:
    if not isinstance(array, np.ndarray) or array.ndim == len(tensor.shape):
        return tensor
    shape = array.shape if whole else tuple(f"{tensor.name}_{at}" for at in range(1, array.ndim + 1))
    return replace(tensor, shape=shape)


def _shown(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _disagree(spec: ModelSpec, message: str) -> ModelError:
    return ModelError(f"{spec.name}/model.yaml", message)


def _wire(tensors: Sequence[Tensor]) -> tuple[DescribedTensor, ...]:
    return tuple(DescribedTensor(t.name, t.datatype, t.shape, t.pad, t.mask_for) for t in tensors)
