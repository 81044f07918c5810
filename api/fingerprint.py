"""What two requests under one Idempotency-Key are compared by: the parsed request, not its spelling."""

import hashlib
import json

import msgspec

MAX_KEY = 255


def of(body: bytes) -> bytes:
    """SHA-256 over the canonical JSON of a well-formed body: keys sorted, no white space, numbers as parsed."""
    parsed = msgspec.json.decode(body)
    try:
        canonical = msgspec.json.encode(parsed, order="sorted")
    except (msgspec.MsgspecError, OverflowError, ValueError):
        # Integers beyond 64 bits: exact in Python, but not encodable above.
        canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).digest()


def key(header: bytes) -> str:
    """The key of an Idempotency-Key header, quoted (a structured-field string) or bare. ValueError: it is none."""
    text = header.decode("latin-1").strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not text:
        raise ValueError("an Idempotency-Key must not be empty")
    if len(text) > MAX_KEY:
        raise ValueError(f"an Idempotency-Key has at most {MAX_KEY} characters, this one has {len(text)}")
    if not text.isprintable() or not text.isascii():
        raise ValueError("an Idempotency-Key consists of visible ASCII characters")
    return text
