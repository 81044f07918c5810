"""One input's JSON value -> canonical bytes, checked element by element. The slow path, which finds everything."""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jobs.models.spec import Axis, Tensor
from jobs.tensors.binary import join_bytes
from jobs.tensors.datatypes import FLOATS, INTEGERS, bounds, numpy_dtype

NAMED_ELEMENTS = 5
"""How many wrong elements of one tensor are named; of the others there is one count."""
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class Wrong(Exception):
    """What is wrong with a value: `path` of indexes inside it, a code, and the words."""

    code: str
    detail: str
    path: tuple[int, ...] = ()
    others: tuple["Wrong", ...] = ()  # further wrong elements of the same tensor


def show(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def read(value: object, tensor: Tensor, axes: Mapping[str, Axis]) -> tuple[tuple[int, ...], bytes]:
    """The shape and the canonical bytes of one item's input; raises Wrong."""
    elements, nested = _flatten(value)
    shape = _shape(nested, len(elements), tensor, axes)
    return shape, _pack(elements, nested, tensor.datatype)


def _flatten(value: object) -> tuple[list[Any], tuple[int, ...]]:
    """The elements row by row, and the shape as nested; Wrong where rows differ in length."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], list):
        size = len(level[0])
        for row in level:
            if not isinstance(row, list) or len(row) != size:
                raise Wrong("shape", "rows differ in length or depth")
        shape.append(size)
        level = [element for row in level for element in row]
        if len(shape) > 32:
            raise Wrong("shape", "nested more than 32 deep")
    if any(isinstance(element, list) for element in level):
        raise Wrong("shape", "rows differ in length or depth")
    return level, tuple(shape)


def _shape(nested: tuple[int, ...], count: int, tensor: Tensor, axes: Mapping[str, Axis]) -> tuple[int, ...]:
    declared = tensor.shape
    shape = nested
    if len(nested) == 1 and len(declared) != 1:
        shape = _unflatten(count, declared) or nested  # given flat, row by row
    if len(shape) != len(declared) or any(
        isinstance(dim, int) and dim != given for dim, given in zip(declared, shape, strict=False)
    ):
        raise Wrong("shape", f"expected {show(declared)}, got {show(nested) if nested else 'a single value'}")
    for dim, given in zip(declared, shape, strict=True):
        axis = axes.get(dim) if isinstance(dim, str) else None
        if axis is not None and not axis.min <= given <= axis.max:
            raise Wrong("shape", f"axis {dim} must be {axis.min} to {axis.max} long, got {given}")
    return shape


def _unflatten(count: int, declared: tuple[int | str, ...]) -> tuple[int, ...] | None:
    fixed = math.prod(dim for dim in declared if isinstance(dim, int))
    variable = [dim for dim in declared if isinstance(dim, str)]
    if not variable:
        return tuple(dim for dim in declared if isinstance(dim, int)) if fixed == count else None
    if len(variable) > 1 or fixed == 0 or count % fixed:
        return None
    return tuple(dim if isinstance(dim, int) else count // fixed for dim in declared)


def _pack(elements: list[Any], nested: tuple[int, ...], datatype: str) -> bytes:
    if not _all_fit(elements, datatype):
        wrong = [(at, problem) for at, element in enumerate(elements) if (problem := _problem(element, datatype))]
        if wrong:
            raise _first([(at, code, detail) for at, (code, detail) in wrong], nested)
    if datatype == "BYTES":
        return join_bytes([_bytes_of(element) for element in elements])
    dtype = numpy_dtype(datatype)
    if datatype not in FLOATS:
        return np.array(elements, dtype=dtype).tobytes()
    numbers = np.array([NON_FINITE[e] if isinstance(e, str) else e for e in elements], dtype=np.float64)
    with np.errstate(over="ignore"):
        narrowed = numbers.astype(dtype)
    lost = np.isfinite(numbers) & ~np.isfinite(narrowed)
    if lost.any():
        beyond = [(int(at), "range", f"{elements[at]!r} is out of range for {datatype}") for at in np.flatnonzero(lost)]
        raise _first(beyond, nested)
    return narrowed.tobytes()


def _all_fit(elements: list[Any], datatype: str) -> bool:
    """Whether that can be told without looking at each: all are of the very type, integers within the range."""
    kinds = set(map(type, elements))
    if datatype in FLOATS:
        return kinds == {float}
    if datatype in INTEGERS and kinds == {int}:
        least, most = bounds(datatype)
        return bool(least <= min(elements) and max(elements) <= most)
    return datatype == "BOOL" and kinds == {bool}


def _first(wrong: list[tuple[int, str, str]], nested: tuple[int, ...]) -> Wrong:
    """The first wrong element, with the next ones and the count of the rest."""
    named = [Wrong(code, detail, _path(at, nested)) for at, code, detail in wrong[:NAMED_ELEMENTS]]
    if len(wrong) > NAMED_ELEMENTS:
        named.append(Wrong(wrong[NAMED_ELEMENTS][1], f"{len(wrong) - NAMED_ELEMENTS} more elements are wrong"))
    return replace(named[0], others=tuple(named[1:]))


def _problem(element: object, datatype: str) -> tuple[str, str] | None:
    if datatype == "BYTES":
        if isinstance(element, str) or (isinstance(element, dict) and _base64(element) is not None):
            return None
        return "type", f'expected a string or {{"b64": …}}, got {_kind(element)}'
    if datatype == "BOOL":
        return None if isinstance(element, bool) else ("type", f"expected true or false, got {_kind(element)}")
    if isinstance(element, bool):
        return "type", f"expected a number ({datatype}), got {_kind(element)}"
    if datatype in INTEGERS:
        if not isinstance(element, int):
            return "type", f"expected a whole number ({datatype}), got {_kind(element)}"
        least, most = bounds(datatype)
        return None if least <= element <= most else ("range", f"out of range for {datatype} ({least} to {most})")
    if isinstance(element, str) and element in NON_FINITE:
        return None
    if isinstance(element, int) and abs(element) > 1 << 1023:
        return "range", f"out of range for {datatype}"
    return (
        None if isinstance(element, int | float) else ("type", f"expected a number ({datatype}), got {_kind(element)}")
    )


def _base64(element: dict[Any, Any]) -> bytes | None:
    text = element.get("b64")
    if len(element) != 1 or not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None


def _bytes_of(element: Any) -> bytes:
    if isinstance(element, str):
        return element.encode()
    decoded = _base64(element)
    assert decoded is not None  # checked by _problem
    return decoded


def _path(position: int, nested: tuple[int, ...]) -> tuple[int, ...]:
    path: list[int] = []
    for size in reversed(nested):
        position, at = divmod(position, size)
        path.append(at)
    return tuple(reversed(path))


def _kind(element: object) -> str:
    if element is None:
        return "null"
    if isinstance(element, bool):
        return "true or false"
    if isinstance(element, str):
        return f"the string {element[:40]!r}"
    if isinstance(element, int | float):
        return f"the number {str(element)[:40]}"
    return "an object" if isinstance(element, dict) else type(element).__name__
