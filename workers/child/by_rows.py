"""Tensor models without pre- or postprocessing: rows in, rows out, nothing an item."""

from collections.abc import Callable, Sequence

import numpy as np

from jobs.models.spec import ModelSpec
from workers.child import answers
from workers.child.arrays import not_finite
from workers.child.calls import Call
from workers.child.collate import Block, collate, cut_back
from workers.child.failures import OutputInvalid
from workers.child.items import Opened, Piece, blocks_of
from workers.child.results import Results
from workers.engine import Arrays


class RowsRunner:
    def __init__(self, spec: ModelSpec, call: Call) -> None:
        self._spec = spec
        self._call = call
        self._outputs = {tensor.name: tensor for tensor in spec.outputs}

    def run(self, piece: Piece, told: Callable[[str], None], results: Results) -> None:
        """Raises what the call raises."""
        by_segment = [blocks_of(one, self._spec) for one in piece.opened]
        batch = collate([block for blocks in by_segment for block in blocks], self._spec.inputs)
        told(self._call.stage)
        outputs = self._call(batch, piece.parameters)
        at = 0
        for one, blocks in zip(piece.opened, by_segment, strict=True):
            cut = []
            for block in blocks:
                cut.append((block, cut_back(outputs, self._outputs, at, block, batch.padded)))
                at += block.count
            self._answer(one, cut, results)

    def _answer(self, one: Opened, cut: Sequence[tuple[Block, Arrays]], results: Results) -> None:
        if self._spec.non_finite == "fail" and any(not_finite(arrays) for _, arrays in cut):
            self._answer_finite(one, cut, results)
            return
        if len(cut) == 1:
            results.answered(one.segment, answers.rows_frame(one, cut[0][1]))
            return
        shapes = {tuple(array.shape[1:] for array in arrays.values()) for _, arrays in cut}
        if len(shapes) == 1:
            joined = {name: np.concatenate([arrays[name] for _, arrays in cut]) for name in cut[0][1]}
            results.answered(one.segment, answers.rows_frame(one, joined))
        else:
            rows = [row for _, arrays in cut for row in answers.rows_of(arrays)]
            results.answered(one.segment, answers.ragged_frames(one, list(zip(one.positions(), rows, strict=True))))

    def _answer_finite(self, one: Opened, cut: Sequence[tuple[Block, Arrays]], results: Results) -> None:
        kept: list[tuple[int, answers.Row]] = []
        rows = (row for _, arrays in cut for row in answers.rows_of(arrays))
        for position, row in zip(one.positions(), rows, strict=True):
            wrong = not_finite(row)
            if wrong is None:
                kept.append((position, row))
            else:
                error = OutputInvalid(f"output {wrong} has a number that is not finite")
                results.failed(one.segment, position, error, "postprocess")
        if kept:
            results.answered(one.segment, answers.ragged_frames(one, kept))
