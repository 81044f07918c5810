"""The log of the local stack: stderr, one line an event."""

import logging
import sys
import threading
from datetime import UTC, datetime

NEWLINE = " ⏎ "


class OneLine(logging.Formatter):
    """``2026-11-30T17:00:00.123Z WARNING batchyard.engine: …``; a traceback is folded into its line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = f"{at} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text.replace("\r", "").replace("\n", NEWLINE)


def configure(level: str) -> None:
    """For the process that runs the stack; other libraries speak from warning on. A thread's death is an event too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in ("alembic", "sqlalchemy", "asyncio", "uvicorn"):
        logging.getLogger(library).setLevel(max(root.level, logging.WARNING))
    threading.excepthook = _thread_died


def _thread_died(died: threading.ExceptHookArgs) -> None:
    name = died.thread.name if died.thread is not None else "unknown"
    logging.getLogger("batchyard").critical("thread %s died", name, exc_info=died.exc_value)
