"""One loaded model version: takes a batch through preprocess, engine and postprocess."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobs import ranges
from jobs.frames import Column
from jobs.models.spec import ModelSpec, Tensor
from jobs.records import Ranges
from jobs.tensors.binary import to_bytes
from jobs.tensors.datatypes import numpy_dtype
from jobs.tensors.encode import strict_json, tensors_json
from workers.child import answers
from workers.child.collate import Array, Block, block_of, check_rows, collate, cut_back
from workers.child.failures import OutputInvalid, Verdict, WrongBatch, judge
from workers.child.handlers import LoadedHandler
from workers.child.items import Item, Opened, blocks_of, items_of, open_segments
from workers.engine import Arrays, Engine
from workers.wire import BatchError, Done, Failure, Run

Told = Callable[[str], None]
Outcome = Any  # an item's result of a stage, or the exception that stands for it


class Session:
    """`spec` has its inputs and outputs filled in. `batch_limit`: rows that the artifact always takes, if fixed."""

    def __init__(
        self, spec: ModelSpec, engine: Engine | None, handler: LoadedHandler | None, batch_limit: int | None = None
    ) -> None:
        self.spec = spec
        self._engine = engine
        self._handler = handler
        self._batch_limit = batch_limit
        self._outputs = {tensor.name: tensor for tensor in spec.outputs}
        self._inputs = {tensor.name: tensor for tensor in spec.inputs}
        self._engine_seconds = 0.0
        by_item = handler is not None and (handler.preprocesses or handler.postprocesses)
        self._plain_tensors = spec.input == "tensors" and not by_item

    def run(self, run: Run, parts: Sequence[memoryview], told: Told) -> tuple[Done, list[bytes]]:
        """Never raises for what a model does; the answer says what became of each item."""
        began = time.perf_counter()
        self._engine_seconds = 0.0
        stage = ["preprocess"]

        def entered(name: str) -> None:
            stage[0] = name
            told(name)

        try:
            opened = open_segments(run, parts)
            if self._plain_tensors:
                made, failures = self._run_tensors(opened, entered)
            else:
                made, failures = self._run_items(opened, entered)
        except Exception as error:
            verdict = judge(error, stage[0], self.spec.folder)
            return self._failed(run, verdict, time.perf_counter() - began), []
        out: list[bytes] = []
        numbers: list[int] = []
        for frame in made:
            numbers.append(-1 if frame is None else len(out))
            if frame is not None:
                out.append(frame)
        busy = time.perf_counter() - began
        return Done(run.id, self._engine_seconds, busy, tuple(numbers), tuple(failures)), out

    def _failed(self, run: Run, verdict: Verdict, busy: float) -> Done:
        """The call as a whole raised: of a single item it is that item's failure."""
        positions = [(number, p) for number, segment in enumerate(run.segments) for p in _flat(segment.positions)]
        if len(positions) == 1:
            failures = (_failure(*positions[0], verdict),)
            return Done(run.id, self._engine_seconds, busy, (-1,) * len(run.segments), failures)
        error = BatchError(verdict.code, verdict.message, verdict.permanent, verdict.stage, verdict.traceback)
        return Done(run.id, self._engine_seconds, busy, error=error)

    # -- tensor models without a handler of their own: rows in, rows out, nothing an item

    def _run_tensors(self, opened: Sequence[Opened], told: Told) -> tuple[list[bytes | None], list[Failure]]:
        by_segment = [list(blocks_of(one, self.spec)) for one in opened]
        blocks = [block for of_segment in by_segment for block in of_segment]
        told("predict" if self._engine is None else "run")
        outputs = self._call(collate(blocks, self.spec.inputs), sum(block.count for block in blocks), opened)
        frames: list[bytes | None] = []
        failures: list[Failure] = []
        at = 0
        for one, of_segment in zip(opened, by_segment, strict=True):
            cut = []
            for block in of_segment:
                cut.append((block, cut_back(outputs, self._outputs, at, block)))
                at += block.count
            frames.append(self._tensor_frame(one, cut, failures))
        return frames, failures

    def _tensor_frame(self, one: Opened, cut: Sequence[tuple[Block, Arrays]], failures: list[Failure]) -> bytes | None:
        if self.spec.non_finite == "fail" and not all(answers.finite(a) for _, arrays in cut for a in arrays.values()):
            rows = [{n: a[row] for n, a in arrays.items()} for block, arrays in cut for row in range(block.count)]
            return self._finite_rows(one, rows, failures)
        shapes = {tuple(array.shape[1:] for array in arrays.values()) for _, arrays in cut}
        if len(shapes) == 1:
            only = cut[0][1]
            joined = only if len(cut) == 1 else {n: np.concatenate([arrays[n] for _, arrays in cut]) for n in only}
            return answers.rows_frame(one, one.segment.positions, joined)
        rows = [{n: a[row] for n, a in arrays.items()} for block, arrays in cut for row in range(block.count)]
        return answers.ragged_frame(one, one.segment.positions, rows)

    def _finite_rows(self, one: Opened, rows: Sequence[Arrays], failures: list[Failure]) -> bytes | None:
        kept: list[tuple[int, Arrays]] = []
        for position, row in zip(one.positions(), rows, strict=True):
            wrong = next((name for name, array in row.items() if not answers.finite(array)), None)
            if wrong is None:
                kept.append((position, row))
            else:
                error = OutputInvalid(f"output {wrong} has a number that is not finite")
                failures.append(_failure(one.number, position, judge(error, "postprocess", self.spec.folder)))
        if not kept:
            return None
        return answers.ragged_frame(one, _packed(kept), [row for _, row in kept])

    def _call(self, feeds: Arrays, count: int, opened: Sequence[Opened]) -> Arrays:
        began = time.perf_counter()
        try:
            if self._engine is None:
                outputs = self._predict_tensors(feeds, opened)
            else:
                outputs = self._run_engine(feeds, count)
        finally:
            self._engine_seconds += time.perf_counter() - began
        check_rows(outputs, count)
        return outputs

    def _run_engine(self, feeds: Arrays, count: int) -> Arrays:
        assert self._engine is not None
        limit = self._batch_limit
        if limit is None or limit == count:
            return self._engine.run(feeds)
        if count > limit:
            raise WrongBatch(f"a batch of {count} for an artifact that takes {limit}")
        # Its batch dimension is fixed: filled up with the last row, whose answers are then left out.
        filled = {name: np.concatenate([a, np.repeat(a[-1:], limit - count, axis=0)]) for name, a in feeds.items()}
        outputs = self._engine.run(filled)
        check_rows(outputs, limit)
        return {name: array[:count] for name, array in outputs.items()}

    def _predict_tensors(self, feeds: Arrays, opened: Sequence[Opened]) -> Arrays:
        assert self._handler is not None
        assert self._handler.predict is not None
        parameters = items_of_first(opened, self.spec)
        outputs = self._handler.predict(feeds, parameters)
        if not isinstance(outputs, Mapping):
            raise OutputInvalid(f"predict must return {{name: array}}, not {type(outputs).__name__}")
        return {str(name): np.asarray(array) for name, array in outputs.items()}

    # -- models with a handler: item by item before and after the engine

    def _run_items(self, opened: Sequence[Opened], told: Told) -> tuple[list[bytes | None], list[Failure]]:
        items = items_of(opened, self.spec)
        results: list[Outcome] = [item.value for item in items]
        stages: list[str] = ["preprocess"] * len(items)  # where each item failed, if it did
        handler = self._handler
        if handler is not None and handler.preprocesses:
            told("preprocess")
            results = handler.preprocess(results, [item.parameters for item in items])
        alive = [at for at, result in enumerate(results) if not isinstance(result, Exception)]
        if alive:
            stage = "predict" if self._engine is None else "run"
            told(stage)
            alive = self._answer(items, alive, results, stages, stage)
        if alive and handler is not None and handler.postprocesses:
            told("postprocess")
            done = handler.postprocess([results[at] for at in alive], [items[at].parameters for at in alive])
            for at, result in zip(alive, done, strict=True):
                results[at], stages[at] = result, "postprocess"
        return self._frames(opened, items, results, stages)

    def _answer(
        self, items: Sequence[Item], alive: list[int], results: list[Outcome], stages: list[str], stage: str
    ) -> list[int]:
        """Fills in the answers of the living items; gives those still alive."""
        if self._engine is None:
            assert self._handler is not None
            assert self._handler.predict is not None
            began = time.perf_counter()
            try:
                given = self._handler.predict([results[at] for at in alive], dict(items[alive[0]].parameters))
            finally:
                self._engine_seconds += time.perf_counter() - began
            for at, answer in zip(alive, self._handler.checked("predict", given, len(alive)), strict=True):
                results[at], stages[at] = answer, stage
            return [at for at in alive if not isinstance(results[at], Exception)]
        blocks: list[Block] = []
        extras: list[Arrays] = []
        fed: list[int] = []
        for at in alive:
            try:
                block, extra = self._feed(results[at])
            except Exception as error:
                results[at] = error
                continue
            blocks.append(block)
            extras.append(extra)
            fed.append(at)
        if not fed:
            return []
        outputs = self._call(collate(blocks, self.spec.inputs), len(fed), ())
        for row, (at, block, extra) in enumerate(zip(fed, blocks, extras, strict=True)):
            own = {name: array[0] for name, array in cut_back(outputs, self._outputs, row, block).items()}
            results[at], stages[at] = {**own, **extra}, stage
        return fed

    def _feed(self, made: Any) -> tuple[Block, Arrays]:
        """What preprocess returned: the engine's inputs as a block of one, and what is only passed on."""
        if not isinstance(made, Mapping):
            raise RuntimeError(f"preprocess must return {{name: array}}, not {type(made).__name__}")
        feeds: Arrays = {}
        for name, tensor in self._inputs.items():
            if name not in made:
                raise RuntimeError(f"preprocess gave no {name}; the model takes {', '.join(self._inputs)}")
            feeds[name] = _fitting(np.asarray(made[name]), tensor)[np.newaxis]
        extra = {str(name): np.asarray(value) for name, value in made.items() if name not in self._inputs}
        return block_of(feeds, self.spec.inputs, 1), extra

    def _frames(
        self, opened: Sequence[Opened], items: Sequence[Item], results: Sequence[Outcome], stages: Sequence[str]
    ) -> tuple[list[bytes | None], list[Failure]]:
        failures: list[Failure] = []
        kept: list[list[tuple[int, Any]]] = [[] for _ in opened]
        for item, result, stage in zip(items, results, stages, strict=True):
            try:
                if isinstance(result, Exception):
                    raise result
                stage = "postprocess"
                kept[item.segment].append((item.position, self._final(result)))
            except Exception as error:
                failures.append(_failure(item.segment, item.position, judge(error, stage, self.spec.folder)))
        frames: list[bytes | None] = []
        for one, of_segment in zip(opened, kept, strict=True):
            if not of_segment:
                frames.append(None)
            elif self.spec.input == "json":
                frames.append(answers.json_frame(one, of_segment))
            else:
                frames.append(answers.ragged_frame(one, _packed(of_segment), [row for _, row in of_segment]))
        return frames, failures

    def _final(self, result: Any) -> Any:
        """JSON of a json model's answer; arrays of a tensor model's."""
        refuse = self.spec.non_finite == "fail"
        if self.spec.input == "tensors":
            if not isinstance(result, Mapping):
                raise OutputInvalid(f"a tensor model's answer must be {{name: array}}, not {type(result).__name__}")
            arrays = {str(name): np.asarray(value) for name, value in result.items()}
            for name, array in arrays.items():
                answers.datatype_of(name, array)
                if refuse and not answers.finite(array):
                    raise OutputInvalid(f"output {name} has a number that is not finite")
            return arrays
        if self._engine is not None and (self._handler is None or not self._handler.postprocesses):
            arrays = {n: np.asarray(value) for n, value in result.items() if n in self._outputs or not self._outputs}
            columns = [Column(n, answers.datatype_of(n, array), array.shape) for n, array in arrays.items()]
            return tensors_json(columns, [to_bytes(array) for array in arrays.values()])
        try:
            return strict_json(result, refuse_non_finite=refuse)
        except TypeError as error:
            raise OutputInvalid(str(error)) from None


def items_of_first(opened: Sequence[Opened], spec: ModelSpec) -> dict[str, Any]:
    """The parameters of a batch: one batch key, so those of any item."""
    first = opened[0]
    position = next(first.positions())
    one = Opened(first.number, type(first.segment)(((position, position + 1),), 0), first.header, first.parts)
    return dict(items_of([one], spec)[0].parameters)


def _fitting(array: Array, tensor: Tensor) -> Array:
    """In the input's datatype and shape; RuntimeError says what preprocess should have returned."""
    expected = "[" + ", ".join(map(str, tensor.shape)) + "]"
    if array.ndim != len(tensor.shape) or any(
        isinstance(dim, int) and dim != size for dim, size in zip(tensor.shape, array.shape, strict=False)
    ):
        raise RuntimeError(f"{tensor.name}: preprocess must give shape {expected}, not {list(array.shape)}")
    dtype = numpy_dtype(tensor.datatype)
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise RuntimeError(f"{tensor.name}: preprocess must give {tensor.datatype}, not {array.dtype}")
    return array.astype(dtype)


def _failure(segment: int, position: int, verdict: Verdict) -> Failure:
    return Failure(
        segment,
        position,
        verdict.code,
        verdict.message,
        verdict.permanent,
        verdict.stage,
        verdict.traceback,
        verdict.retry_after,
    )


def _flat(positions: Ranges) -> list[int]:
    return [position for start, stop in positions for position in range(start, stop)]


def _packed(kept: Sequence[tuple[int, Any]]) -> Ranges:
    return ranges.pack(position for position, _ in kept)
