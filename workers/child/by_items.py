"""Models with a handler: item by item before and after the one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jobs.frames import Column
from jobs.models.spec import ModelSpec
from jobs.tensors.binary import to_bytes
from jobs.tensors.encode import strict_json, tensors_json
from workers.child import answers
from workers.child.arrays import Array, Misfit, fitting, not_finite
from workers.child.calls import Call, predict_json
from workers.child.collate import Block, block_of, collate, cut_back
from workers.child.failures import BadFeed, OutputInvalid
from workers.child.handlers import LoadedHandler
from workers.child.items import Piece, values_of
from workers.child.results import Results

Told = Callable[[str], None]


class ItemsRunner:
    """`call` is None for engine python with JSON, whose handler's predict does it all."""

    def __init__(self, spec: ModelSpec, call: Call | None, handler: LoadedHandler | None) -> None:
        self._spec = spec
        self._call = call
        self._handler = handler
        self._inputs = {tensor.name: tensor for tensor in spec.inputs}
        self._outputs = {tensor.name: tensor for tensor in spec.outputs}
        self.seconds = 0.0  # of predict over JSON

    def run(self, piece: Piece, told: Told, results: Results) -> None:
        """Raises what a call for the whole batch raises; what strikes one item is its failure alone."""
        values = values_of(piece)
        stages = ["preprocess"] * len(values)  # where each value came from, or where its exception did
        handler = self._handler
        if handler is not None and handler.preprocesses:
            told("preprocess")
            values = handler.preprocess(values, piece.parameters)
        values = self._called(values, stages, piece.parameters, told)
        alive = [at for at, value in enumerate(values) if not isinstance(value, Exception)]
        if alive and handler is not None and handler.postprocesses:
            told("postprocess")
            made = handler.postprocess([values[at] for at in alive], piece.parameters)
            for at, value in zip(alive, made, strict=True):
                values[at], stages[at] = value, "postprocess"
        self._answer(piece, values, stages, results)

    def _called(self, values: Sequence[Any], stages: list[str], parameters: dict[str, Any], told: Told) -> list[Any]:
        """The values after the call; an item that has an exception already keeps it and is left out of the call."""
        after = list(values)
        alive = [at for at, value in enumerate(values) if not isinstance(value, Exception)]
        if self._call is None:
            assert self._handler is not None
            if alive:
                told("predict")
                made, seconds = predict_json(self._handler, [values[at] for at in alive], parameters)
                self.seconds += seconds
                for at, answer in zip(alive, made, strict=True):
                    after[at], stages[at] = answer, "predict"
            return after
        blocks: list[Block] = []
        extras: list[dict[str, Any]] = []
        fed: list[int] = []
        for at in alive:
            try:
                block, extra = self._block(values[at])
            except (BadFeed, ValueError) as error:
                after[at] = error
            else:
                blocks.append(block)
                extras.append(extra)
                fed.append(at)
        if not fed:
            return after
        batch = collate(blocks, self._spec.inputs)
        told(self._call.stage)
        outputs = self._call(batch, parameters)
        for row, (at, block, extra) in enumerate(zip(fed, blocks, extras, strict=True)):
            own = cut_back(outputs, self._outputs, row, block, batch.padded)
            after[at] = {**{name: np.asarray(array[0]) for name, array in own.items()}, **extra}
            stages[at] = self._call.stage
        return after

    def _block(self, made: Any) -> tuple[Block, dict[str, Any]]:
        """The engine's inputs as a block of one item, and what preprocess only wants passed on to postprocess."""
        if not isinstance(made, Mapping):
            raise BadFeed(f"preprocess must return {{name: array}}, not {type(made).__name__}")
        feeds: dict[str, Array] = {}
        try:
            for name, tensor in self._inputs.items():
                if name in made:
                    feeds[name] = fitting(made[name], tensor)[np.newaxis]
                elif tensor.mask_for is None:
                    raise Misfit(f"{name} is missing; the model takes {', '.join(self._inputs)}")
        except Misfit as misfit:
            raise BadFeed(f"preprocess: {misfit}") from None
        extra = {str(name): value for name, value in made.items() if name not in self._inputs}
        taken = extra.keys() & self._outputs.keys()
        if taken:
            raise BadFeed(f"preprocess: {min(taken)} is an output of the model; give it another name")
        return block_of(feeds, self._spec.inputs, self._spec.axes, 1), extra

    def _answer(self, piece: Piece, values: Sequence[Any], stages: Sequence[str], results: Results) -> None:
        at = 0
        for one in piece.opened:
            kept: list[tuple[int, Any]] = []
            for position in one.positions():
                value, stage = values[at], stages[at]
                at += 1
                try:
                    if isinstance(value, Exception):
                        raise value
                    kept.append((position, self._final(value)))
                except Exception as error:
                    results.failed(one.segment, position, error, stage)
            if not kept:
                continue
            json = self._spec.input == "json"
            frame = answers.json_frame(one, kept) if json else answers.ragged_frames(one, kept)
            results.answered(one.segment, frame)

    def _final(self, value: Any) -> Any:
        """JSON of a json model's answer; arrays of a tensor model's."""
        refuse = self._spec.non_finite == "fail"
        if self._spec.input == "tensors" or (self._call is not None and not self._postprocesses):
            arrays = self._arrays(value)
            wrong = not_finite(arrays) if refuse else None
            if wrong is not None:
                raise OutputInvalid(f"output {wrong} has a number that is not finite")
            if self._spec.input == "tensors":
                return arrays
            columns = [Column(name, answers.datatype_of(name, array), array.shape) for name, array in arrays.items()]
            return tensors_json(columns, [to_bytes(array) for array in arrays.values()])
        try:
            return strict_json(value, refuse_non_finite=refuse)
        except (TypeError, RecursionError) as error:
            raise OutputInvalid(str(error)) from None

    @property
    def _postprocesses(self) -> bool:
        return self._handler is not None and self._handler.postprocesses

    def _arrays(self, value: Any) -> dict[str, Array]:
        if not isinstance(value, Mapping):
            raise OutputInvalid(f"a tensor model's answer must be {{name: array}}, not {type(value).__name__}")
        names = value if self._postprocesses else self._outputs
        arrays = {str(name): np.asarray(value[name]) for name in names}
        for name, array in arrays.items():
            answers.datatype_of(name, array)
        return arrays
