"""Looking into the items of a submission: strict JSON for json models, canonical rows for tensor models."""

from collections.abc import Sequence

import msgspec

from api.envelope import Item
from api.payloads import Inputs, JsonInputs
from jobs.errors import Finding
from jobs.models.catalog import ModelVersion
from jobs.models.spec import ModelSpec
from jobs.tensors.decode import DecodedItems, ItemsDecoder


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
    try:
        if len(whole):
            msgspec.json.decode(whole)
        return
    except (msgspec.MsgspecError, RecursionError):
        pass
    for index, item in enumerate(items):
        if not len(item.input):
            continue
        try:
            msgspec.json.decode(item.input)
        except RecursionError:
            found.append(Finding(_pointer(index, single), "too_deep", "Nested too deeply.", index))
        except msgspec.MsgspecError as error:
            found.append(Finding(_pointer(index, single), "json", f"{str(error).replace('`', '')}.", index))
