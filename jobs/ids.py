"""Prefixed, time-sortable ids: ``job_01J…``, ``evt_…``, ``wrk_…``: a ULID (Crockford base32) behind a prefix."""

import random
import time

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
    value = (time.time_ns() // 1_000_000) << 80 | random.getrandbits(80)
    return f"{prefix}_" + "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])
