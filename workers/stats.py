"""What the batches of one model version were like, since it was loaded."""

import threading
from collections import Counter

from batcher.batch import Batch
from jobs.fleet import ModelStats


class BatchStats:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = 0
        self._items = 0
        self._padded = 0
        self._elements = 0
        self._engine_seconds = 0.0
        self._closed: Counter[str] = Counter()

    def formed(self, batch: Batch) -> None:
        with self._lock:
            self._batches += 1
            self._items += batch.size
            self._padded += batch.padded_elements
            self._elements += batch.elements
            self._closed[batch.closed.value] += 1

    def ran(self, engine_seconds: float) -> None:
        with self._lock:
            self._engine_seconds += engine_seconds

    def snapshot(self) -> ModelStats:
        with self._lock:
            return ModelStats(
                self._batches, self._items, self._padded, self._elements, self._engine_seconds, dict(self._closed)
            )
