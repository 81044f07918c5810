"""Part one: real files through a real model, by the public API."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchyard import Client
from tests.demo.compare import Comparison
from tests.demo.files import ROOT, Packed

MODEL = "magika"
IN_FLIGHT = 4  # jobs at a time: bounds the memory of both sides


@dataclass(frozen=True, slots=True)
class Answered:
    path: Path
    digest: str
    answer: dict[str, Any]
    seconds: float  # from the submission of its job until its answer was read


class DemoFailed(Exception):
    """Something that must work did not; the text says what."""


def classify(client: Client, jobs: Iterator[Packed], on_answer: Callable[[Answered], None]) -> list[Answered]:
    """Submits the jobs, a few at a time, and gives the answers in the order of the files. ``on_answer`` is called for
    each as it comes, in the calling thread. DemoFailed for an item without an answer."""
    turns = threading.Lock()
    found: queue.SimpleQueue[tuple[int, Answered] | Exception | None] = queue.SimpleQueue()
    numbered = enumerate(jobs)

    def work() -> None:
        try:
            while True:
                with turns:
                    number, job = next(numbered, (0, None))
                if job is None:
                    return
                for answered in _one_job(client, job):
                    found.put((number, answered))
        except Exception as error:  # told to the caller, who raises it
            found.put(error)
        finally:
            found.put(None)

    # Daemons: when the caller is interrupted nobody waits for a request that still hangs.
    for _ in range(IN_FLIGHT):
        threading.Thread(target=work, daemon=True).start()
    answers: list[tuple[int, Answered]] = []
    working = IN_FLIGHT
    while working:
        got = found.get()
        if got is None:
            working -= 1
        elif isinstance(got, Exception):
            raise got
        else:
            answers.append(got)
            on_answer(got[1])
    answers.sort(key=lambda pair: pair[0])  # stable: within a job they came in order
    return [answered for _, answered in answers]


def _one_job(client: Client, packed: Packed) -> Iterator[Answered]:
    started = time.perf_counter()
    job = client.submit(MODEL, items=packed.items)
    for result in job.results():
        path = packed.paths[result.index]
        if not result.succeeded:
            raise DemoFailed(f"{path}: {result.state}: {result.error}")
        yield Answered(path, packed.digests[result.index], result.output, time.perf_counter() - started)


def compare(answers: Sequence[Answered], folder: Path) -> Comparison:
    """What the magika package itself says to the same files, asked in another process."""
    lines = folder / "answers.jsonl"
    with lines.open("w") as file:
        for answered in answers:
            # As bytes: a file's name need not be text.
            line = {"path": os.fsencode(answered.path).hex(), "digest": answered.digest, "answer": answered.answer}
            file.write(json.dumps(line) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo.compare", str(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DemoFailed(f"the comparison did not run:\n{done.stderr[-2000:]}")
    values = json.loads(done.stdout)
    return Comparison(values["files"], values["agree"], tuple(values["changed"]), tuple(values["different"]))


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the model's versions did since they were loaded, from ``GET /v1/models/{m}``."""

    batches: int
    items: int
    closed: dict[str, int]

    @property
    def average(self) -> float:
        return self.items / self.batches if self.batches else 0.0

    def since(self, earlier: "Statistics") -> "Statistics":
        closed = {why: count - earlier.closed.get(why, 0) for why, count in self.closed.items()}
        return Statistics(self.batches - earlier.batches, self.items - earlier.items, closed)


def statistics(client: Client, model: str) -> Statistics:
    stats = client.model(model).raw["stats"]
    return Statistics(stats["batches"], stats["batch_items"], dict(stats["closed"]))
