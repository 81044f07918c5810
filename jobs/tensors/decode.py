"""Items of a tensor model: JSON -> canonical rows.

Fast path: a typed decoder made once per model version, many items in one go. Whatever it does not take (nested rows,
"NaN", an error) goes item by item through `values.read`, which accepts what is allowed and finds what is not.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from jobs.errors import Finding
from jobs.frames import Column
from jobs.models.spec import Axis, Tensor
from jobs.tensors import values
from jobs.tensors.datatypes import INTEGERS, numpy_dtype
from jobs.tensors.repeats import repeated
from jobs.tensors.values import Wrong

MOST_FINDINGS = 100
_PACK = {"FP16": "e", "FP32": "f", "FP64": "d"}
"""struct's codes: it refuses what would become infinite."""

Raw = msgspec.Raw | bytes | memoryview


class DecodedItems:
    """Inputs of some items in canonical form; parts of any run of them can be had without decoding again."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        shapes: Sequence[tuple[tuple[int, ...], ...]],
        data: list[bytes],
        columns: tuple[Column, ...] | None = None,
    ) -> None:
        """`data` has one value a column: the rows of all items, one after another. `shapes[item][column]`. `columns`
        is given where every row of every item has the shape that it says."""
        self._shapes = shapes
        self._data = [memoryview(column) for column in data]
        self._sizes: list[list[int]] | None = None
        if columns is not None:
            self.kind, self.columns = "rows", columns
            return
        uniform = not shapes or all(shape == shapes[0] for shape in shapes)
        # BYTES rows differ in size, so their slices are known item by item only.
        fixed = uniform and all(tensor.datatype != "BYTES" for tensor in inputs)
        self.kind = "rows" if fixed else "ragged"
        rows = shapes[0] if fixed and shapes else tuple(tensor.wire_shape for tensor in inputs)
        self.columns = tuple(
            Column(tensor.name, tensor.datatype, tuple(shape)) for tensor, shape in zip(inputs, rows, strict=True)
        )

    def with_sizes(self, sizes: list[list[int]]) -> "DecodedItems":
        """`sizes[column][item]` in bytes: needed where rows differ."""
        self._sizes = sizes
        self._ends = [[0, *accumulate(column)] for column in sizes]
        return self

    def sizes(self) -> Sequence[int]:
        if self._sizes is not None:
            return [sum(item) for item in zip(*self._sizes, strict=True)]
        count = len(self._shapes)
        return [sum(len(column) // count for column in self._data)] * count if count else []

    def parts(self, start: int, stop: int) -> Sequence[bytes | memoryview]:
        if self.kind == "rows":
            count = max(len(self._shapes), 1)
            return [c[len(c) // count * start : len(c) // count * stop] for c in self._data]
        return [
            column[ends[item] : ends[item + 1]]
            for item in range(start, stop)
            for column, ends in zip(self._data, self._ends, strict=True)
        ]

    def shapes(self, start: int, stop: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return () if self.kind == "rows" else tuple(self._shapes[start:stop])


class ItemsDecoder:
    """Made once per model version; thread-safe."""

    def __init__(self, inputs: Sequence[Tensor], axes: Mapping[str, Axis]) -> None:
        self._inputs = tuple(inputs)
        self._axes = axes
        self._names = {tensor.name for tensor in inputs}
        self._keys = [msgspec.json.encode(tensor.name) for tensor in inputs]
        self._fast = _typed_decoder(self._inputs)
        self._fields = [attrgetter(f"f{at}") for at in range(len(self._inputs))]
        self._fixed = _fixed_columns(self._inputs)
        # Masks last: one that is left out gets its lengths from what it masks.
        self._order = sorted(range(len(self._inputs)), key=lambda at: self._inputs[at].mask_for is not None)

    def decode(self, items: Sequence[Raw]) -> DecodedItems | list[Finding]:
        """`items` are JSON objects, one an item: ``{"x": […]}``. Findings point into the item (``/x/3``)."""
        if self._fast is not None:
            decoded = self._decode_fast(items, self._fast)
            if decoded is not None:
                return decoded
        return self._decode_slow(items)

    def _decode_fast(self, items: Sequence[Raw], decoder: msgspec.json.Decoder[Any]) -> DecodedItems | None:
        joined = b"".join((b"[", b",".join(items), b"]"))
        try:
            rows = decoder.decode(joined)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        if len(rows) != len(items) or not _separate(items, joined):
            return None  # a comma in an item that is no JSON by itself
        if joined.count(b'"') != 2 * len(items) * len(self._inputs):
            return None  # a key twice (only keys have quotes here), or a mask left out
        data: list[bytes] = []
        columns: list[list[list[Any]]] = [list(map(field, rows)) for field in self._fields]
        if any(None in column for column in columns):
            return None  # a mask was left out, which the slow path makes up
        lengths = [[len(value) for value in column] for column in columns]
        for tensor, column, sizes in zip(self._inputs, columns, lengths, strict=True):
            if not self._lengths_fit(tensor, sizes):
                return None
            packed = _pack_fast(tensor.datatype, column, sum(sizes))
            if packed is None:
                return None
            data.append(packed)
        if self._fixed is not None:
            shape = tuple(column.shape for column in self._fixed)
            return DecodedItems(self._inputs, (shape,) * len(rows), data, self._fixed)
        if not self._axes_agree(lengths):
            return None
        shapes = [tuple((size,) for size in sizes) for sizes in zip(*lengths, strict=True)]
        decoded = DecodedItems(self._inputs, shapes, data)
        if decoded.kind == "ragged":
            widths = [numpy_dtype(tensor.datatype).itemsize for tensor in self._inputs]
            decoded.with_sizes([[n * width for n in sizes] for sizes, width in zip(lengths, widths, strict=True)])
        return decoded

    def _lengths_fit(self, tensor: Tensor, sizes: list[int]) -> bool:
        dim = tensor.shape[0]
        if isinstance(dim, int):
            return all(size == dim for size in sizes)
        axis = self._axes.get(dim)
        return axis is None or all(axis.min <= size <= axis.max for size in sizes)

    def _axes_agree(self, lengths: list[list[int]]) -> bool:
        seen: dict[str, list[int]] = {}
        for tensor, sizes in zip(self._inputs, lengths, strict=True):
            dim = tensor.shape[0]
            if isinstance(dim, str) and seen.setdefault(dim, sizes) != sizes:
                return False
        return True

    # -- item by item

    def _decode_slow(self, items: Sequence[Raw]) -> DecodedItems | list[Finding]:
        findings: list[Finding] = []
        shapes: list[tuple[tuple[int, ...], ...]] = []
        columns: list[list[bytes]] = [[] for _ in self._inputs]
        for index, raw in enumerate(items):
            read = self._item(raw, index, findings)
            if len(findings) >= MOST_FINDINGS:
                break
            if read is not None:
                shapes.append(tuple(shape for shape, _ in read))
                for column, (_, packed) in zip(columns, read, strict=True):
                    column.append(packed)
        if findings:
            return findings[:MOST_FINDINGS]
        decoded = DecodedItems(self._inputs, shapes, [b"".join(column) for column in columns])
        return decoded.with_sizes([[len(packed) for packed in column] for column in columns])

    def _item(self, raw: Raw, index: int, findings: list[Finding]) -> list[tuple[tuple[int, ...], bytes]] | None:
        try:
            item = msgspec.json.decode(raw)
        except RecursionError:
            findings.append(Finding("", "too_deep", "nested too deeply", index))
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            findings.append(Finding("", "json", str(error).replace("`", ""), index))
            return None
        if not isinstance(item, dict):
            findings.append(Finding("", "type", f"expected an object with {self._known()}", index))
            return None
        before = len(findings)
        top, inner = repeated(bytes(raw), self._keys)
        for name in inner:
            findings.append(Finding("", "duplicate_key", f"The key {name[:128]} stands twice in one object.", index))
        for name in top:
            findings.append(
                Finding(_pointer(name), "duplicate_key", "This key stands in the input more than once.", index)
            )
        for name in item:
            if name not in self._names:
                detail = f"no input of this model; it takes {self._known()}"
                findings.append(Finding(_pointer(name), "unknown", detail, index))
        read: dict[int, tuple[tuple[int, ...], bytes]] = {}
        lengths: dict[str, tuple[int, str]] = {}
        for at in self._order:
            tensor = self._inputs[at]
            if tensor.name not in item:
                made = _mask(tensor, lengths)
                if made is not None:
                    read[at] = made
                    continue
                findings.append(Finding(_pointer(tensor.name), "missing", f"{tensor.name} is missing", index))
                continue
            try:
                shape, packed = values.read(item[tensor.name], tensor, self._axes)
                _agree(tensor, shape, lengths)
                read[at] = (shape, packed)
            except Wrong as wrong:
                for one in (wrong, *wrong.others):
                    pointer = "/".join((_pointer(tensor.name), *map(str, one.path)))
                    findings.append(Finding(pointer, one.code, one.detail, index))
        return [read[at] for at in range(len(self._inputs))] if len(findings) == before else None

    def _known(self) -> str:
        return ", ".join(tensor.name for tensor in self._inputs)


def _pointer(name: str) -> str:
    """An input's name as a step of a JSON pointer; a client's own may be long."""
    return "/" + name[:128].replace("~", "~0").replace("/", "~1")


def _separate(items: Sequence[Raw], joined: bytes) -> bool:
    """Whether flat objects that parsed when joined are also whole one by one: none may open in one item and close in
    another. A `Raw` is JSON by itself; of bytes, each must open one object, its first byte."""
    if all(type(item) is msgspec.Raw for item in items):
        return True
    return joined.count(b"{") == len(items) and all(bytes(item).startswith(b"{") for item in items)


def _agree(tensor: Tensor, shape: tuple[int, ...], lengths: dict[str, tuple[int, str]]) -> None:
    for dim, given in zip(tensor.shape, shape, strict=True):
        if isinstance(dim, str):
            length, other = lengths.setdefault(dim, (given, tensor.name))
            if length != given:
                raise Wrong("shape", f"axis {dim} is {given} long here and {length} in {other}")


def _mask(tensor: Tensor, lengths: Mapping[str, tuple[int, str]]) -> tuple[tuple[int, ...], bytes] | None:
    """A mask that was left out: ones, as long as what it masks. None where that cannot be told."""
    if tensor.mask_for is None or any(isinstance(dim, str) and dim not in lengths for dim in tensor.shape):
        return None
    shape = tuple(lengths[dim][0] if isinstance(dim, str) else dim for dim in tensor.shape)
    return shape, np.ones(shape, dtype=numpy_dtype(tensor.datatype)).tobytes()


def _typed_decoder(inputs: Sequence[Tensor]) -> msgspec.json.Decoder[Any] | None:
    """For models whose inputs are all vectors of numbers; None for the others."""
    if not inputs or any(len(t.shape) != 1 or (t.datatype not in _PACK and t.datatype not in INTEGERS) for t in inputs):
        return None
    fields = [(f"f{at}", list[float] if tensor.datatype in _PACK else list[int]) for at, tensor in enumerate(inputs)]
    names = {f"f{at}": tensor.name for at, tensor in enumerate(inputs)}
    row = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, kw_only=True, frozen=True)
    return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]


def _fixed_columns(inputs: Sequence[Tensor]) -> tuple[Column, ...] | None:
    """The columns of every request, where no axis varies."""
    if any(tensor.datatype == "BYTES" or any(isinstance(dim, str) for dim in tensor.shape) for tensor in inputs):
        return None
    return tuple(Column(tensor.name, tensor.datatype, tensor.wire_shape) for tensor in inputs)


def _pack_fast(datatype: str, column: list[list[Any]], total: int) -> bytes | None:
    flat = column[0] if len(column) == 1 else chain.from_iterable(column)
    try:
        if datatype in _PACK:
            return struct.pack(f"<{total}{_PACK[datatype]}", *flat)  # refuses what would overflow
        return np.array(list(flat), dtype=numpy_dtype(datatype)).tobytes()
    except (OverflowError, struct.error):
        return None
