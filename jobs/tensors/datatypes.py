"""Open Inference Protocol V2 datatypes, as numpy has them."""

from typing import Any

import ml_dtypes
import numpy as np

FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
SIGNED = frozenset({"INT8", "INT16", "INT32", "INT64"})
UNSIGNED = frozenset({"UINT8", "UINT16", "UINT32", "UINT64"})
INTEGERS = SIGNED | UNSIGNED

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BYTES": np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """BYTES is an array of `bytes` objects."""
    return _NUMPY[datatype]


def name_of(dtype: np.dtype[Any]) -> str | None:
    """The V2 name; None where there is none (dates, complex numbers). Text is BYTES."""
    if dtype.kind in "US":
        return "BYTES"
    return _NAMES.get(dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype)


def bounds(datatype: str) -> tuple[int, int]:
    """Least and greatest value of an integer datatype."""
    info = np.iinfo(_NUMPY[datatype])
    return int(info.min), int(info.max)


def size_of(datatype: str) -> int | None:
    """Bytes of one element; None for BYTES."""
    return None if datatype == "BYTES" else _NUMPY[datatype].itemsize
