"""Is batching sound for this model? f([a, b, c]) must be f(a), f(b), f(c): also permuted, at 1, 2 and the largest size.

Run once at load, through the very code that serves. A model that fails it is served one by one, loudly.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from jobs import frames, ranges
from jobs.errors import ModelError
from jobs.frames import PayloadHeader
from jobs.models.spec import ModelSpec, Tensor
from jobs.tensors.binary import from_bytes
from jobs.tensors.datatypes import FLOATS, INTEGERS
from jobs.tensors.decode import ItemsDecoder
from workers.child.session import Session
from workers.wire import Run, Segment

TOLERANCE = 1e-4  # of the largest absolute value: kernels differ a little from one batch size to the next
_COARSE = 2e-2  # for FP16 and BF16
_SEED = 20
_LONGEST = 16  # of a seeded row's variable axis
_LARGEST = 64  # items of the largest batch that is tried

Answer = Mapping[str, Any] | Any  # {name: array} of a tensor model, a JSON value of a json model


class CallFailed(Exception):
    pass


class SelfTest:
    def __init__(self, spec: ModelSpec, session: Session) -> None:
        self._spec = spec
        self._session = session
        self._samples = list(spec.sample) or (seeded(spec) if spec.input == "tensors" else [])
        self._decoder = ItemsDecoder(spec.inputs, spec.axes) if spec.input == "tensors" else None

    def warm_up(self) -> None:
        """Runs the first sample. ModelError when the model cannot do even that."""
        if not self._samples:
            return
        try:
            self._call([0])
        except CallFailed as error:
            raise ModelError(f"{self._spec.name}/model.yaml", f"its sample cannot be run: {error}") from None

    def unsound(self) -> str | None:
        """Why items must be served one by one; None: batching is sound."""
        most = min(self._spec.batch.max_size, _LARGEST)
        if most == 1:
            return None
        if len(self._samples) < 3:
            return (
                f"model.yaml has {len(self._samples)} of the 3 samples that it takes to test that batching is sound; "
                "add some under `sample:`"
            )
        alone = []
        for at in range(3):
            try:
                alone.append(self._call([at])[0])
            except CallFailed as error:
                return f"sample {at} cannot be run: {error}"
        sizes = [[0, 1], [0, 1, 2], [2, 0, 1], [at % 3 for at in range(most)]]
        for batch in sizes:
            if len(batch) > most:
                continue
            try:
                together = self._call(batch)
            except CallFailed as error:
                return f"a batch of {len(batch)} fails: {error}"
            for place, at in enumerate(batch):
                if not same(alone[at], together[place]):
                    return f"an item's answer in a batch of {len(batch)} is not the one that it has alone"
        return None

    def _call(self, batch: Sequence[int]) -> list[Answer]:
        items = [self._samples[at] for at in batch]
        run = Run(0, (Segment(((0, len(items)),), 0),))
        done, parts = self._session.run(run, [memoryview(self._payload(items))], lambda stage: None)
        if done.error is not None:
            raise CallFailed(done.error.message)
        if done.failures:
            raise CallFailed(done.failures[0].message)
        return read_answers(parts[done.results[0]])

    def _payload(self, items: Sequence[Any]) -> bytes:
        whole = ((0, len(items)),)
        raws = [msgspec.json.encode(item) for item in items]
        if self._decoder is None:
            return frames.pack(PayloadHeader("json", whole), raws)
        decoded = self._decoder.decode(raws)
        if isinstance(decoded, list):
            found = decoded[0]
            raise ModelError(f"{self._spec.name}/model.yaml", f"sample {found.index}{found.pointer}: {found.detail}")
        header = PayloadHeader(decoded.kind, whole, columns=decoded.columns, shapes=decoded.shapes(0, len(items)))
        return frames.pack(header, decoded.parts(0, len(items)))


def read_answers(frame: bytes) -> list[Answer]:
    """The answers in a result frame, in item order."""
    answers: list[Answer] = []
    for header, parts in frames.unpack_results(frame):
        count = ranges.count(header.items)
        if header.kind == "json":
            answers += [msgspec.json.decode(part) for part in parts]
        elif header.kind == "rows":
            columns = {
                column.name: from_bytes(part, column.datatype, (count, *column.shape))
                for column, part in zip(header.columns, parts, strict=True)
            }
            answers += [{name: array[row] for name, array in columns.items()} for row in range(count)]
        else:
            width = len(header.columns)
            answers += [
                {
                    column.name: from_bytes(parts[row * width + at], column.datatype, header.shapes[row][at])
                    for at, column in enumerate(header.columns)
                }
                for row in range(count)
            ]
    return answers


def same(one: Any, other: Any) -> bool:
    """Numbers within the tolerance of the largest of them, everything else exactly."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        if one and len(one) == len(other) and all(isinstance(v, int | float) for v in (*one, *other)):
            if any(isinstance(value, float) for value in (*one, *other)):
                return _same_arrays(np.array(one, dtype=np.float64), np.array(other, dtype=np.float64))
            return one == other
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9)
    return type(one) is type(other) and bool(one == other)


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == object or one.dtype.kind in "biu":
        return bool((one == other).all())
    tolerance = TOLERANCE if one.dtype.itemsize > 2 else _COARSE
    a, b = one.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    largest = max(float(np.abs(a).max(initial=0.0)), 1e-9)
    return bool((np.abs(a - b) <= tolerance * largest).all())


def seeded(spec: ModelSpec) -> list[dict[str, Any]]:
    """Three rows of made-up values with different lengths, the same ones every time."""
    rng = np.random.default_rng(_SEED)
    rows = []
    for at in range(3):
        lengths = {
            name: min(max(axis.min, 1 + 3 * at), axis.max, max(_LONGEST, axis.min)) for name, axis in spec.axes.items()
        }
        rows.append({tensor.name: _value(tensor, lengths, rng) for tensor in spec.inputs})
    return rows


def _value(tensor: Tensor, lengths: Mapping[str, int], rng: np.random.Generator) -> Any:
    shape = tuple(lengths.get(dim, 1) if isinstance(dim, str) else dim for dim in tensor.shape)
    if tensor.mask_for is not None:
        ones: Any = np.ones(shape, dtype=np.int64)
        return ones.astype(bool).tolist() if tensor.datatype == "BOOL" else ones.tolist()
    if tensor.datatype == "BOOL":
        return (rng.random(shape) < 0.5).tolist()
    if tensor.datatype in INTEGERS:
        return rng.integers(0, 4, shape).tolist()  # small: they may be indexes into a table
    if tensor.datatype in FLOATS:
        return rng.standard_normal(shape).round(3).tolist()
    flat = [f"sample {number}" for number in range(math.prod(shape))]
    return np.array(flat, dtype=object).reshape(shape).tolist()
