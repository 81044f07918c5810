"""The body of a submission as it is parsed: one strict pass for what is right, a thorough one for what is not.

Inputs and parameters stay the client's own bytes (msgspec.Raw): they are checked to be JSON and not looked into here.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api import repeats
from api.problems import Problem, one
from jobs.errors import Finding
from jobs.states import Priority

NULL = b"null"
ABSENT = Raw()
"""What a Raw field holds when the request has no such key (JSON null is Raw(b"null"))."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queue_seconds: float | None = None
    run_seconds: float | None = None
    total_seconds: float | None = None


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_attempts: int | None = None
    initial_seconds: Raw = ABSENT
    max_seconds: Raw = ABSENT
    multiplier: Raw = ABSENT
    jitter: Raw = ABSENT


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    input: Raw
    id: str | None = None
    parameters: Raw = ABSENT


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """Every field of the request; what does not exist yet is parsed too, so that it can be refused by name."""

    model: str | UnsetType = UNSET
    input: Raw = ABSENT
    items: Raw = ABSENT
    tensors: Raw = ABSENT
    ids: Raw = ABSENT
    outputs: list[str] | None = None
    priority: Priority | None = None
    parameters: Raw = ABSENT
    metadata: dict[str, str] | None = None
    not_before: str | None = None
    timeouts: Timeouts | None = None
    retry: Retry | None = None
    results_expire_after_seconds: float | None = None
    max_failed_ratio: Raw = ABSENT
    sequence_id: Raw = ABSENT
    webhook: Raw = ABSENT


FIELDS = Envelope.__struct_fields__
_KEYS = tuple(f'"{name}"'.encode() for name in FIELDS)
NOT_YET = ("tensors", "ids", "max_failed_ratio", "sequence_id", "webhook")
RETRY_NOT_YET = ("initial_seconds", "max_seconds", "multiplier", "jitter")

_decoder = msgspec.json.Decoder(Envelope)
_items_decoder = msgspec.json.Decoder(list[Item])
_item_decoder = msgspec.json.Decoder(Item)
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_array_decoder = msgspec.json.Decoder(list[Raw])
_field_decoders = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Envelope) if field.type is not Raw
}


def given(raw: Raw) -> bool:
    """Whether the key was in the request with a value other than null."""
    return len(raw) > 0 and bytes(memoryview(raw)[:4]) != NULL


@dataclass(slots=True)
class Parsed:
    """``items`` is None where the request has none that could be read; a broken item has an empty input."""

    envelope: Envelope
    items: list[Item] | None
    findings: list[Finding] = field(default_factory=list)


def parse(body: bytes, max_items: int) -> Parsed:
    """The envelope and what is wrong with its form. Raises Problem where nothing more can be said: no JSON, no
    object, or more items than the limit (413, before every other finding)."""
    try:
        if not body.isascii():
            body.decode()
        envelope = _decoder.decode(body)
        items = _items_decoder.decode(envelope.items) if len(envelope.items) else None
    except UnicodeDecodeError as error:
        raise one("", "encoding", f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
    except (msgspec.MsgspecError, RecursionError):
        return _thorough(body, max_items)
    if items is not None and len(items) > max_items:
        raise too_many(len(items), max_items)
    return Parsed(envelope, items, repeats.find(body, _KEYS, envelope.input, envelope.items, items))


def too_many(count: int, limit: int) -> Problem:
    return Problem("too_large", f"{count} items are above the limit of {limit} in one request.")


def _thorough(body: bytes, max_items: int) -> Parsed:
    """Field by field, item by item, so that one finding does not hide the next."""
    try:
        members = _object_decoder.decode(body)
    except RecursionError:
        raise one("", "too_deep", "The body is nested too deeply.") from None
    except msgspec.ValidationError:
        raise one("", "type", "The body must be a JSON object.") from None
    except msgspec.DecodeError as error:
        raise one("", "syntax", f"The body is not JSON: {error}.") from None
    findings: list[Finding] = []
    if "items" in members:
        _count_items(members["items"], max_items)
    values: dict[str, Any] = {}
    items: list[Item] | None = None
    for name, raw in members.items():
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            findings.append(
                Finding(f"/{repeats.escape(name)}", "unknown_field", f"There is no such field. Known: {known}.")
            )
        elif name == "items":
            items = _items(raw, findings)
            values["items"] = raw
        elif name in _field_decoders:
            value = _field(name, raw, findings)
            if value is not UNSET:
                values[name] = value
        else:
            values[name] = raw
    findings.extend(repeats.at_top(body))
    return Parsed(Envelope(**values), items, findings)


def _count_items(raw: Raw, max_items: int) -> None:
    try:
        count = len(_array_decoder.decode(raw))
    except (msgspec.MsgspecError, RecursionError):
        return
    if count > max_items:
        raise too_many(count, max_items)


def _field(name: str, raw: Raw, findings: list[Finding]) -> Any:
    try:
        return _field_decoders[name].decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        findings.append(_finding(f"/{name}", error))
        return UNSET


def _items(raw: Raw, findings: list[Finding]) -> list[Item] | None:
    """The items that are well formed; a broken one leaves its place (an empty input), so that indexes stay right."""
    try:
        raws = _array_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        findings.append(Finding("/items", "type", "Expected an array of items."))
        return None
    items: list[Item] = []
    for index, one_item in enumerate(raws):
        try:
            items.append(_item_decoder.decode(one_item))
        except (msgspec.MsgspecError, RecursionError) as error:
            findings.append(_finding(f"/items/{index}", error, index))
            items.append(Item(input=ABSENT))
    return items


def _finding(pointer: str, error: Exception, index: int | None = None) -> Finding:
    """A finding from a decoder's message, whose path (``- at `$.x[0]` ``) becomes the rest of the pointer."""
    if isinstance(error, RecursionError):
        return Finding(pointer, "too_deep", "Nested too deeply.", index)
    message, _, path = str(error).partition(" - at `")
    for key in path.rstrip("`").removeprefix("$").replace("[", ".").replace("]", "").split("."):
        if key and key != "...":
            pointer += f"/{key}"
    if "unknown field" in message:
        pointer += f"/{repeats.escape(message.split('`')[-2])}"
        return Finding(pointer, "unknown_field", "There is no such field.", index)
    code = "required" if "missing required" in message else "type"
    return Finding(pointer, code, message.replace("`", ""), index)
