"""Looking into the items of a submission: strict JSON for json models, canonical rows for tensor models."""

import math
import re
from collections.abc import Sequence

import msgspec

from api.envelope import Item
from api.payloads import Inputs, JsonInputs
from jobs.errors import Finding
from jobs.models.catalog import ModelVersion
from jobs.models.spec import ModelSpec
from jobs.tensors.decode import DecodedItems, ItemsDecoder

DECODED_AT_ONCE = 64 * 1024
DECODED_WHOLE = 1024 * 1024
"""Values up to this are checked by decoding them; a larger one might take many times its size as objects."""
MAX_DIGITS = 4300
"""Of a number: what Python itself would still read."""
_SUSPECTS = re.compile(rb'"(?:[^"\\]|\\.)*+"|([0-9]{300,}(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]{3,})')
"""Strings, to be passed over, and numbers that may be out of range."""


class InputsDecoder:
    """Keeps one typed decoder for each tensor model version, as it was last described. Thread-safe."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str], tuple[ModelSpec, ItemsDecoder]] = {}

    def decode(
        self,
        version: ModelVersion | None,
        items: Sequence[Item],
        whole: msgspec.Raw,
        single: bool,
        found: list[Finding],
    ) -> Inputs | None:
        """The decoded inputs; None where `found` says why, or where the model was never loaded.

        `whole` is the JSON that holds all of `items`. An item with an empty input was broken in its form and is not
        looked at again.
        """
        if version is None or version.spec.input != "tensors":
            _check_json(items, whole, single, found)
            return JsonInputs([item.input for item in items]) if version is not None and version.described else None
        if not version.described:
            return None
        whole_items = [index for index, item in enumerate(items) if len(item.input)]
        if not whole_items:
            return None
        decoded = self._decoder(version.spec).decode([items[index].input for index in whole_items])
        if isinstance(decoded, DecodedItems):
            return decoded
        for finding in decoded:
            index = whole_items[finding.index or 0]
            pointer = f"{_pointer(index, single)}{finding.pointer}"
            found.append(Finding(pointer, finding.code, finding.detail, index))
        return None

    def _decoder(self, spec: ModelSpec) -> ItemsDecoder:
        kept = self._decoders.get(spec.key)
        if kept is not None and (kept[0] is spec or (kept[0].inputs == spec.inputs and kept[0].axes == spec.axes)):
            return kept[1]
        decoder = ItemsDecoder(spec.inputs, spec.axes)
        self._decoders[spec.key] = (spec, decoder)
        return decoder


def _pointer(index: int, single: bool) -> str:
    return "/input" if single else f"/items/{index}/input"


def _check_json(items: Sequence[Item], whole: msgspec.Raw, single: bool, found: list[Finding]) -> None:
    """Every input is JSON that any reader takes: no number out of range, no depth that a reader would choke on."""
    if len(whole) <= DECODED_AT_ONCE and _wrong(whole) is None:
        return
    for index, item in enumerate(items):
        # An empty one was broken in its form already, and found there.
        wrong = _wrong(item.input) if len(item.input) else None
        if wrong is not None:
            found.append(Finding(_pointer(index, single), *wrong, index))


def _wrong(raw: msgspec.Raw) -> tuple[str, str] | None:
    """What is wrong with a value whose syntax was seen to be right: code and detail, or None."""
    try:
        if len(raw) <= DECODED_WHOLE:
            msgspec.json.decode(raw)
        elif any(_out_of_range(match[1]) for match in _SUSPECTS.finditer(raw) if match[1]):
            return "json", "Number out of range."
    except RecursionError:
        return "too_deep", "Nested too deeply."
    except msgspec.MsgspecError as error:
        return "json", f"{str(error).replace('`', '')}."
    return None


def _out_of_range(number: bytes) -> bool:
    return len(number) > MAX_DIGITS or (not number.isdigit() and math.isinf(float(number)))
