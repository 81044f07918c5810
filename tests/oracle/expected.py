"""The reference of each json test model: what it must answer for an input, alone or in any company."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    output: Any

    def matches(self, output: Any) -> bool:
        return bool(output == self.output)


@dataclass(frozen=True, slots=True)
class Failure:
    code: str  # of the item's error


UNCHANGED = frozenset({"echo", "slow", "raise_if", "exit_if", "hang_if", "nan_if", "need_memory", "poison"})
FAILURES = {
    ("raise_if", 666): Failure("handler_error"),
    ("exit_if", 667): Failure("process_died"),
    ("hang_if", 668): Failure("run_timeout"),
    ("poison", 666): Failure("handler_error"),
    ("poison", 667): Failure("process_died"),
    ("poison", 668): Failure("run_timeout"),
}
NOT_A_NUMBER = frozenset({("nan_if", 669), ("poison", 669)})


def expected(model: str, given: Mapping[str, Any]) -> Answer | Failure:
    """ValueError for a model that has no reference here."""
    if model == "sum":
        return Answer({"id": given["id"], "value": sum(given["values"])})
    if model not in UNCHANGED:
        raise ValueError(f"no reference for model {model!r}")
    value = given["value"]
    trigger = (model, value) if isinstance(value, int) else None
    if trigger in FAILURES:
        return FAILURES[trigger]
    return Answer({"id": given["id"], "value": "NaN" if trigger in NOT_A_NUMBER else value})
