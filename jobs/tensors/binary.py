"""Arrays and canonical V2 bytes: little-endian, row-major; BYTES elements behind a u32 length each."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.errors import Undecodable
from jobs.tensors.datatypes import name_of, numpy_dtype

_U32 = struct.Struct("<I")


def to_bytes(array: NDArray[Any]) -> bytes:
    """ValueError for an array whose elements have no V2 datatype."""
    datatype = name_of(array.dtype)
    if datatype is None:
        raise ValueError(f"dtype {array.dtype} has no tensor datatype")
    if datatype == "BYTES":
        return join_bytes([element_bytes(element) for element in array.ravel()])
    return np.ascontiguousarray(array, dtype=numpy_dtype(datatype)).tobytes()


def from_bytes(part: bytes | memoryview, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """A read-only view for every datatype but BYTES. Undecodable when the size does not fit the shape."""
    count = math.prod(shape)
    if datatype == "BYTES":
        elements = split_bytes(part)
        if len(elements) != count:
            raise Undecodable(f"{len(elements)} BYTES elements for shape {list(shape)}")
        array = np.empty(count, dtype=object)
        array[:] = elements
        return array.reshape(shape)
    dtype = numpy_dtype(datatype)
    if len(part) != count * dtype.itemsize:
        raise Undecodable(f"{len(part)} bytes for shape {list(shape)} of {datatype}")
    return np.frombuffer(part, dtype=dtype).reshape(shape)


def element_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    raise ValueError(f"a BYTES element must be bytes or str, not {type(element).__name__}")


def join_bytes(elements: Sequence[bytes]) -> bytes:
    return b"".join(piece for element in elements for piece in (_U32.pack(len(element)), element))


def split_bytes(part: bytes | memoryview) -> list[bytes]:
    view = memoryview(part)
    elements = []
    at = 0
    while at < len(view):
        if at + 4 > len(view):
            raise Undecodable("BYTES tensor is cut off")
        (size,) = _U32.unpack_from(view, at)
        at += 4
        if at + size > len(view):
            raise Undecodable("BYTES tensor is cut off")
        elements.append(bytes(view[at : at + size]))
        at += size
    return elements
