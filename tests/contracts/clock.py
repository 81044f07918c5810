"""A clock moved by hand."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)


@dataclass
class ManualClock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> None:
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
