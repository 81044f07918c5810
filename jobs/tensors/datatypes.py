"""Open Inference Protocol V2 datatypes and what they are elsewhere: numpy dtypes, item sizes, ranges.

Canonical V2 binary is little-endian, row-major, without padding; BOOL takes one byte, a BYTES element is a u32 length
and its bytes. A BYTES array in memory is an object array whose elements are ``bytes``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from jobs.models.spec import FLOATING

BYTES = "BYTES"
NON_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""How values that JSON has no number for travel, for floating datatypes only."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    BYTES: np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items() if name != BYTES}

INTEGER_RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        for name, dtype in _NUMPY.items()
        if dtype.kind in "iu" and name != BYTES
    }
)
"""Smallest and largest value of each integer datatype."""


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The dtype of arrays of this datatype (object for BYTES). ValueError names the known ones."""
    try:
        return _NUMPY[datatype]
    except KeyError:
        raise ValueError(f"unknown datatype {datatype!r}; known: {', '.join(_NUMPY)}") from None


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The V2 name of a numpy dtype; text and byte strings and objects are BYTES. ValueError for what has none."""
    if dtype.kind in "OSU":
        return BYTES
    name = _NAMES.get(dtype.newbyteorder("<"))
    if name is None:
        raise ValueError(f"numpy dtype {dtype} has no datatype here; known: {', '.join(_NUMPY)}")
    return name


def item_size(datatype: str) -> int | None:
    """Bytes of one element; None for BYTES, whose elements differ."""
    return None if datatype == BYTES else numpy_dtype(datatype).itemsize


def is_floating(datatype: str) -> bool:
    return datatype in FLOATING


def is_integer(datatype: str) -> bool:
    return datatype in INTEGER_RANGES
