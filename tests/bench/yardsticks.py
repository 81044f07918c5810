"""What the machine can do without a service: onnxruntime alone, and with each item's JSON read and written.

``python -m tests.bench.yardsticks mlp encoder`` takes one short reading of each and prints them as JSON lines.
"""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.work import BY_MODEL, Work

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.6
LEAST = 5


@dataclass(frozen=True, slots=True)
class Reading:
    name: str  # "mlp raw", "mlp json", "encoder raw"
    rate: float  # items a second
    cpu: float  # CPU seconds an item


@dataclass
class Yardsticks:
    """Readings taken before, between and after the service's; the medians count."""

    models: tuple[str, ...]
    readings: dict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))

    def take(self) -> None:
        """One more reading of each, in a process of its own."""
        command = [sys.executable, "-m", "tests.bench.yardsticks", *self.models]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            reading = Reading(**json.loads(line))
            self.readings[reading.name].append(reading)

    def complete(self) -> None:
        """Takes what is missing to five."""
        while min((len(found) for found in self.readings.values()), default=0) < LEAST:
            self.take()

    def rate(self, name: str) -> float:
        return median(reading.rate for reading in self.readings[name])

    def cpu(self, name: str) -> float:
        return median(reading.cpu for reading in self.readings[name])


def _raw(work: Work) -> Callable[[], int]:
    """One pass over all rows in full batches."""
    session = work.session()
    batches = [work.inputs[at : at + work.max_batch] for at in range(0, work.rows, work.max_batch)]

    def run() -> int:
        for batch in batches:
            session.run(["y"], {work.input: batch})
        return work.rows

    return run


def _json(work: Work) -> Callable[[], int]:
    """The same with each item decoded and each answer encoded by the standard library."""
    session = work.session()
    kind = work.inputs.dtype
    batches = [work.texts[at : at + work.max_batch] for at in range(0, work.rows, work.max_batch)]

    def run() -> int:
        for batch in batches:
            rows = np.array([json.loads(text)[work.input] for text in batch], kind)
            (answers,) = session.run(["y"], {work.input: rows})
            for answer in answers:
                json.dumps({"y": answer.tolist()})
        return work.rows

    return run


def _read(name: str, run: Callable[[], int]) -> Reading:
    run()  # warm-up
    items, started, cpu = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < SECONDS or not items:
        items += run()
    return Reading(name, items / elapsed, (time.process_time() - cpu) / items)


def main(models: list[str]) -> None:
    for model in models:
        work = BY_MODEL[model]
        ways = {"raw": _raw, "json": _json} if model == "mlp" else {"raw": _raw}
        for way, make in ways.items():
            reading = _read(f"{model} {way}", make(work))
            print(json.dumps({"name": reading.name, "rate": reading.rate, "cpu": reading.cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])
