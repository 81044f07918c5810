"""Where a page of jobs ended: opaque to clients, the same for every store."""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime

from jobs.clock import from_micros, to_micros


@dataclass(frozen=True, slots=True)
class Cursor:
    created_at: datetime
    job: str

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{to_micros(self.created_at)} {self.job}".encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """None for a text that no page gave."""
        try:
            micros, job = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split(" ", 1)
            return None if "\0" in job else cls(from_micros(int(micros)), job)
        except (ValueError, OverflowError, binascii.Error):
            return None
