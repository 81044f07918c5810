"""A model's handler.py: loading it, and calling what it has, item by item or for the whole batch."""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jobs.errors import ModelError
from jobs.models import paths
from jobs.models.spec import ModelSpec

Parameters = Mapping[str, Any]


class LoadedHandler:
    """The handler's methods with one shape each: lists in, one entry an item out, an exception standing for its item."""

    def __init__(self, spec: ModelSpec, instance: object) -> None:
        self._where = f"{spec.name}/handler.py"
        self.load: Callable[..., Any] | None = getattr(instance, "load", None)
        self._preprocess: Callable[..., Any] | None = getattr(instance, "preprocess", None)
        self._preprocess_batch: Callable[..., Any] | None = getattr(instance, "preprocess_batch", None)
        self._postprocess: Callable[..., Any] | None = getattr(instance, "postprocess", None)
        self.predict: Callable[..., Any] | None = getattr(instance, "predict", None)
        self._pool = ThreadPoolExecutor(spec.handler_concurrency, "handler") if spec.handler_concurrency > 1 else None

    @property
    def preprocesses(self) -> bool:
        return self._preprocess is not None or self._preprocess_batch is not None

    @property
    def postprocesses(self) -> bool:
        return self._postprocess is not None

    def preprocess(self, inputs: Sequence[Any], parameters: Sequence[Parameters]) -> list[Any]:
        """The result or the exception of each item; raises what preprocess_batch itself raises."""
        if self._preprocess_batch is not None:
            # One batch key, one set of parameters: that of any item.
            return self.checked("preprocess_batch", self._preprocess_batch(list(inputs), parameters[0]), len(inputs))
        assert self._preprocess is not None
        return self._each(self._preprocess, inputs, parameters)

    def postprocess(self, outputs: Sequence[Any], parameters: Sequence[Parameters]) -> list[Any]:
        assert self._postprocess is not None
        return self._each(self._postprocess, outputs, parameters)

    def _each(self, call: Callable[..., Any], values: Sequence[Any], parameters: Sequence[Parameters]) -> list[Any]:
        def guarded(value: Any, its_parameters: Parameters) -> Any:
            try:
                return call(value, its_parameters)
            except Exception as error:
                return error

        if self._pool is None:
            return [guarded(value, own) for value, own in zip(values, parameters, strict=True)]
        return list(self._pool.map(guarded, values, parameters))

    def checked(self, method: str, answers: Any, count: int) -> list[Any]:
        """A list with an entry an item, or TypeError: an answer too many or too few belongs to nobody."""
        if not isinstance(answers, list | tuple) or len(answers) != count:
            got = f"{len(answers)}" if isinstance(answers, list | tuple) else type(answers).__name__
            raise RuntimeError(f"{method} must return a list of {count} entries, one an item, and returned {got}")
        return list(answers)


def load_handler(spec: ModelSpec) -> LoadedHandler | None:
    """None where the model has none. ModelError when its file cannot be imported or its load() raises."""
    path = spec.handler_path
    if path is None:
        if spec.engine == "python":
            raise ModelError(spec.name, "engine python needs a handler.py with a class Handler that has predict()")
        return None
    where = f"{spec.name}/handler.py"
    paths.read_inside(spec.folder, path.relative_to(spec.folder).parts, where)  # refuses links
    name = f"batchyard_handler_{spec.name.replace('-', '_')}_{spec.version}"
    source = importlib.util.spec_from_file_location(name, path)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module  # so that what it defines can be looked up by name (dataclasses, pickling of its own)
    sys.path.insert(0, str(path.parent))  # a handler may have modules of its own beside it
    try:
        source.loader.exec_module(module)
    except BaseException as error:
        raise ModelError(where, f"cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(module, "Handler", None)
    if not callable(factory):
        raise ModelError(where, "has no class Handler")
    try:
        handler = LoadedHandler(spec, factory())
        if spec.engine == "python" and handler.predict is None:
            raise ModelError(where, "engine python needs Handler.predict(inputs, parameters)")
        if spec.engine != "python" and spec.input == "json" and not handler.preprocesses:
            raise ModelError(where, "a model with `input: json` needs Handler.preprocess or preprocess_batch")
        if handler.load is not None:
            handler.load(spec.version_folder, dict(spec.parameters))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(where, f"load() raised {type(error).__name__}: {error}") from error
    return handler
