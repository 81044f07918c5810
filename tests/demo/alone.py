"""A net without Batchyard: onnxruntime alone, one thread, so many rows a call. A process of its own.

``python -m tests.demo.alone NET INPUTS.npy BATCH`` prints one JSON object: seconds for all rows, and each answer.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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


def measure(net: Path, inputs: Path, batch: int) -> Loop:
    """Runs the loop in a child process; ``inputs`` is an .npy file with one row an item."""
    command = [sys.executable, "-m", "tests.demo.alone", str(net), str(inputs), str(batch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AloneFailed(f"the loop without Batchyard did not run:\n{done.stderr[-2000:]}")
    values = json.loads(done.stdout)
    return Loop(len(values["answers"]), values["seconds"], values["answers"])


def _run(net: str, inputs: str, batch: int) -> dict[str, object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(net, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    rows = np.load(inputs, allow_pickle=False)
    groups = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    for group in groups[:WARM_UP]:
        session.run(None, {name: group})
    started = time.perf_counter()
    answers = [session.run(None, {name: group})[0] for group in groups]
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "answers": np.concatenate(answers).reshape(len(rows), -1).tolist()}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
