"""What became of the items of one run, collected until it can be told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workers.child.failures import Verdict, judge
from workers.wire import Failure

Watch = Callable[[BaseException], None]
"""Sees every exception before it becomes a message: for running one item with the full traceback."""


@dataclass(slots=True)
class Results:
    """`frames[segment]`: result frames one after another."""

    folder: Path  # of the model
    frames: dict[int, list[bytes]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    watch: Watch | None = None

    def answered(self, segment: int, frame: bytes) -> None:
        self.frames.setdefault(segment, []).append(frame)

    def judge(self, error: BaseException, stage: str) -> Verdict:
        if self.watch is not None:
            self.watch(error)
        return judge(error, stage, self.folder)

    def failed(self, segment: int, position: int, error: BaseException, stage: str) -> None:
        verdict = self.judge(error, stage)
        self.failures.append(
            Failure(
                segment,
                position,
                verdict.code,
                verdict.message,
                verdict.permanent,
                verdict.stage,
                verdict.traceback,
                verdict.retry_after,
            )
        )

    def parts(self, segments: int) -> tuple[tuple[int, ...], Sequence[bytes]]:
        """For each segment the index of its part, or -1; and the parts."""
        numbers: list[int] = []
        parts: list[bytes] = []
        for segment in range(segments):
            own = self.frames.get(segment)
            numbers.append(len(parts) if own else -1)
            if own:
                parts.append(own[0] if len(own) == 1 else b"".join(own))
        return tuple(numbers), parts
