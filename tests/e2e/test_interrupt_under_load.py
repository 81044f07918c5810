"""Ctrl-C while batches run: they end, the rest goes back uncharged, and the next start finishes it."""

import collections
import json
from pathlib import Path

from batchyard import Client, Item
from tests.e2e.stack import LocalStack
from tests.unit.repositories import python_model

SECONDS = 40.0
ITEMS = 200
COUNTED = """
import json, time
class Handler:
    def predict(self, inputs, parameters):
        with open(CALLS, "a") as calls:
            calls.write(json.dumps(inputs) + "\\n")
        time.sleep(0.01 * len(inputs))
        return [-i for i in inputs]
"""


def test_ctrl_c_finishes_what_runs_and_hands_back_the_rest(tmp_path: Path, data: Path) -> None:
    calls = tmp_path / "calls"
    extra = "batch: {max_size: 8}\nsample: [-1, -2, -3]\n"
    python_model(tmp_path / "models", "counted", f"CALLS = {str(calls)!r}\n{COUNTED}", extra=extra)
    with LocalStack(data=data, models=tmp_path / "models") as stack:
        with Client(stack.url, stack.key) as client:
            jobs = [client.submit("counted", items=[Item(n) for n in range(ITEMS)]) for _ in range(2)]
            next(jobs[0].results())
        assert stack.interrupt() == 0, stack.log
        assert stack.wait_gone() == []
        assert "Traceback" not in stack.log
        stack.restart()
        with Client(stack.url, stack.key) as client:
            left = [client.get(job.id) for job in jobs]
            assert not all(job.final for job in left), "nothing was left to hand back"
            for job in jobs:
                final = client.wait(job.id, SECONDS)
                assert final.state == "succeeded"
                lines = list(final.results())
                assert [line.output for line in lines] == [-n for n in range(ITEMS)]
                assert {line.attempts for line in lines} == {1}
    ran = collections.Counter(item for line in calls.read_text().splitlines() for item in json.loads(line) if item >= 0)
    assert ran == {n: len(jobs) for n in range(ITEMS)}, "an item ran twice"
