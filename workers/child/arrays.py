"""Arrays that a handler made, in the datatype and shape that were declared. Nothing wraps or overflows quietly."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.models.spec import Tensor
from jobs.tensors.datatypes import FLOATS, name_of, numpy_dtype

Array = NDArray[Any]


class Misfit(Exception):
    """The text says what the value is and what it should have been."""


def fitting(value: object, tensor: Tensor, *, rows: int | None = None) -> Array:
    """`value` as `tensor` declares it; with a leading dimension of `rows` where given. Raises Misfit."""
    array = as_datatype(value, tensor.name, tensor.datatype)
    shape = array.shape if rows is None else array.shape[1:]
    fits = len(shape) == len(tensor.shape) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(tensor.shape, shape, strict=True)
    )
    if not fits or (rows is not None and not array.ndim):
        expected = ([] if rows is None else [rows]) + list(tensor.shape)
        raise Misfit(f"{tensor.name} must have the shape {_shown(expected)}, not {_shown(array.shape)}")
    return array


def as_datatype(value: object, name: str, datatype: str) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # lists of unequal lengths, mostly
        raise Misfit(f"{name} is no array: {error}") from None
    dtype = numpy_dtype(datatype)
    if array.dtype == dtype:
        return array
    if datatype == "BYTES" and array.dtype.kind in "US":
        return array.astype(object)
    refused = Misfit(f"{name} must be {datatype}, not {name_of(array.dtype) or array.dtype}")
    if datatype in FLOATS:
        if array.dtype.kind not in "iuf" and name_of(array.dtype) not in FLOATS:
            raise refused
        with np.errstate(over="ignore"):
            narrowed = array.astype(dtype)
        if not np.array_equal(finite_mask(array), finite_mask(narrowed)):
            raise Misfit(f"{name} has a number out of the range of {datatype}")
        return narrowed
    if array.dtype.kind not in "iu" or dtype.kind not in "iu":
        raise refused
    if array.size and not (np.iinfo(dtype).min <= int(array.min()) and int(array.max()) <= np.iinfo(dtype).max):
        raise Misfit(f"{name} has a number out of the range of {datatype}")
    return array.astype(dtype)


def finite_mask(array: Array) -> Array:
    if array.dtype.kind in "iub":
        return np.ones(array.shape, dtype=bool)
    return np.isfinite(array)


def finite(array: Array) -> bool:
    """Whether every number is finite; other elements always are."""
    return name_of(array.dtype) not in FLOATS or bool(np.isfinite(array).all())


def not_finite(arrays: Mapping[str, Array]) -> str | None:
    """The first array that has a number that is not finite."""
    return next((name for name, array in arrays.items() if not finite(array)), None)


def _shown(shape: object) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"  # type: ignore[call-overload]
