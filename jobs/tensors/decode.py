"""JSON items of a tensor model -> canonical V2 binary, once, in the API; the worker reads the rows without copying.

An item is ``{"x": [64 numbers], …}``, one key an input, without the batch dimension, nested or flat row-major. Typed
decoding does the work; only an item it cannot take is looked at by ``examine``, which knows every rule and says
everything that is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from jobs.errors import Finding
from jobs.frames import Column
from jobs.models.spec import Axis, Tensor
from jobs.tensors.datatypes import BYTES, is_floating, is_integer
from jobs.tensors.elements import PACK_ERRORS, packer
from jobs.tensors.examine import Examiner, Read

Item = msgspec.Raw | bytes | memoryview
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodedItems:
    """Items in canonical V2 binary, and what a PayloadHeader needs for any [start, stop) of them.

    kind ``rows``: all items have the same shapes. ``ragged``: their shapes differ, or an input is BYTES (whose rows
    differ in bytes).
    """

    kind: str
    columns: tuple[Column, ...]
    sizes: Sequence[int]  # payload bytes of each item
    _data: tuple[bytes, ...]  # rows: one a column; ragged: one an (item, column), item by item
    _shapes: tuple[tuple[Shape, ...], ...]  # ragged: by item

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)

    def shapes(self, start: int, stop: int) -> tuple[tuple[Shape, ...], ...]:
        """``PayloadHeader.shapes`` of the items [start, stop): empty for ``rows``."""
        return self._shapes[start:stop]

    def parts(self, start: int, stop: int) -> list[bytes | memoryview]:
        """The frame's parts for the items [start, stop), as views: packing the frame is the only copy."""
        width = len(self.columns)
        if self.kind == "ragged":
            return list(self._data[start * width : stop * width])
        count = len(self.sizes)
        rows = [(memoryview(data), len(data) // count) for data in self._data]
        return [view[start * size : stop * size] for view, size in rows]


class ItemsDecoder:
    """Built once for a model version. Thread-safe: it keeps nothing between calls."""

    def __init__(self, inputs: Sequence[Tensor], axes: Mapping[str, Axis], *, max_findings: int = 100) -> None:
        """ValueError for an unknown datatype or for no inputs at all."""
        if not inputs:
            raise ValueError("a tensor model needs at least one input")
        self._inputs = tuple(inputs)
        self._max_findings = max_findings
        self._examiner = Examiner(self._inputs, axes)
        self._plans = tuple(_Plan(tensor) for tensor in self._inputs)
        self._decoders = _typed_decoders(self._inputs)
        self._quotes = None if any(t.datatype == BYTES for t in inputs) else 2 * len(self._inputs)
        self._keys = tuple(msgspec.json.encode(tensor.name) for tensor in self._inputs)
        only = self._plans[0]
        self._simple = only if len(self._plans) == 1 and only.fixed is not None and len(only.fixed) == 1 else None
        self._wire = tuple(Column(t.name, t.datatype, t.wire_shape) for t in self._inputs)
        self._bytes = any(tensor.datatype == BYTES for tensor in self._inputs)

    def decode(self, items: Sequence[Item]) -> DecodedItems | list[Finding]:
        """All items, or everything that is wrong with them (at most ``max_findings``): never raises for what a
        client sent. A finding's pointer is relative to the item (``/input/x/3``), its index the item's position."""
        done: list[Read] = []
        findings: list[Finding] = []
        for position, item in enumerate(items):
            data = item if type(item) is bytes else bytes(item)
            read = self._typed(data)
            if read is None:
                read, wrong = self._examiner.examine(data, position, self._max_findings - len(findings))
                findings.extend(wrong)
                if len(findings) >= self._max_findings:
                    break
            done.append(read)
        return findings or self._collect(done)

    def _typed(self, data: bytes) -> Read | None:
        """The quick way; None where it does not apply or something is wrong."""
        for decoder in self._decoders:
            try:
                values = decoder.decode(data)
            except (msgspec.MsgspecError, RecursionError, UnicodeError):
                continue
            if not self._keys_once(data):
                return None
            try:
                return self._pack(values)
            except PACK_ERRORS:
                return None
        return None

    def _keys_once(self, data: bytes) -> bool:
        """No key stands twice (the decoder would keep the last): told by quotes where no value is text."""
        if self._quotes is not None:
            return data.count(b'"') == self._quotes
        return b"\\" not in data and all(data.count(key) == 1 for key in self._keys)

    def _pack(self, values: Any) -> Read | None:
        if self._simple is not None:
            flat = values.f0
            plan = self._simple
            if len(flat) != plan.count:
                return None
            assert plan.fixed is not None
            return (plan.pack(flat),), (plan.fixed,)
        packed: list[bytes] = []
        shapes: list[Shape] = []
        for number, plan in enumerate(self._plans):
            laid = plan.lay(getattr(values, f"f{number}"))
            if laid is None:
                return None
            flat, shape = laid
            packed.append(plan.pack(flat))
            shapes.append(shape)
        if not self._examiner.axes_fit(shapes):
            return None
        return tuple(packed), tuple(shapes)

    def _collect(self, done: list[Read]) -> DecodedItems:
        sizes = [sum(map(len, packed)) for packed, _ in done]
        first = done[0][1] if done else tuple(plan.fixed or () for plan in self._plans)
        if not self._bytes and all(shapes == first for _, shapes in done):
            columns = tuple(Column(t.name, t.datatype, s) for t, s in zip(self._inputs, first, strict=True))
            data = tuple(b"".join(column) for column in zip(*(packed for packed, _ in done), strict=True))
            return DecodedItems("rows", columns, sizes, data or (b"",) * len(columns), ())
        parts = tuple(chain.from_iterable(packed for packed, _ in done))
        return DecodedItems("ragged", self._wire, sizes, parts, tuple(shapes for _, shapes in done))


class _Plan:
    """How the typed values of one input become bytes."""

    def __init__(self, tensor: Tensor) -> None:
        lengths = [dim for dim in tensor.shape if isinstance(dim, int) and dim >= 0]
        self.rank = len(tensor.shape)
        self.fixed: Shape | None = tuple(lengths) if len(lengths) == self.rank else None
        self.count = 1
        for length in lengths:
            self.count *= length
        self.pack = packer(tensor.datatype, self.count if self.fixed is not None else None)

    def lay(self, value: Any) -> tuple[list[Any], Shape] | None:
        """Flat values and their shape; None: not plain (look closer)."""
        if self.rank == 0:
            return [value], ()
        if self.rank > 1 and not (value and isinstance(value[0], list)):
            return (value, self.fixed) if self.fixed is not None and len(value) == self.count else None
        shape = [len(value)]
        for _ in range(self.rank - 1):
            if not value:
                return None
            width = len(value[0])
            if any(len(row) != width for row in value):
                return None
            shape.append(width)
            value = list(chain.from_iterable(value))
        laid = tuple(shape)
        return None if self.fixed is not None and laid != self.fixed else (value, laid)


def _typed_decoders(inputs: Sequence[Tensor]) -> list[msgspec.json.Decoder[Any]]:
    """One for nested values and, where some input has more than one dimension, one for flat ones."""
    depths = [[len(tensor.shape) for tensor in inputs]]
    if max(depths[0]) > 1:
        depths.append([min(depth, 1) for depth in depths[0]])
    return [msgspec.json.Decoder(_struct(inputs, nesting)) for nesting in depths]


def _struct(inputs: Sequence[Tensor], depths: Sequence[int]) -> type[msgspec.Struct]:
    fields = []
    for number, (tensor, depth) in enumerate(zip(inputs, depths, strict=True)):
        kind: Any = _element_type(tensor.datatype)
        for _ in range(depth):
            kind = list[kind]
        fields.append((f"f{number}", kind))
    names = {f"f{number}": tensor.name for number, tensor in enumerate(inputs)}
    return msgspec.defstruct("Item", fields, rename=names, forbid_unknown_fields=True, gc=False)


def _element_type(datatype: str) -> type:
    if is_floating(datatype):
        return float
    if is_integer(datatype):
        return int
    return bool if datatype == "BOOL" else str
