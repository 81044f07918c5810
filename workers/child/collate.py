"""Items of different lengths -> one padded tensor an input, and each item's part of the outputs back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.models.spec import Axis, Tensor
from jobs.tensors.datatypes import numpy_dtype
from workers.child.arrays import Array
from workers.child.failures import WrongBatch
from workers.engine import Arrays


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive items of equal shapes: arrays with a leading dimension of `count`."""

    count: int
    arrays: Mapping[str, Array]
    lengths: Mapping[str, int]  # by axis


@dataclass(frozen=True, slots=True)
class Collated:
    """The tensors of a batch and the length that each axis was padded to."""

    count: int
    feeds: Arrays
    padded: Mapping[str, int]


def block_of(arrays: Mapping[str, Array], inputs: Sequence[Tensor], axes: Mapping[str, Axis], count: int) -> Block:
    """Masks that were left out are made: all real. ValueError when an input is missing or lengths do not agree."""
    complete = dict(arrays)
    lengths: dict[str, int] = {}
    for tensor in inputs:
        array = complete.get(tensor.name)
        if array is None:
            array = complete[tensor.name] = _mask(tensor, arrays, count)
        for dim, length in zip(tensor.shape, array.shape[1:], strict=True):
            if isinstance(dim, str) and lengths.setdefault(dim, length) != length:
                raise ValueError(
                    f"{tensor.name}: axis {dim} is {length} long here, and {lengths[dim]} in another input"
                )
    for name, length in lengths.items():
        axis = axes.get(name)
        if axis is not None and not axis.min <= length <= axis.max:
            raise ValueError(f"axis {name} is {length} long; this model takes {axis.min} to {axis.max}")
    return Block(count, complete, lengths)


def _mask(tensor: Tensor, arrays: Mapping[str, Array], count: int) -> Array:
    target = arrays.get(tensor.mask_for or "")
    if target is None:
        raise ValueError(f"input {tensor.name} is missing")
    shape = (count, *target.shape[1 : 1 + len(tensor.shape)])
    return np.ones(shape, dtype=numpy_dtype(tensor.datatype))


def collate(blocks: Sequence[Block], inputs: Sequence[Tensor]) -> Collated:
    """All items of all blocks, padded with each input's declared value to the longest of each axis."""
    feeds = {tensor.name: _stack(tensor, [block.arrays[tensor.name] for block in blocks]) for tensor in inputs}
    padded: dict[str, int] = {}
    for block in blocks:
        for axis, length in block.lengths.items():
            padded[axis] = max(length, padded.get(axis, 0))
    return Collated(sum(block.count for block in blocks), feeds, padded)


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
    if isinstance(tensor.pad, str):
        return float(tensor.pad)  # "NaN", "Infinity", "-Infinity"
    return 0 if tensor.pad is None else tensor.pad


def cut_back(
    outputs: Mapping[str, Array], declared: Mapping[str, Tensor], start: int, block: Block, padded: Mapping[str, int]
) -> Arrays:
    """The rows of a block, without what padding added: dimensions named by an axis get their own length again."""
    rows = {name: array[start : start + block.count] for name, array in outputs.items()}
    if block.lengths == padded:
        return rows
    for name, array in rows.items():
        tensor = declared.get(name)
        if tensor is None:
            continue
        index = [slice(None)]
        for at, dim in enumerate(tensor.shape, 1):
            own = block.lengths.get(dim) if isinstance(dim, str) else None
            if own is None or own == padded[str(dim)]:
                index.append(slice(None))
            elif at < array.ndim and array.shape[at] == padded[str(dim)]:
                index.append(slice(0, own))
            else:
                raise WrongBatch(
                    f"output {name} should be {padded[str(dim)]} long in {dim}, as its inputs are, and has the shape "
                    f"{list(array.shape)}; what padding added cannot be cut off"
                )
        rows[name] = array[tuple(index)]
    return rows
