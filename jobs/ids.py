"""Prefixed, time-sortable ids: ``job_01J…``, ``evt_…``, ``wrk_…``."""

from ulid import ULID

PREFIXES = frozenset({"job", "evt", "dlv", "dl", "whe", "key", "wrk", "req"})


def new_id(prefix: str) -> str:
    """A new id; ids made later sort after earlier ones (to the millisecond)."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    return f"{prefix}_{ULID()}"
