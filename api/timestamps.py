"""Times on the wire: RFC 3339 with a zone in, UTC with milliseconds and ``Z`` out."""

import re
from datetime import UTC, datetime

_FORM = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


def show(at: datetime) -> str:
    """``2026-11-30T17:00:00.000Z`` (the datetime is aware and in UTC)."""
    return at.isoformat(timespec="milliseconds")[:23] + "Z"


def show_or_none(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")[:23] + "Z"


def read(text: str) -> datetime:
    """The instant in UTC. ValueError says what is wrong; a time without zone is never guessed."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError("expected a time like 2026-11-30T17:00:00Z or 2026-11-30T17:00:00+01:00")
    date, clock, fraction, zone = match.groups()
    if zone is None:
        raise ValueError("a time needs its zone: end it with Z or an offset like +01:00")
    zone = "+00:00" if zone in "Zz" else zone
    try:
        return datetime.fromisoformat(f"{date}T{clock}.{(fraction or '0')[:6]:0<6}{zone}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no such time: {error}") from None
