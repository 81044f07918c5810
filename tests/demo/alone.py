"""A net without Batchyard: onnxruntime alone, one thread, so many rows a call. A process of its own.

``python -m tests.demo.alone NET INPUTS.npy 1,16 3`` goes over all rows 3 times with 1 and with 16 a call, in turns, and
prints one JSON object a size: the median seconds for all rows, and each answer.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 10


class AloneFailed(Exception):
    """The loop did not run; the text has its last words."""


@dataclass(frozen=True, slots=True)
class Loop:
    items: int
    seconds: float
    answers: list[list[float]]

    @property
    def rate(self) -> float:
        return self.items / self.seconds


def measure(net: Path, inputs: Path, sizes: Sequence[int], rounds: int = 1) -> list[Loop]:
    """Runs the loops in a child process, one for each number of rows a call; ``inputs`` is an .npy file with one row
    an item. Taking turns, the sizes share whatever else the machine does."""
    command = [sys.executable, "-m", "tests.demo.alone", str(net), str(inputs)]
    command += [",".join(map(str, sizes)), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AloneFailed(f"the loop without Batchyard did not run:\n{done.stderr[-2000:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [Loop(len(values["answers"]), values["seconds"], values["answers"]) for values in found]


def _run(net: str, inputs: str, sizes: Sequence[int], rounds: int) -> Iterator[dict[str, object]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(net, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    rows = np.load(inputs, allow_pickle=False)
    for size in sizes:
        for at in range(WARM_UP):
            session.run(None, {name: rows[at : at + size]})
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    answers: dict[int, object] = {}
    for _ in range(rounds):
        for size in sizes:
            started = time.perf_counter()
            found = [session.run(None, {name: rows[at : at + size]})[0] for at in range(0, len(rows), size)]
            seconds[size].append(time.perf_counter() - started)
            answers[size] = np.concatenate(found).reshape(len(rows), -1).tolist()
    for size in sizes:
        yield {"seconds": median(seconds[size]), "answers": answers[size]}


if __name__ == "__main__":
    for loop in _run(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3].split(",")], int(sys.argv[4])):
        print(json.dumps(loop))
