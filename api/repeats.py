"""Keys that stand twice in one object of a request. Decoders take the last and say nothing; here both are refused.

Only the envelope and the items themselves are looked at; what an input holds is the model's business.
"""

import json
import json.decoder
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from jobs.errors import Finding

if TYPE_CHECKING:
    from api.envelope import Item

_SHORTEST = len(',"id":""')
"""No repetition of an item's key costs fewer bytes than this."""
_FEWEST_QUOTES = 8
"""A request with a repeated key has at least these: around model, its name, and the key both times."""
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def find(
    body: bytes, keys: Sequence[bytes], single: msgspec.Raw, raw_items: msgspec.Raw, items: "Sequence[Item] | None"
) -> list[Finding]:
    """The repeated keys of a well-formed request. The usual request is told to have none without being scanned."""
    findings: list[Finding] = []
    outer = _without(body, b'"input"', single) if items is None else _without(body, b'"items"', raw_items)
    if outer is None or _may_repeat(outer, keys):
        findings.extend(at_top(body))
    if items is not None and _items_may_repeat(raw_items, items):
        findings.extend(_in_items(raw_items))
    return findings


def at_top(body: bytes) -> Iterator[Finding]:
    """Repeated keys of the request's own object."""
    for key in _doubles(body):
        yield Finding(f"/{escape(key)}", "duplicate_key", "This key stands in the request more than once.")


def escape(key: str) -> str:
    """A key as a step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _without(body: bytes, key: bytes, value: msgspec.Raw) -> bytes | None:
    """The body less the one large value in it, or None where that is not plain to see."""
    at = body.find(key)
    if at < 0:
        return body
    at += len(key)
    while at < len(body) and body[at] in b" \t\n\r:":
        at += 1
    end = at + len(value)
    return body[:at] + body[end:] if body[at:end] == bytes(value) else None


def _may_repeat(outer: bytes, keys: Sequence[bytes]) -> bool:
    """One-sided: False is certain. A key can only repeat if its text does; keys are plain ASCII, so the only other
    spelling is an escape of the form u00xx."""
    if outer.count(b'"') < _FEWEST_QUOTES:
        return False
    if b"\\u00" in outer:
        return True
    return any(outer.count(key) > 1 for key in keys)


def _items_may_repeat(raw: msgspec.Raw, items: "Sequence[Item]") -> bool:
    """One-sided: False is certain. Compared with the shortest text these items can have, a repeated key takes more."""
    compact = 1 + len(items) * len('{"input":},')
    for item in items:
        compact += len(item.input)
        if item.id is not None:
            compact += len(',"id":""') + len(item.id)
        if len(item.parameters):
            compact += len(',"parameters":') + len(item.parameters)
    if len(raw) - compact < _SHORTEST:
        return False
    text = bytes(raw)
    return (
        b"\\u00" in text
        or text.count(b'"input"') > len(items)
        or text.count(b'"id"') > sum(item.id is not None for item in items)
        or text.count(b'"parameters"') > sum(len(item.parameters) > 0 for item in items)
    )


def _in_items(raw: msgspec.Raw) -> Iterator[Finding]:
    for index, item in enumerate(_array_decoder.decode(raw)):
        for key in _doubles(bytes(item)):
            pointer = f"/items/{index}/{escape(key)}"
            yield Finding(pointer, "duplicate_key", "This key stands in the item more than once.", index)


def _doubles(text: bytes) -> list[str]:
    """Keys that stand more than once in the object `text` itself (not in what it holds); none where it is broken."""
    seen: set[str] = set()
    doubles: list[str] = []
    try:
        for key in _keys(text.decode()):
            if key in seen and key not in doubles:
                doubles.append(key)
            seen.add(key)
    except (RecursionError, ValueError, IndexError):
        return doubles
    return doubles


def _no_number(_text: str) -> None:
    """Numbers are skipped, not made: one of 5,000 digits costs no more than its characters."""


_skipper = json.JSONDecoder(parse_int=_no_number, parse_float=_no_number)


def _keys(text: str) -> Iterator[str]:
    """The keys of a well-formed JSON object, in order, repetitions included."""
    at = _behind_space(text, _behind_space(text, 0) + 1)
    while text[at] == '"':
        key, at = json.decoder.scanstring(text, at + 1)  # type: ignore[attr-defined]
        yield key
        at = _behind_space(text, at) + 1  # the colon
        _, at = _skipper.raw_decode(text, _behind_space(text, at))
        at = _behind_space(text, at)
        if text[at] == "}":
            return
        at = _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
