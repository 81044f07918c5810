"""Is batching sound for this model? f([a, b, c]) must be f(a), f(b), f(c): also permuted, at 1, 2 and the largest size.

Run once at load, through the very code that serves. A model that fails it is served one by one, loudly.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jobs.errors import ModelError
from jobs.models.spec import ModelSpec, Tensor
from jobs.tensors.datatypes import FLOATS, INTEGERS
from workers.child.calling import Answer, Caller, CallFailed, RefusedItem
from workers.child.failures import WrongBatch
from workers.child.session import Session

TOLERANCE = 1e-5  # of the largest absolute value: kernels round a little differently from one batch size to the next
COARSE = {"float16": 4e-3, "bfloat16": 3e-2}  # a few steps of theirs
_SEED = 20
_LONGEST = 16  # of a seeded row's variable axis
_HIGHEST = (100, 2)  # bounds of seeded integers: they may be indexes into a table, so smaller ones are tried next


class SelfTest:
    """Of one session, whose first call this makes."""

    def __init__(self, spec: ModelSpec, session: Session) -> None:
        self._spec = spec
        self._caller = Caller(session)
        self._items: Sequence[Any] = spec.sample
        self.answer: Answer | None = None
        """What the first item gave."""

    def warm_up(self) -> str | None:
        """Runs every item alone. ModelError when a sample of the author's cannot be run; why there is no knowing
        whether batching is sound when it is made-up rows that cannot, or when there is nothing to run."""
        if self._spec.sample:
            self._alone = [self._sample(at) for at in range(len(self._items))]
        elif self._spec.input == "tensors":
            failed = self._seeded()
            if failed is not None:
                return f"made-up rows cannot be run ({failed}); put three items under `sample:` in model.yaml"
        else:
            return "model.yaml has no sample; three under `sample:` would show whether batching is sound"
        self.answer = self._alone[0]
        return None

    def _sample(self, at: int) -> Answer:
        try:
            return self._caller.answers([self._items[at]])[0]
        except (CallFailed, RefusedItem) as error:
            raise ModelError(f"{self._spec.name}/model.yaml", f"sample {at} cannot be run: {error}") from None

    def _seeded(self) -> str | None:
        for highest in _HIGHEST:
            self._items = seeded(self._spec, highest)
            try:
                self._alone = [self._caller.answers([item])[0] for item in self._items]
                return None
            except (CallFailed, RefusedItem) as error:
                failed = str(error)
        return failed

    def unsound(self, most: int) -> str | None:
        """Why items must be served one by one; None: batches of up to `most` are sound. After `warm_up`."""
        if len(self._items) < 3:
            return f"model.yaml has {len(self._items)} of the three samples that show whether batching is sound"
        for batch in _batches(len(self._items), most):
            size = len(batch)
            try:
                together = self._caller.answers([self._items[at] for at in batch])
            except (CallFailed, WrongBatch) as error:
                return f"a batch of {size} fails: {error}"
            for at, answer in zip(batch, together, strict=True):
                if not same(self._alone[at], answer):
                    return f"an item in a batch of {size} is not answered as it is alone"
        return None


def _batches(items: int, most: int) -> Iterator[list[int]]:
    """Which items go together, by index: pairs and triples in more than one order, and the largest batch."""
    for batch in ([0, 1], [1, 0], [0, 1, 2], [2, 0, 1]):
        if len(batch) <= most:
            yield batch
    if most > 3:
        yield [at % items for at in reversed(range(most))]


def same(one: Any, other: Any) -> bool:
    """Numbers with a fraction within the tolerance of the largest of them, everything else exactly."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return False
        if _numbers(one) and _numbers(other) and any(isinstance(value, float) for value in (*one, *other)):
            return _same_arrays(np.array(one, dtype=np.float64), np.array(other, dtype=np.float64))
        return all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return _numbers((one, other)) and math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _same_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "Obiu":
        return bool((one == other).all())
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    a, b = a[finite], b[finite]
    largest = float(np.abs(a).max(initial=0.0))
    return bool((np.abs(a - b) <= COARSE.get(one.dtype.name, TOLERANCE) * largest).all())


def seeded(spec: ModelSpec, highest: int) -> list[dict[str, Any]]:
    """Three made-up rows of different lengths, the same ones every time; integers below `highest`."""
    rng = np.random.default_rng(_SEED)
    rows = []
    for at in range(3):
        lengths = {
            name: min(max(axis.min, 2 + 3 * at), axis.max, max(_LONGEST, axis.min)) for name, axis in spec.axes.items()
        }
        # Masks are made where they are left out.
        given = [tensor for tensor in spec.inputs if tensor.mask_for is None]
        rows.append({tensor.name: _value(tensor, lengths, rng, highest) for tensor in given})
    return rows


def _value(tensor: Tensor, lengths: Mapping[str, int], rng: np.random.Generator, highest: int) -> Any:
    shape = tuple(lengths[dim] if isinstance(dim, str) else dim for dim in tensor.shape)
    if tensor.datatype == "BOOL":
        return (rng.random(shape) < 0.5).tolist()
    if tensor.datatype in INTEGERS:
        return rng.integers(0, highest, shape).tolist()
    if tensor.datatype in FLOATS:
        return rng.standard_normal(shape).round(3).tolist()
    words = np.array([f"sample {number}" for number in rng.integers(0, 1000, math.prod(shape))], dtype=object)
    return words.reshape(shape).tolist()
