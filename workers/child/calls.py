"""The one call of a batch: an engine's run or a handler's predict, with what goes in and comes out checked."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobs.models.spec import ModelSpec, Tensor
from workers.child.arrays import Array, Misfit, fitting
from workers.child.collate import Collated
from workers.child.failures import OutputInvalid, WrongBatch
from workers.child.handlers import LoadedHandler
from workers.child.items import Parameters
from workers.engine import Arrays, Engine, EngineInfo


class EngineCall:
    """Runs an artifact. Tensors that have no batch dimension get one around the call, so that nobody else need know.

    Which outputs have none is known from the artifact, or else seen at the first call with a single item.
    """

    stage = "run"

    def __init__(self, spec: ModelSpec, engine: Engine, info: EngineInfo) -> None:
        self._engine = engine
        self._names = [tensor.name for tensor in spec.outputs]
        self._limit = info.batch_limit
        self._whole_inputs = frozenset(tensor.name for tensor in info.inputs if tensor.whole)
        self._whole_outputs = frozenset(tensor.name for tensor in info.outputs if tensor.whole)
        self._unseen = True
        self.seconds = 0.0

    @property
    def limit(self) -> int | None:
        """Most items a call; 1 where a tensor has no batch dimension; None: the artifact does not say."""
        return 1 if self.whole else self._limit

    @property
    def whole(self) -> frozenset[str]:
        return self._whole_inputs | self._whole_outputs

    def __call__(self, batch: Collated, parameters: Parameters) -> Arrays:
        count = batch.count
        if self.limit is not None and count > self.limit:
            raise WrongBatch(f"a batch of {count} for an artifact that takes {self.limit} at a time")
        feeds: Arrays = {
            name: array[0] if name in self._whole_inputs else self._filled(array) for name, array in batch.feeds.items()
        }
        began = time.perf_counter()
        try:
            answers = self._engine.run(feeds)
        finally:
            self.seconds += time.perf_counter() - began
        if self._unseen and count == 1:
            self._look(answers)
        rows = self._limit if self._limit is not None and not self.whole else count
        outputs = {
            name: answers[name][np.newaxis] if name in self._whole_outputs else answers[name] for name in self._names
        }
        check_rows(outputs, rows)
        return outputs if rows == count else {name: array[:count] for name, array in outputs.items()}

    def _filled(self, array: Array) -> Array:
        """Up to a fixed batch dimension, with the last row, whose answers are left out afterwards."""
        missing = (self._limit or 0) - len(array)
        return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])

    def _look(self, answers: Mapping[str, Array]) -> None:
        self._unseen = False
        expected = 1 if self._limit is None else self._limit
        seen = {name for name in self._names if not answers[name].ndim or len(answers[name]) != expected}
        self._whole_outputs = self._whole_outputs | seen

    def close(self) -> None:
        self._engine.close()


class PredictCall:
    """A handler's predict over tensors (engine python): {name: array [items, …]} -> the same for outputs."""

    stage = "predict"
    limit: int | None = None
    whole: frozenset[str] = frozenset()

    def __init__(self, spec: ModelSpec, handler: LoadedHandler) -> None:
        self._handler = handler
        self._outputs = spec.outputs
        self.seconds = 0.0

    def __call__(self, batch: Collated, parameters: Parameters) -> Arrays:
        began = time.perf_counter()
        try:
            answers = self._handler.predict(batch.feeds, parameters)
        finally:
            self.seconds += time.perf_counter() - began
        if not isinstance(answers, Mapping):
            raise OutputInvalid(f"predict must return {{name: array}}, not {type(answers).__name__}")
        return {tensor.name: self._checked(answers, tensor, batch.count) for tensor in self._outputs}

    def _checked(self, answers: Mapping[Any, Any], tensor: Tensor, count: int) -> Array:
        if tensor.name not in answers:
            raise OutputInvalid(f"predict gave no {tensor.name}; it gave {', '.join(map(str, answers)) or 'nothing'}")
        array = np.asarray(answers[tensor.name])
        check_rows({tensor.name: array}, count)
        try:
            return fitting(array, tensor, rows=count)
        except Misfit as misfit:
            raise OutputInvalid(f"predict: {misfit}") from None

    def close(self) -> None:
        pass


Call = EngineCall | PredictCall


def check_rows(outputs: Mapping[str, Array], count: int) -> None:
    """Every output must have one row an item."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != count:
            rows = len(array) if array.ndim else "no"
            raise WrongBatch(f"output {name} has {rows} rows for a batch of {count}")


def predict_json(handler: LoadedHandler, values: Sequence[Any], parameters: Parameters) -> tuple[list[Any], float]:
    """A handler's predict over JSON: an answer or an exception an item, and the seconds it took."""
    began = time.perf_counter()
    answers = handler.predict(list(values), parameters)
    return handler.checked("predict", answers, len(values)), time.perf_counter() - began
