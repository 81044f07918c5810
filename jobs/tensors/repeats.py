"""Keys that stand twice inside an item. Decoders take the last and say nothing; an input given twice is refused."""

import json
from collections.abc import Sequence
from typing import Any


def repeated(data: bytes, keys: Sequence[bytes]) -> list[str]:
    """Keys that stand twice in one object of the well-formed JSON `data`, at any depth.

    `keys` are the JSON texts of those the top object should have. One that stands once in the bytes, where nothing is
    escaped, stands in no object twice; so the usual item is not parsed again.
    """
    if b"\\" not in data and b'"b64"' not in data and all(data.count(key) <= 1 for key in keys):
        return []
    found: dict[str, None] = {}

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found[key] = None
            seen.add(key)

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return list(found)
    return list(found)
