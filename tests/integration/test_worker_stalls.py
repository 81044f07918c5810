"""No work stands still until the publish lease is up: a reload that overtakes the intake, and a lease that lapsed."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from jobs.states import JobState
from tests.integration.yard import Yard
from tests.integration.yard_jobs import json_job
from tests.unit.repositories import python_model
from workers.held import HeldChunk

SAMPLE = "sample: [{id: 1}]\n"
HANDLER = """
NAME = {!r}
class Handler:
    def predict(self, inputs, parameters):
        return [{{"by": NAME, "id": item["id"]}} for item in inputs]
"""
SOON = 5.0  # seconds; the publish lease is 15


def test_a_chunk_that_was_routed_before_a_reload_and_taken_after_it_runs_at_once(tmp_path: Path) -> None:
    """The intake looks the runner up, the reload puts another in its place and drains it, and only then is it given
    the chunk: it refuses, which must not leave the chunk to the relay."""
    folder = python_model(tmp_path / "models", "echo", HANDLER.format("old"), extra=SAMPLE)
    with Yard(tmp_path) as yard:
        old = yard.runner("echo")
        take, drained, asked = old.take, threading.Event(), threading.Event()

        def take_late(chunks: Sequence[HeldChunk]) -> list[HeldChunk]:
            asked.set()
            assert drained.wait(20)
            return take(chunks)

        old.take = take_late  # type: ignore[method-assign]
        job = json_job("echo", [0])
        yard.submit(job)
        assert asked.wait(5)
        (folder / "1" / "handler.py").write_text(HANDLER.format("new"))
        assert yard.supervisor.reload() == {"echo@1": "ready"}
        yard.until(lambda: old.holding.draining)
        drained.set()
        began = time.monotonic()
        (ended,) = yard.wait(job)
        assert ended.state is JobState.SUCCEEDED
        assert time.monotonic() - began < SOON


def test_what_came_while_the_lease_had_lapsed_runs_once_there_is_a_new_one(tmp_path: Path) -> None:
    """As after a suspend of the machine: the rescuer was faster than the heartbeat. Claims are refused until the next
    beat (a second here), not until the publish lease of the chunks is up."""
    python_model(tmp_path / "models", "echo", HANDLER.format("one"), extra=SAMPLE)
    with Yard(tmp_path, lease=timedelta(seconds=3)) as yard:
        incarnation = yard.supervisor.heartbeat.incarnation
        yard.parts.services.ledger.post(lambda tx: tx.remove_worker(incarnation)).result(5)
        job = json_job("echo", [0])
        began = time.monotonic()
        yard.submit(job)
        yard.until(lambda: yard.supervisor.heartbeat.incarnation != incarnation)
        (ended,) = yard.wait(job)
        assert ended.state is JobState.SUCCEEDED
        assert time.monotonic() - began < SOON
