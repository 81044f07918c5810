"""One JSON item looked at closely: every rule, every finding. Slower than typed decoding, so only for what that refuses.

Rules: strict JSON in UTF-8, no key twice, all inputs and no others, shapes nested or flat row-major, variable axes
within their limits and equal wherever their name stands, elements exact (see elements.py).
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

from jobs.errors import Finding
from jobs.models.spec import Axis, Tensor
from jobs.tensors.elements import Packer, Wrong, packer, read, shown

Read = tuple[tuple[bytes, ...], tuple[tuple[int, ...], ...]]
"""Packed bytes and shape of each input of one item, in the order of the model's inputs."""

_ELEMENTS_NAMED = 5
_MOST_DIGITS = 400


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys stood twice."""

    twice: tuple[str, ...] = ()


class Examiner:
    """Built once for a model version; thread-safe."""

    def __init__(self, inputs: Sequence[Tensor], axes: Mapping[str, Axis]) -> None:
        self._inputs = tuple(inputs)
        self._by_name = {tensor.name: tensor for tensor in self._inputs}
        self._axes = dict(axes)
        self._packers: tuple[Packer, ...] = tuple(packer(tensor.datatype) for tensor in self._inputs)
        self._variable = tuple(
            (number, at, dim)
            for number, tensor in enumerate(self._inputs)
            for at, dim in enumerate(tensor.shape)
            if isinstance(dim, str)
        )

    def axes_fit(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every named axis is within its limits and has one length in all inputs."""
        lengths: dict[str, int] = {}
        for number, at, name in self._variable:
            length = shapes[number][at]
            if lengths.setdefault(name, length) != length:
                return False
        return all(name not in self._axes or _within(self._axes[name], n) for name, n in lengths.items())

    def examine(self, data: bytes, index: int, room: int) -> tuple[Read, list[Finding]]:
        """What the item holds, or up to ``room`` findings (the first value is then meaningless)."""
        say = _Findings(index, room)
        item = _parse(data, say)
        if say.found:
            return ((), ()), say.found
        if not isinstance(item, _Object):
            names = ", ".join(self._by_name)
            say("/input", "type", f"expected an object with the inputs {names}, got {shown(item)}")
            return ((), ()), say.found
        self._names(item, say)
        packed: list[bytes] = []
        shapes: list[tuple[int, ...]] = []
        lengths: dict[str, tuple[int, str]] = {}
        for number, tensor in enumerate(self._inputs):
            if tensor.name not in item:
                continue
            laid = self._lay(tensor, item[tensor.name], lengths, say)
            if laid is None:
                continue
            flat, given, shape = laid
            packed.append(self._elements(number, flat, given, say))
            shapes.append(shape)
        return (tuple(packed), tuple(shapes)), say.found

    def _names(self, item: _Object, say: "_Findings") -> None:
        for name in item.twice:
            say(_pointer(name), "json", "the key stands twice in this object")
        for name in item:
            if name not in self._by_name:
                say(_pointer(name), "unknown", f"no such input; known: {', '.join(self._by_name)}")
        for tensor in self._inputs:
            if tensor.name not in item:
                say(_pointer(tensor.name), "missing", f"missing: expected {tensor.datatype} {_shape(tensor.shape)}")

    def _lay(
        self, tensor: Tensor, value: Any, lengths: dict[str, tuple[int, str]], say: "_Findings"
    ) -> tuple[list[Any], tuple[int, ...], tuple[int, ...]] | None:
        """Flat elements, the dimensions they were given in and the tensor's shape."""
        pointer, expected = _pointer(tensor.name), self._expected(tensor)
        if not isinstance(value, list):
            if not tensor.shape:
                return [value], (), ()
            say(pointer, "type", f"expected {expected} of {tensor.datatype}, got {shown(value)}")
            return None
        flat, given, odd = _flatten(value)
        if odd is not None:
            detail = "a value beside lists" if odd[1] else "a list whose length differs from its neighbours'"
            say(f"{pointer}{_steps(odd[0])}", "shape", f"expected {expected}, got {detail} here")
            return None
        shape = _shape_from(tensor.shape, given, len(flat))
        if isinstance(shape, str) or shape is None:
            say(pointer, "shape", f"expected {expected}, got {_shape(given)}" + (f": {shape}" if shape else ""))
            return None
        return (flat, given, shape) if self._axes_allow(tensor, shape, lengths, say) else None

    def _axes_allow(
        self, tensor: Tensor, shape: tuple[int, ...], lengths: dict[str, tuple[int, str]], say: "_Findings"
    ) -> bool:
        allowed = True
        for dim, length in zip(tensor.shape, shape, strict=True):
            if not isinstance(dim, str):
                continue
            axis = self._axes.get(dim)
            if axis is not None and not _within(axis, length):
                say(_pointer(tensor.name), "shape", f"expected {self._expected(tensor)}, got {_shape(shape)}")
                return False
            seen, where = lengths.setdefault(dim, (length, tensor.name))
            if seen != length:
                detail = f"{dim} is {length} here and {seen} in {where}: one name is one length"
                say(_pointer(tensor.name), "shape", f"expected {_shape(tensor.shape)}, got {_shape(shape)}; {detail}")
                allowed = False
        return allowed

    def _elements(self, number: int, flat: list[Any], given: tuple[int, ...], say: "_Findings") -> bytes:
        tensor, values, wrong = self._inputs[number], [], 0
        for at, element in enumerate(flat):
            try:
                values.append(read(tensor.datatype, element))
            except Wrong as why:
                wrong += 1
                if wrong <= _ELEMENTS_NAMED:
                    say(f"{_pointer(tensor.name)}{_steps(_unravel(at, given))}", why.code, why.detail)
                else:
                    code = why.code
        if wrong > _ELEMENTS_NAMED:
            say(_pointer(tensor.name), code, f"{wrong - _ELEMENTS_NAMED} more elements are wrong")
        return b"" if wrong else self._packers[number](values)

    def _expected(self, tensor: Tensor) -> str:
        limits = [
            f"{dim} from {self._axes[dim].min} to {self._axes[dim].max}"
            for dim in dict.fromkeys(tensor.shape)
            if isinstance(dim, str) and dim in self._axes
        ]
        return _shape(tensor.shape) + (f" with {', '.join(limits)}" if limits else "")


class _Findings:
    """Collects findings about one item while there is room."""

    def __init__(self, index: int, room: int) -> None:
        self.found: list[Finding] = []
        self._index = index
        self._room = room

    def __call__(self, pointer: str, code: str, detail: str) -> None:
        if len(self.found) < self._room:
            self.found.append(Finding(pointer, code, detail, self._index))


def _parse(data: bytes, say: _Findings) -> Any:
    try:
        return json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_whole)
    except UnicodeDecodeError as error:
        say("/input", "json", f"not UTF-8 at byte {error.start}")
    except RecursionError:
        say("/input", "json", "nested too deeply")
    except ValueError as error:
        say("/input", "json", f"not JSON: {error}")
    return None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        made.twice = tuple(dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is no JSON number; for floating datatypes write the string "{name}"')


def _whole(text: str) -> int:
    """Exact; beyond any datatype's range the digits no longer matter (and would cost quadratic time)."""
    if len(text) <= _MOST_DIGITS:
        return int(text)
    beyond: int = 10**_MOST_DIGITS
    return -beyond if text[0] == "-" else beyond


def _flatten(value: list[Any]) -> tuple[list[Any], tuple[int, ...], tuple[tuple[int, ...], bool] | None]:
    """Elements and dimensions of nested lists; where they are irregular, the first odd place and whether a value
    stands there among lists."""
    given = [len(value)]
    level = value
    while any(isinstance(entry, list) for entry in level):
        width = next(len(entry) for entry in level if isinstance(entry, list))
        for at, entry in enumerate(level):
            if not isinstance(entry, list) or len(entry) != width:
                return [], tuple(given), (_unravel(at, tuple(given)), not isinstance(entry, list))
        level = list(chain.from_iterable(level))
        given.append(width)
    return level, tuple(given), None


def _shape_from(declared: Sequence[int | str], given: tuple[int, ...], count: int) -> tuple[int, ...] | str | None:
    """The shape if the given dimensions fit the declared ones (nested, or flat by their product); else None, or why."""
    known = [dim if isinstance(dim, int) and dim >= 0 else None for dim in declared]
    if len(given) == len(declared) and all(
        want is None or want == have for want, have in zip(known, given, strict=True)
    ):
        return given
    if len(given) != 1:
        return None
    fixed = prod(dim for dim in known if dim is not None)
    free = known.count(None)
    if free > 1:
        return "a flat list does not tell the lengths of more than one axis, nest it"
    if free == 0:
        return tuple(dim for dim in known if dim is not None) if fixed == count else None
    if (fixed == 0 and count) or (fixed and count % fixed):
        return None
    return tuple(count // fixed if dim is None and fixed else dim or 0 for dim in known)


def _within(axis: Axis, length: int) -> bool:
    return axis.min <= length <= axis.max


def _unravel(at: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    steps: list[int] = []
    for dim in reversed(dims):
        at, step = divmod(at, dim) if dim else (0, 0)
        steps.append(step)
    return tuple(reversed(steps))


def _steps(indexes: tuple[int, ...]) -> str:
    return "".join(f"/{index}" for index in indexes)


def _pointer(name: str) -> str:
    return "/input/" + name.replace("~", "~0").replace("/", "~1")


def _shape(dims: Sequence[int | str]) -> str:
    return f"[{','.join(map(str, dims))}]"
