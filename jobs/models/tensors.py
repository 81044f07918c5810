"""The ``inputs``, ``outputs`` and ``axes`` of model.yaml."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.models.document import Node
from jobs.models.section import Section, WrongValue, choice, entries, text, whole
from jobs.models.spec import DATATYPES, FLOATING, UNBOUNDED, Axis, Tensor

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
_RANGES = {
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Declared:
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    axes: Mapping[str, Axis] = field(default_factory=dict)


def read(top: Section, *, plain_json: bool) -> Declared:
    """``plain_json``: the model answers JSON from JSON with no tensor between, so none may be declared."""
    axes = _axes(top)
    inputs = _tensors(top, "inputs", axes, is_input=True)
    outputs = _tensors(top, "outputs", axes, is_input=False)
    if plain_json:
        for key, given in (("inputs", inputs), ("outputs", outputs), ("axes", axes)):
            if given:
                top.report(key, "is not used by engine python with `input: json`; remove it")
    return Declared(inputs, outputs, axes)


def _axes(top: Section) -> dict[str, Axis]:
    section = top.section("axes")
    axes = {}
    for name in section.names():
        if not _AXIS.match(name):
            section.report(name, "is no name for an axis; use letters, digits and _")
        inner = section.section(name)
        least = inner.take("min", whole(0), 1)
        most = inner.take("max", whole(0), UNBOUNDED)
        if least > most:
            inner.report("min", f"is {least}, above max {most}")
        inner.done()
        axes[name] = Axis(least, most)
    return axes


def _tensors(top: Section, key: str, axes: Mapping[str, Axis], *, is_input: bool) -> tuple[Tensor, ...]:
    section = top.section(key)
    tensors = {}
    for name in section.names():
        inner = section.section(name)
        datatype = inner.need("datatype", choice(*sorted(DATATYPES)), "FP32", "one of the V2 names, such as FP32")
        shape = inner.need("shape", lambda node: _shape(node, axes), (), "write it without the batch dimension")
        pad = inner.take("pad", lambda node, of=datatype: _pad(node, of), None) if is_input else None  # type: ignore[misc]
        mask_for = inner.take("mask_for", text, None) if is_input else None
        inner.done()
        tensors[name] = Tensor(name, datatype, shape, pad, mask_for)
    for tensor in tensors.values():
        if tensor.mask_for is not None:
            _check_mask(section, tensor, tensors)
    return tuple(tensors.values())


def _shape(node: Node, axes: Mapping[str, Axis]) -> tuple[int | str, ...]:
    shape: list[int | str] = []
    for entry in entries(node):
        if isinstance(entry.value, str):
            if entry.value not in axes:
                raise WrongValue(
                    f"names axis {entry.value!r}; declare it: `axes: {{{entry.value}: {{min: 1, max: …}}}}`"
                )
            shape.append(entry.value)
        elif entry.value == -1:
            raise WrongValue("has -1; give the dimension a name and declare it under `axes`")
        else:
            shape.append(whole(0)(entry))
    return tuple(shape)


def _pad(node: Node, datatype: str) -> float | int | bool | str:
    value = node.value
    if datatype == "BOOL":
        right = isinstance(value, bool)
    elif datatype == "BYTES":
        right = isinstance(value, str)
    elif isinstance(value, bool):
        right = False
    elif datatype in FLOATING:
        right = isinstance(value, (int, float)) or value in ("NaN", "Infinity", "-Infinity")
    else:
        least, most = _RANGES[datatype]
        right = isinstance(value, int) and least <= value <= most
    if not right:
        raise WrongValue(f"must be a value of {datatype}, not {value!r}")
    result: float | int | bool | str = value
    return result


def _check_mask(section: Section, mask: Tensor, tensors: Mapping[str, Tensor]) -> None:
    target = tensors.get(mask.mask_for or "")
    if target is None or target is mask:
        section.report(mask.name, f"masks {mask.mask_for!r}, which is no other input; there is {', '.join(tensors)}")
    elif mask.shape != target.shape[: len(mask.shape)]:
        section.report(mask.name, f"masks {target.name!r}, so its shape must be {list(target.shape)} or its first part")
    elif mask.datatype == "BYTES":
        section.report(mask.name, "is a mask, so it cannot be BYTES")
