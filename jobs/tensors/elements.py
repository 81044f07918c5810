"""Elements of one tensor: packing Python values into canonical V2 binary, and saying what is wrong with one.

Packing never changes a value silently: what does not fit the datatype raises, nothing wraps, a finite number never
becomes infinite.
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jobs.tensors.datatypes import BYTES, INTEGER_RANGES, NON_FINITE, is_floating, is_integer

Packer = Callable[[Sequence[Any]], bytes]
PACK_ERRORS = (struct.error, OverflowError, ValueError, TypeError, AttributeError)
"""What a packer raises for values that do not fit its datatype."""

_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_U32 = struct.Struct("<I")
_SHOWN = 40
MAX_BYTES_ELEMENT = 2**32 - 1


def packer(datatype: str, count: int | None = None) -> Packer:
    """Packs ``count`` values (any number where None) of Python's own types: float, int, bool, or str | bytes."""
    if datatype == BYTES:
        return pack_bytes
    if datatype == "BF16":
        return _pack_bf16
    code = _CODES[datatype]
    if count is not None:
        fixed = struct.Struct(f"<{count}{code}").pack
        return lambda values: fixed(*values)
    return lambda values: struct.pack(f"<{len(values)}{code}", *values)


def pack_bytes(values: Sequence[str | bytes]) -> bytes:
    """BYTES elements: u32 length, then the bytes (text as UTF-8)."""
    pieces: list[bytes] = []
    for value in values:
        raw = value.encode() if isinstance(value, str) else value
        pieces.append(_U32.pack(len(raw)))
        pieces.append(raw)
    return b"".join(pieces)


def _pack_bf16(values: Sequence[float]) -> bytes:
    wide = np.array(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(ml_dtypes.bfloat16)
    if (np.isinf(narrow.astype(np.float32)) & np.isfinite(wide)).any():
        raise OverflowError("too large for BF16")
    return narrow.tobytes()


def read(datatype: str, value: Any) -> Any:
    """The Python value to pack for one parsed JSON element. Raises Wrong."""
    if is_floating(datatype):
        return _floating(datatype, value)
    if is_integer(datatype):
        return _integer(datatype, value)
    if datatype == "BOOL":
        if not isinstance(value, bool):
            raise Wrong("type", f"expected true or false, got {shown(value)}")
        return value
    return _bytes(value)


class Wrong(Exception):
    """An element that does not fit. ``code`` is type | range."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def _floating(datatype: str, value: Any) -> float:
    if isinstance(value, str) and value in NON_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong("type", f'expected a number, "NaN", "Infinity" or "-Infinity", got {shown(value)}')
    try:
        number = float(value)
        finite = np.isfinite(number)  # no JSON number is infinite, so an infinite one was too large for a double
        if finite:
            packer(datatype)((number,))
    except OverflowError:
        finite = False
    if not finite:
        raise Wrong("range", f"{shown(value)} is out of range for {datatype}")
    return number


def _integer(datatype: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Wrong("type", f"expected an integer, got {shown(value)}")
    low, high = INTEGER_RANGES[datatype]
    if not low <= value <= high:
        raise Wrong("range", f"{shown(value)} is out of range for {datatype} ({low} to {high})")
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Wrong("type", 'the text holds half of a surrogate pair; send its bytes as {"b64": "…"}') from None
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise Wrong("type", f"b64: not base64: {error}") from None
    raise Wrong("type", f'expected a string or {{"b64": "…"}}, got {shown(value)}')


def shown(value: Any) -> str:
    """A value as an error message shows it: short, JSON where it can be."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, float) and not np.isfinite(value):
        return "a number beyond any double"
    text = json.dumps(value, ensure_ascii=True)
    if len(text) <= _SHOWN:
        return text
    if isinstance(value, int):
        return f"an integer of {len(text)} digits or more"
    return text[: _SHOWN - 1] + "…"
