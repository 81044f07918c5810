"""Values -> strict JSON, always: non-finite numbers travel as "NaN", "Infinity", "-Infinity"."""

import base64
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from jobs.frames import Column
from jobs.tensors.binary import from_bytes
from jobs.tensors.datatypes import FLOATS, size_of

MAX_DEPTH = 200
_BIG = 1 << 63


def tensors_json(columns: Sequence[Column], parts: Sequence[bytes | memoryview]) -> bytes:
    """One item's outputs: ``{"y":{"shape":[10],"datatype":"FP32","data":[…]}}``, data flat, row by row."""
    return b"{" + b",".join(tensor_json(c, part) for c, part in zip(columns, parts, strict=True)) + b"}"


def tensor_json(column: Column, part: bytes | memoryview) -> bytes:
    """One member of that object."""
    head = _head(column)
    return head + data_json(from_bytes(part, column.datatype, column.shape), column.datatype) + b"}"


def rows_json(column: Column, part: memoryview, count: int) -> Callable[[int], bytes]:
    """For many rows of one shape: gives the member of row i; the text around the data is made once."""
    size = size_of(column.datatype)
    assert size is not None  # frames of kind `rows` hold no BYTES
    row_bytes = size * math.prod(column.shape)
    head = _head(column)
    if column.datatype == "FP32" and row_bytes:
        array = from_bytes(part, column.datatype, (count, row_bytes // size))

        def finite_json(row: int) -> bytes:
            data = orjson.dumps(array[row], option=orjson.OPT_SERIALIZE_NUMPY)
            # Cheaper than to ask first: what is not finite came out as null.
            return head + (data_json(array[row], column.datatype) if b"n" in data else data) + b"}"

        return finite_json
    return lambda row: (
        head
        + data_json(
            from_bytes(part[row * row_bytes : (row + 1) * row_bytes], column.datatype, (row_bytes // size,)),
            column.datatype,
        )
        + b"}"
        if row_bytes
        else head + b"[]}"
    )


@lru_cache(maxsize=1024)
def _head(column: Column) -> bytes:
    """The text of a member before its elements: the same for every answer of a model."""
    return b'%b:{"shape":%b,"datatype":"%b","data":' % (
        orjson.dumps(column.name),
        orjson.dumps(column.shape),
        column.datatype.encode(),
    )


def data_json(array: NDArray[Any], datatype: str) -> bytes:
    """The elements, flat."""
    flat = array.reshape(-1)
    if datatype == "BYTES":
        return orjson.dumps([_text(element) for element in flat])
    if datatype in FLOATS:
        if datatype in ("FP16", "BF16"):
            flat = flat.astype(np.float32)
        if not np.isfinite(flat).all():
            return orjson.dumps([_number(value) for value in flat.tolist()])
    return orjson.dumps(np.ascontiguousarray(flat), option=orjson.OPT_SERIALIZE_NUMPY)


def _text(element: bytes) -> str | dict[str, str]:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class NonFinite(ValueError):
    """A number is NaN or infinite where the model says `non_finite: fail`."""


def strict_json(value: object, *, refuse_non_finite: bool = False) -> bytes:
    """A handler's answer. TypeError names what is not JSON-able and where; NonFinite if that is refused."""
    return _dumps(_plain(value, "$", 0, refuse_non_finite) if _needs_care(value) else value)


def _needs_care(value: object) -> bool:
    """Whether orjson would change or refuse something: floats may be non-finite, numpy and large integers differ."""
    if value is None or isinstance(value, str | bool):
        return False
    if isinstance(value, int):
        return not -_BIG <= value < 2 * _BIG
    if type(value) is float:  # numpy's float64 is one too, but not for orjson
        return not math.isfinite(value)
    if type(value) is dict:
        return any(type(key) is not str or _needs_care(inner) for key, inner in value.items())
    if type(value) is list:
        return any(map(_needs_care, value))
    return True


def _digits(value: int, where: str) -> orjson.Fragment:
    """An integer beyond 64 bits, exactly."""
    try:
        return orjson.Fragment(str(value).encode())
    except ValueError as error:
        raise TypeError(f"the answer is not JSON: an integer at {where} has too many digits") from error


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise TypeError(f"the answer is not JSON: {error}") from error


def _plain(value: Any, where: str, depth: int, refuse: bool) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"the answer is nested more than {MAX_DEPTH} deep at {where[:200]}")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.generic):
        value = value.item()
        if value is None or isinstance(value, str | bool):
            return value
    if isinstance(value, float):
        if not math.isfinite(value) and refuse:
            raise NonFinite(f"{_number(value)} at {where}")
        return _number(value)
    if isinstance(value, int):
        if -_BIG <= value < 2 * _BIG:
            return value
        return _digits(value, where)
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
        return _plain(value, where, depth, refuse)
    if isinstance(value, dict):
        plain = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the answer is not JSON: the key {key!r} at {where} is no string")
            plain[str(key)] = _plain(inner, f"{where}.{key}", depth + 1, refuse)
        return plain
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{at}]", depth + 1, refuse) for at, inner in enumerate(value)]
    raise TypeError(f"the answer is not JSON: {type(value).__name__} at {where}")
