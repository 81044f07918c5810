"""What a blob's key looks like: made by us, never taken from a client, and safe in a path and in a URL."""

import re

from jobs.errors import Refused

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*(/[A-Za-z0-9_][A-Za-z0-9_.=-]*)*\Z")


def is_key(key: str) -> bool:
    return _KEY.match(key) is not None


def check(key: str) -> str:
    """The key itself; Refused for one that no store of ours makes."""
    if not is_key(key):
        raise Refused(f"blob key {key!r} is not one that this store makes")
    return key
