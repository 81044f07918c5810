"""The load generator: a lean process of its own. ``python -m tests.bench.load`` reads an Order as JSON from stdin and
prints an Outcome as JSON."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import uvloop

from tests.bench.asking import Closed, Jobs, Kept, Open, PostGet, Prepared, Waiting
from tests.bench.connection import Connection
from tests.bench.processor import GroupMeter, TreeMeter
from tests.bench.work import BY_MODEL, Work, same

ROOT = Path(__file__).resolve().parents[2]
DRAIN_SECONDS = 60.0
SHOWN = 5

Way = Literal["waiting", "post_get", "jobs", "open"]
CLOSED: dict[str, type[Closed]] = {"waiting": Waiting, "post_get": PostGet, "jobs": Jobs}


@dataclass(frozen=True, slots=True)
class Order:
    host: str
    port: int
    key: str
    model: str
    way: Way
    connections: int
    seconds: float
    most: int | None = None  # items
    rate: float = 0.0  # arrivals a second (open loop)
    job_items: int = 100
    group: str | None = None  # the control group to count and to join
    roots: tuple[int, ...] = ()  # else the processes to count


@dataclass(frozen=True, slots=True)
class Outcome:
    items: int  # asked for
    requests: int
    seconds: float  # first submit to last result read
    cpu: float  # of everything, load generator included
    load_cpu: float  # of the load generator
    wrong: int
    missing: int
    accepted_p99: float = 0.0  # seconds (open loop)
    answered_p99: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        return self.items / self.seconds


def drive(order: Order) -> Outcome:
    """Runs a load generator and waits for it. RuntimeError with its last words if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.load"],
        cwd=ROOT,
        input=json.dumps(asdict(order)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed:\n{done.stderr[-3000:]}")
    values = json.loads(done.stdout)
    return Outcome(**values | {"problems": tuple(values["problems"])})


async def _measure(order: Order, prepared: Prepared, kept: Kept) -> tuple[float, float, float]:
    """(seconds, CPU of all, CPU of this process)."""
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    for _ in range(order.connections):
        _, connection = await loop.create_connection(Connection, order.host, order.port)
        connections.append(connection)
    meter = _meter(order)
    before, own, started = meter.read(), time.process_time(), time.monotonic()
    asking: Closed | Open
    if order.way == "open":
        asking = Open(prepared, kept, order.rate, order.seconds)
    else:
        asking = CLOSED[order.way](prepared, kept, started + order.seconds, order.most)
    asking.begin(connections)
    try:
        await asyncio.wait_for(asking.done.wait(), order.seconds + DRAIN_SECONDS)
    except TimeoutError:
        kept.problems.append(f"answers were still missing {DRAIN_SECONDS:.0f} s after the last request")
    seconds = time.monotonic() - started
    own = time.process_time() - own
    cpu = meter.read() - before
    for connection in connections:
        connection.close()
    return seconds, cpu, own


def _meter(order: Order) -> GroupMeter | TreeMeter:
    found: GroupMeter | TreeMeter = TreeMeter(list(order.roots))
    if order.group is not None:
        found = GroupMeter(Path(order.group))
    found.add(os.getpid())
    return found


def _judge(work: Work, kept: Kept) -> tuple[int, int]:
    """(wrong, missing): each answer against the reference of the very item that was asked."""
    rows: list[int] = []
    answers: list[list[float]] = []
    unusable = 0
    for row, body in kept.single:
        output = orjson.loads(body)["output"]
        if output is None:
            unusable += 1
        else:
            rows.append(row)
            answers.append(output["y"]["data"])
    for asked, body in kept.lines:
        lines = [orjson.loads(line) for line in body.splitlines()]
        by_index = {line["index"]: line for line in lines}
        unusable += len(lines) - len(by_index)  # a doubled line
        for index, row in enumerate(asked):
            line = by_index.get(index)
            if line is None or line["state"] != "succeeded":
                unusable += 1
            else:
                rows.append(row)
                answers.append(line["output"]["y"]["data"])
    missing = max(0, kept.asked - len(rows))
    if not rows:
        return 0, missing
    right = work.answers()[rows]
    good = same(np.array(answers, np.float64).reshape(right.shape), right)
    return int((~good).sum()), max(missing, unusable)


def _p99(values: list[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0


def main() -> None:
    order = Order(**json.load(sys.stdin))
    work = BY_MODEL[order.model]
    kept = Kept()
    prepared = Prepared.of(work, order.key, order.job_items)
    gc.disable()  # nothing here is cyclic, and everything is kept
    seconds, cpu, own = uvloop.run(_measure(order, prepared, kept))
    wrong, missing = _judge(work, kept)
    outcome: dict[str, Any] = asdict(
        Outcome(
            items=kept.asked,
            requests=kept.requests,
            seconds=seconds,
            cpu=cpu,
            load_cpu=own,
            wrong=wrong,
            missing=missing,
            accepted_p99=_p99(kept.accepted),
            answered_p99=_p99(kept.answered),
            problems=tuple(kept.problems[:SHOWN]),
        )
    )
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
