"""Items of different lengths -> one padded tensor an input, and each item's part of the outputs back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.models.spec import Tensor
from jobs.tensors.datatypes import numpy_dtype
from workers.child.failures import WrongBatch
from workers.engine import Arrays

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive items of equal shapes: arrays with a leading dimension of `count`."""

    count: int
    arrays: Mapping[str, Array]
    lengths: Mapping[str, int]  # by axis


def block_of(arrays: Mapping[str, Array], inputs: Sequence[Tensor], count: int) -> Block:
    lengths: dict[str, int] = {}
    for tensor in inputs:
        for dim, length in zip(tensor.shape, arrays[tensor.name].shape[1:], strict=True):
            if isinstance(dim, str):
                lengths.setdefault(dim, length)
    return Block(count, arrays, lengths)


def collate(blocks: Sequence[Block], inputs: Sequence[Tensor]) -> Arrays:
    """All items of all blocks, padded with each input's declared value to the longest of each axis."""
    return {tensor.name: _stack(tensor, [block.arrays[tensor.name] for block in blocks]) for tensor in inputs}


def _stack(tensor: Tensor, arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) == 1:
        return np.concatenate(arrays)
    longest = tuple(map(max, zip(*shapes, strict=True)))
    total = sum(len(array) for array in arrays)
    padded = np.full((total, *longest), pad_value(tensor), dtype=numpy_dtype(tensor.datatype))
    at = 0
    for array in arrays:
        padded[(slice(at, at + len(array)), *(slice(0, size) for size in array.shape[1:]))] = array
        at += len(array)
    return padded


def pad_value(tensor: Tensor) -> Any:
    if tensor.datatype == "BYTES":
        return (tensor.pad if isinstance(tensor.pad, str) else "").encode()
    return 0 if tensor.pad is None else tensor.pad


def check_rows(outputs: Mapping[str, Array], count: int) -> None:
    """Every output must have one row an item."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != count:
            rows = len(array) if array.ndim else "no"
            raise WrongBatch(f"output {name} has {rows} rows for a batch of {count}")


def cut_back(outputs: Mapping[str, Array], declared: Mapping[str, Tensor], start: int, block: Block) -> Arrays:
    """The rows of a block, without what padding added: dimensions named by an axis get their own length again."""
    cut: Arrays = {}
    for name, array in outputs.items():
        rows = array[start : start + block.count]
        tensor = declared.get(name)
        if tensor is not None and block.lengths and rows.ndim == len(tensor.shape) + 1:
            index = [slice(None)] + [
                slice(0, block.lengths[dim]) if isinstance(dim, str) and dim in block.lengths else slice(None)
                for dim in tensor.shape
            ]
            rows = rows[tuple(index)]
        cut[name] = rows
    return cut
