"""Where the time comes from. Injected everywhere, so that tests move it by hand."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]
"""Returns the current time, aware, in UTC."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def system_clock() -> datetime:
    return datetime.now(UTC)


def to_micros(at: datetime) -> int:
    """Microseconds since the epoch: the form times have inside SQLite and in stream records."""
    return (at - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
