"""Who is asking: bearer keys, known by their SHA-256 digest alone, and what their scopes allow."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from api.problems import Problem
from jobs.cache import Cache
from jobs.clock import Clock
from jobs.records import ApiKey

CACHED = timedelta(seconds=5)
MOST_DECODED = 10_000  # keys
SCOPES = ("jobs:read", "jobs:write", "webhooks", "usage:read", "models:debug")

OPEN_PATHS = frozenset({"/openapi.json", "/docs", "/errors"})
OPEN_PREFIXES = ("/health/", "/v2/health/", "/errors/", "/v1/blobs/")


def is_open(path: str) -> bool:
    """Whether a path may be asked for without a key. Every path not named here needs one."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


class _Cached(msgspec.Struct, frozen=True, array_like=True):
    id: str
    tenant: str
    scopes: tuple[str, ...]
    expires_at: datetime | None
    until: datetime  # what was read of the key is forgotten then


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Cached)


class Authenticator:
    """Looks keys up through the cache; a key that was removed or changed stops working within CACHED.

    What the cache gave is kept here as it is, decoded, until the same moment: a client asks with one key all the time.
    """

    def __init__(self, cache: Cache, look_up: Callable[[bytes], Awaitable[ApiKey | None]], clock: Clock) -> None:
        self._cache = cache
        self._look_up = look_up
        self._clock = clock
        self._decoded: dict[bytes, tuple[ApiKey, datetime]] = {}  # by digest

    def cached(self, authorization: bytes | None) -> ApiKey | None:
        """The key if the cache has it: the usual case, without leaving the event loop."""
        digest = _digest(authorization)
        decoded = self._decoded.get(digest)
        if decoded is not None and decoded[1] > self._clock():
            return self._valid(decoded[0])
        value = self._cache.get(f"api_key:{digest.hex()}")
        if value is None:
            return None
        found = _decoder.decode(value)
        key = ApiKey(found.id, found.tenant, frozenset(found.scopes), found.expires_at)
        if len(self._decoded) >= MOST_DECODED:
            self._decoded.clear()
        self._decoded[digest] = key, found.until
        return self._valid(key)

    async def key(self, authorization: bytes | None) -> ApiKey:
        """The key of a request; Problem (401) if there is none, it is unknown or has expired."""
        found = self.cached(authorization)
        if found is not None:
            return found
        digest = _digest(authorization)
        stored = await self._look_up(digest)
        if stored is None:
            raise Problem("unauthenticated", "This key is not known.")
        until = self._clock() + CACHED
        value = _encoder.encode(_Cached(stored.id, stored.tenant, tuple(stored.scopes), stored.expires_at, until))
        self._cache.set(f"api_key:{digest.hex()}", value, CACHED)
        return self._valid(stored)

    def _valid(self, key: ApiKey) -> ApiKey:
        if key.expires_at is not None and key.expires_at <= self._clock():
            raise Problem("unauthenticated", "This key has expired.")
        return key


def require(key: ApiKey, scope: str) -> None:
    if scope not in key.scopes:
        raise Problem("forbidden", f"This needs the scope {scope}, which the key does not have.")


def is_admin(authorization: bytes | None, digest: bytes) -> bool:
    """Compares in constant time with the digest of the one admin key."""
    try:
        return hmac.compare_digest(_digest(authorization), digest)
    except Problem:
        return False


def _digest(authorization: bytes | None) -> bytes:
    if authorization is None:
        raise Problem("unauthenticated", "Send a key: Authorization: Bearer bysk_…")
    scheme, _, secret = authorization.partition(b" ")
    secret = secret.strip()
    if scheme.lower() != b"bearer" or not secret:
        raise Problem("unauthenticated", "Only the Bearer scheme is known: Authorization: Bearer bysk_…")
    return hashlib.sha256(secret).digest()
