"""Looking into the items of a submission: strict JSON for json models, rows for tensor models."""

from collections.abc import Sequence

import msgspec

from api.envelope import Envelope, Item
from api.payloads import Inputs, JsonInputs
from jobs.errors import Finding
from jobs.models.catalog import ModelVersion


def inputs(
    version: ModelVersion | None, items: Sequence[Item], asked: Envelope, findings: list[Finding]
) -> Inputs | None:
    """The decoded inputs; None (and findings, but for a model that was never loaded) where they cannot be had."""
    if version is not None and version.spec.input == "tensors":
        if not version.described:
            return None
        return None  # tensors
    _strict(items, asked, findings)
    if version is None or not version.described:
        return None
    return JsonInputs([item.input for item in items])


def _strict(items: Sequence[Item], asked: Envelope, findings: list[Finding]) -> None:
    """Every input is JSON that any reader takes: no number out of range, no depth that a reader would choke on."""
    whole = asked.items if len(asked.items) else asked.input
    try:
        if len(whole):
            msgspec.json.decode(whole)
        return
    except (msgspec.MsgspecError, RecursionError):
        pass
    for index, item in enumerate(items):
        if not len(item.input):
            continue  # broken already in its form, and found there
        pointer = f"/items/{index}/input" if len(asked.items) else "/input"
        try:
            msgspec.json.decode(item.input)
        except RecursionError:
            findings.append(Finding(pointer, "too_deep", "Nested too deeply.", index))
        except msgspec.MsgspecError as error:
            findings.append(Finding(pointer, "json", f"{str(error).replace('`', '')}.", index))
