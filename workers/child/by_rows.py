"""Tensor models without pre- or postprocessing: rows in, rows out, nothing an item."""

from collections.abc import Callable, Sequence

import numpy as np

from jobs.models.spec import ModelSpec
from workers.child import answers
from workers.child.arrays import not_finite
from workers.child.calls import Call
from workers.child.collate import Block, collate, cut_back
from workers.child.failures import OutputInvalid
from workers.child.items import Opened, Piece, blocks_of, joined_rows
from workers.child.results import Results
from workers.engine import Arrays

Told = Callable[[str], None]


class RowsRunner:
    def __init__(self, spec: ModelSpec, call: Call) -> None:
        self._spec = spec
        self._call = call
        self._outputs = {tensor.name: tensor for tensor in spec.outputs}
        self._plain = all(tensor.datatype != "BYTES" for tensor in spec.outputs)

    def run(self, piece: Piece, told: Told, results: Results) -> None:
        """Raises what the call raises."""
        joined = joined_rows(piece.opened, self._spec)
        if joined is None:
            self._run_blocks(piece, told, results)
        else:
            self._run_joined(piece, joined, told, results)

    def _run_joined(self, piece: Piece, joined: Block, told: Told, results: Results) -> None:
        """Items of one shape, so there is no padding to cut off."""
        batch = collate([joined], self._spec.inputs)
        told(self._call.stage)
        outputs = self._call(batch, piece.parameters)
        plain = self._plain and not (self._spec.non_finite == "fail" and not_finite(outputs))
        made = answers.RowsFrames(outputs) if plain else None
        at = 0
        for one in piece.opened:
            stop = at + one.count
            if made is not None:
                results.answered(one.segment, made.frame(one, at, stop))
            else:
                self._answer(one, [{name: array[at:stop] for name, array in outputs.items()}], results)
            at = stop

    def _run_blocks(self, piece: Piece, told: Told, results: Results) -> None:
        by_segment = [blocks_of(one, self._spec) for one in piece.opened]
        batch = collate([block for blocks in by_segment for block in blocks], self._spec.inputs)
        told(self._call.stage)
        outputs = self._call(batch, piece.parameters)
        at = 0
        for one, blocks in zip(piece.opened, by_segment, strict=True):
            cut = []
            for block in blocks:
                cut.append(cut_back(outputs, self._outputs, at, block, batch.padded))
                at += block.count
            self._answer(one, cut, results)

    def _answer(self, one: Opened, cut: Sequence[Arrays], results: Results) -> None:
        """`cut`: the outputs of the items of `one`, in stretches of equal shapes."""
        if self._spec.non_finite == "fail" and any(map(not_finite, cut)):
            self._answer_finite(one, cut, results)
        elif len({tuple(array.shape[1:] for array in arrays.values()) for arrays in cut}) == 1:
            joined = (
                cut[0] if len(cut) == 1 else {name: np.concatenate([arrays[name] for arrays in cut]) for name in cut[0]}
            )
            results.answered(one.segment, answers.rows_frame(one, joined))
        else:
            rows = [row for arrays in cut for row in answers.rows_of(arrays)]
            results.answered(one.segment, answers.ragged_frames(one, list(zip(one.positions(), rows, strict=True))))

    def _answer_finite(self, one: Opened, cut: Sequence[Arrays], results: Results) -> None:
        kept: list[tuple[int, answers.Row]] = []
        rows = (row for arrays in cut for row in answers.rows_of(arrays))
        for position, row in zip(one.positions(), rows, strict=True):
            wrong = not_finite(row)
            if wrong is None:
                kept.append((position, row))
            else:
                error = OutputInvalid(f"output {wrong} has a number that is not finite")
                results.failed(one.segment, position, error, "postprocess")
        if kept:
            results.answered(one.segment, answers.ragged_frames(one, kept))
