"""A model's handler.py: loading it, and calling what it has, item by item or for the whole batch."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from jobs.errors import ModelError
from jobs.models import paths
from jobs.models.spec import ModelSpec
from workers.child.failures import told

Method = Callable[..., Any]


class LoadedHandler:
    """The handler's methods in one form: lists in, one entry an item out, an exception standing for its item."""

    def __init__(self, instance: object, concurrency: int = 1) -> None:
        self._preprocess: Method | None = getattr(instance, "preprocess", None)
        self._preprocess_batch: Method | None = getattr(instance, "preprocess_batch", None)
        self._postprocess: Method | None = getattr(instance, "postprocess", None)
        self._predict: Method | None = getattr(instance, "predict", None)
        self._pool = ThreadPoolExecutor(concurrency, "handler") if concurrency > 1 else None

    @property
    def preprocesses(self) -> bool:
        return self._preprocess is not None or self._preprocess_batch is not None

    @property
    def postprocesses(self) -> bool:
        return self._postprocess is not None

    def preprocess(self, inputs: Sequence[Any], parameters: dict[str, Any]) -> list[Any]:
        """The result or the exception of each item; raises what preprocess_batch itself raises."""
        if self._preprocess_batch is not None:
            return self.checked("preprocess_batch", self._preprocess_batch(list(inputs), parameters), len(inputs))
        assert self._preprocess is not None
        return self._each(self._preprocess, inputs, parameters)

    def postprocess(self, outputs: Sequence[Any], parameters: dict[str, Any]) -> list[Any]:
        assert self._postprocess is not None
        return self._each(self._postprocess, outputs, parameters)

    def predict(self, inputs: Any, parameters: dict[str, Any]) -> Any:
        assert self._predict is not None
        return self._predict(inputs, parameters)

    def _each(self, call: Method, values: Sequence[Any], parameters: dict[str, Any]) -> list[Any]:
        def guarded(value: Any) -> Any:
            try:
                return call(value, parameters)
            except Exception as error:
                return error

        return list(map(guarded, values)) if self._pool is None else list(self._pool.map(guarded, values))

    def checked(self, method: str, answers: Any, count: int) -> list[Any]:
        """A list with an entry an item: an answer too many or too few belongs to nobody."""
        if not isinstance(answers, list | tuple):
            raise RuntimeError(f"{method} must return a list, one entry an item, not {type(answers).__name__}")
        if len(answers) != count:
            raise RuntimeError(f"{method} must return one entry an item: {count}, and returned {len(answers)}")
        return list(answers)


def load_handler(spec: ModelSpec) -> LoadedHandler | None:
    """None where the model has none. ModelError when its file cannot be used or its load() raises; the traceback of
    that goes to stderr."""
    path = spec.handler_path
    if path is None:
        if spec.engine == "python" or spec.input == "json":
            needed = "predict" if spec.engine == "python" else "preprocess"
            raise ModelError(spec.name, f"needs a handler.py with a class Handler that has {needed}()")
        return None
    where = f"{spec.name}/{path.relative_to(spec.folder)}"
    source = paths.read_inside(spec.folder, path.relative_to(spec.folder).parts, where)  # refuses links
    module = _module(spec, path, source, where)
    factory = getattr(module, "Handler", None)
    if not callable(factory):
        raise ModelError(where, "has no class Handler")
    try:
        instance = factory()
    except Exception as error:
        raise _unusable(error, spec, where, "Handler()") from error
    _check_methods(spec, instance, where)
    load = getattr(instance, "load", None)
    if load is not None:
        try:
            load(spec.version_folder, dict(spec.parameters))
        except Exception as error:
            raise _unusable(error, spec, where, "load()") from error
    return LoadedHandler(instance, spec.handler_concurrency)


def _module(spec: ModelSpec, path: Path, source: bytes, where: str) -> ModuleType:
    name = f"batchyard_handler_{spec.name.replace('-', '_')}_{spec.version}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # so that what it defines can be looked up by name (dataclasses, pickling of its own)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # a handler may have modules beside it; last, so that they hide nothing
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _unusable(error, spec, where, "import") from error
    return module


def _check_methods(spec: ModelSpec, instance: object, where: str) -> None:
    has = {name for name in ("preprocess", "preprocess_batch", "postprocess", "predict") if hasattr(instance, name)}
    unused = has - {"predict"} if spec.engine == "python" else has & {"predict"}
    if spec.engine == "python" and "predict" not in has:
        raise ModelError(where, "engine python needs Handler.predict(inputs, parameters)")
    if unused:
        with_it = "calls predict alone" if spec.engine == "python" else "calls no predict; it is for engine python"
        raise ModelError(where, f"engine {spec.engine} {with_it}: remove {', '.join(sorted(unused))}")
    if {"preprocess", "preprocess_batch"} <= has:
        raise ModelError(where, "has both preprocess and preprocess_batch; keep one")
    if spec.engine != "python" and spec.input == "json" and not has & {"preprocess", "preprocess_batch"}:
        raise ModelError(where, "a model with `input: json` needs Handler.preprocess or preprocess_batch")


def _unusable(error: BaseException, spec: ModelSpec, where: str, what: str) -> ModelError:
    traceback.print_exception(error, file=sys.stderr)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.startswith(str(spec.folder))]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    return ModelError(f"{where}:{lines[-1]}" if lines and lines[-1] else where, f"{what}: {told(error)}")
