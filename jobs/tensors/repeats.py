"""Keys that stand twice inside an item. Decoders take the last and say nothing; an input given twice is refused."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any


def repeated(data: bytes, keys: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Keys that stand twice in one object of the well-formed JSON `data`: in the top one, and in those inside it.

    `keys` are the JSON texts of those the top object should have. One that stands once in the bytes, where nothing is
    escaped, stands in no object twice; so the usual item is not parsed again.
    """
    if b"\\" not in data and b'"b64"' not in data and all(data.count(key) <= 1 for key in keys):
        return [], []
    doubles: list[list[str]] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        count = Counter(key for key, _ in pairs)
        doubles.append([key for key, times in count.items() if times > 1])

    try:
        json.loads(data, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return [], []  # no item that is well-formed to the one reader and not to the other is of a model's shape
    *inner, top = doubles  # the outermost object ends last
    return top, list(dict.fromkeys(chain.from_iterable(inner)))
