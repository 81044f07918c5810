"""``kill -9`` of the front process and of engine children, at random and at every crash point on the path.

One client posts 500 jobs all the while, repeating each under its idempotency key until it is acknowledged. At the end
nothing is lost, doubled, swapped or reopened.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.chaos.campaign import Campaign, plan
from tests.e2e.stack import MODELS, LocalStack
from tests.oracle.check import check
from tests.oracle.client_ledger import ClientLedger
from tests.oracle.executions import counted, executed, pids
from tests.oracle.rows import count_rows
from tests.oracle.view import ApiView
from tests.oracle.watch import Watcher

JOBS = 500
PORTION = 40  # jobs let go before each kill
POINTS = ("commit_publish", "publish_claim", "engine_result", "result_offset", "blob_row")
FRONT_KILLS = 3
ENGINES = ("echo", "sum", "slow")  # one child of each is killed
SEED = 20261201


def until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Waits on ``condition`` with a deadline."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout} s: {what}"
        pause.wait(0.01)


class Killer:
    """The stack, the client and what was done to them."""

    def __init__(self, folder: Path) -> None:
        self.rng = random.Random(SEED)
        self.calls = folder / "calls"
        models = counted(MODELS, ENGINES, folder / "models", self.calls)
        self.data = folder / "data"
        self.stack = LocalStack(data=self.data, models=models)
        self.up = threading.Event()
        self.ledger = ClientLedger(folder / "client.jsonl")
        # The portions of the crash points go first; the last of them needs items that are too large for a row.
        first = (len(POINTS) - 1) * PORTION
        self.campaign = Campaign(plan(JOBS, SEED, range(first, first + 8)), self.ledger, self.where)
        self.watcher = Watcher("default", self.address)
        self.kills = 0

    def where(self) -> tuple[str, str] | None:
        return (self.stack.url, self.stack.key) if self.up.is_set() else None

    def address(self) -> tuple[str, str]:
        target = self.where()
        if target is None:
            raise OSError("no service is up")
        return target

    def start(self, crash: str | None = None) -> None:
        """With a crash point armed it may end before it is ready: the work of earlier starts goes on at once."""
        self.stack.environ = {"BATCHYARD_CRASH": crash} if crash else {}
        self.stack.start(wait=False)
        try:
            self.stack.wait_ready()
            self.up.set()
        except RuntimeError:
            if crash is None or self.stack.exit_code is None:
                raise

    def gone(self) -> None:
        """The front process has ended; so must its engine children."""
        self.up.clear()
        self.kills += 1
        assert self.stack.wait_gone() == []

    def at_crash_point(self, point: str) -> None:
        nth = self.rng.randint(1, 3)
        self.start(crash=f"{point}:{nth}")
        pid = self.stack.pid
        self.campaign.release(PORTION)
        code = self.stack.wait_exit(30)
        self.gone()
        fired = f"crash point {point}:{nth} fired in process {pid}"
        assert (code, fired in self.stack.log) == (137, True), f"exit code {code}, log:\n{self.stack.log[-3000:]}"

    def engine_child(self, model: str) -> None:
        before = executed(self.calls)
        released = self.campaign.release(PORTION)
        known = pids(self.calls).get(model)
        living = set(self.stack.child_pids())
        until(lambda: pids(self.calls).get(model) in living, 20, f"a call of {model} since this start ({known})")
        until(lambda: executed(self.calls) > before, 20, "a call")
        victim = psutil.Process(pids(self.calls)[model])
        victim.kill()
        self.kills += 1
        self.campaign.wait_acked(released, 30)
        until(lambda: not victim.is_running(), 10, "the engine child is gone")
        self.all_final(30)

    def front(self) -> None:
        acked = self.campaign.acked
        self.campaign.release(PORTION)
        self.campaign.wait_acked(acked + self.rng.randint(1, PORTION - 5), 30)
        os.kill(self.stack.pid, signal.SIGKILL)
        assert self.stack.wait_exit(10) == -signal.SIGKILL
        self.gone()

    def all_final(self, timeout: float) -> None:
        with httpx.Client(base_url=self.stack.url, headers=self.stack.headers, timeout=20) as client:

            def idle() -> bool:
                lists = (client.get("/v1/jobs", params={"state": s, "limit": 1}) for s in ("queued", "running"))
                return not any(answer.raise_for_status().json()["data"] for answer in lists)

            until(idle, timeout, "every job is final")


@pytest.fixture
def killer(tmp_path: Path) -> Iterator[Killer]:
    killer = Killer(tmp_path)
    try:
        with killer.campaign, killer.watcher:
            yield killer
    finally:
        killer.up.clear()
        killer.stack.close()
        killer.ledger.close()


def test_first_kills(killer: Killer) -> None:
    for point in POINTS:
        killer.at_crash_point(point)
    for engine in ENGINES:
        killer.start()
        killer.engine_child(engine)
        killer.front()
    killer.start()
    killer.campaign.release(JOBS)
    killer.campaign.wait_acked(JOBS, 40)
    killer.all_final(40)
    killer.watcher.look()

    view = ApiView(
        killer.stack.url,
        {"default": killer.stack.key},
        seen=killer.watcher.history(),
        counted=count_rows(killer.data / "ledger.db"),
        calls=executed(killer.calls),
    )
    verdict = check(killer.ledger.entries(), view)
    print("\n" + verdict.line("first_kills", kills=killer.kills, points=len(POINTS), looks=killer.watcher.rounds))
    assert killer.kills == len(POINTS) + len(ENGINES) + FRONT_KILLS
    assert verdict.acked == JOBS
    assert verdict.clean, "\n".join(verdict.findings)
    assert killer.stack.stop() == 0
