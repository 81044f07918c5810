"""One loaded model version: takes a batch through preprocess, the call and postprocess."""

import time
from collections.abc import Callable, Sequence

from jobs.models.spec import ModelSpec
from workers.child.by_items import ItemsRunner
from workers.child.by_rows import RowsRunner
from workers.child.calls import Call
from workers.child.failures import Verdict
from workers.child.handlers import LoadedHandler
from workers.child.items import open_run, pieces
from workers.child.results import Results, Watch
from workers.wire import BatchError, Done, Run

Told = Callable[[str], None]


class Session:
    """`spec` has its inputs and outputs filled in; `call` is None for engine python with JSON."""

    def __init__(self, spec: ModelSpec, call: Call | None, handler: LoadedHandler | None) -> None:
        self.spec = spec
        self.max_size = spec.batch.max_size
        """Most items of one call; a batch above it is run in several."""
        self.watch: Watch | None = None
        self._call = call
        processes = handler is not None and (handler.preprocesses or handler.postprocesses)
        self._items = ItemsRunner(spec, call, handler)
        self._rows = RowsRunner(spec, call) if call is not None and spec.input == "tensors" and not processes else None

    def run(self, run: Run, parts: Sequence[memoryview], told: Told) -> tuple[Done, Sequence[bytes]]:
        """Never raises for what a model does; the answer says what became of each item. `told` hears each stage once,
        when it begins."""
        began = time.perf_counter()
        engine_before = self._engine_seconds()
        stages: list[str] = []

        def entered(stage: str) -> None:
            if stage not in stages:
                told(stage)
            stages.append(stage)

        results = Results(self.spec.folder, watch=self.watch)
        error = self._through(run, parts, entered, stages, results)
        engine = self._engine_seconds() - engine_before
        busy = time.perf_counter() - began
        if error is not None:
            return Done(run.id, engine, busy, error=error), ()
        numbers, out = results.parts(len(run.segments))
        return Done(run.id, engine, busy, numbers, tuple(results.failures)), out

    def _through(
        self, run: Run, parts: Sequence[memoryview], entered: Told, stages: list[str], results: Results
    ) -> BatchError | None:
        """A call that raised is its only item's failure, or else the whole batch's error: nobody knows whose it was."""
        for piece in pieces(open_run(run, parts), self.spec, self.max_size):
            try:
                (self._rows or self._items).run(piece, entered, results)
            except Exception as error:
                stage = stages[-1] if stages else "preprocess"
                if piece.count > 1:
                    return _batch_error(results.judge(error, stage))
                results.failed(*next(piece.where()), error, stage)
        return None

    def _engine_seconds(self) -> float:
        return self._items.seconds if self._call is None else self._call.seconds

    def close(self) -> None:
        if self._call is not None:
            self._call.close()


def _batch_error(verdict: Verdict) -> BatchError:
    return BatchError(verdict.code, verdict.message, verdict.permanent, verdict.stage, verdict.traceback)
