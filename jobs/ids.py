"""Prefixed, time-sortable ids: ``job_01J…``, ``evt_…``, ``wrk_…``: a ULID (Crockford base32) behind a prefix."""

import random
import time
from functools import lru_cache

PREFIXES = frozenset({"job", "evt", "dlv", "dl", "whe", "key", "wrk", "req"})

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)  # ten bits each


def new_id(prefix: str) -> str:
    """A new id; ids made later sort after earlier ones (to the millisecond). Ids are names, not secrets.

    Two are made for each request, on the event loop. A ULID library asks the kernel for randomness, for which Python
    lets go of the interpreter; beside a busy writer thread, getting it back was the dearest step of a request.
    """
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    at, chance, two = time.time_ns() // 1_000_000, random.getrandbits(80), _PAIRS
    return (
        f"{prefix}_{_of_time(at)}{two[chance >> 70]}{two[chance >> 60 & 1023]}{two[chance >> 50 & 1023]}"
        f"{two[chance >> 40 & 1023]}{two[chance >> 30 & 1023]}{two[chance >> 20 & 1023]}"
        f"{two[chance >> 10 & 1023]}{two[chance & 1023]}"
    )


@lru_cache(maxsize=8)
def _of_time(milliseconds: int) -> str:
    """The first ten characters."""
    return "".join([_PAIRS[milliseconds >> shift & 1023] for shift in range(40, -1, -10)])
