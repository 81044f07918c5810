"""Named crash points: how they are armed, and that the one armed really kills, at the pass it was told."""

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.crash import POINTS, CrashPoints
from jobs.records import ChunkRef
from jobs.settings import Settings
from tests.contracts.store_kit import make_kit

PASSING = """
import sys
from jobs.crash import CrashPoints
points = CrashPoints.parse(sys.argv[1])
for number in range(1, 6):
    points.passing("engine_result")
    points.passing("blob_row")
    print(number, flush=True)
"""

SUBMITTING = """
import sys, threading
from jobs.crash import CrashPoints
from jobs.ledger import Ledger
from jobs.stores.sqlite import SqliteStore
from tests.contracts.store_kit import ManualClock, new_job

ledger = Ledger(
    SqliteStore(sys.argv[1], ManualClock()),
    on_committed=lambda jobs: print("published", jobs[0].id, flush=True),
    crash=CrashPoints.parse("commit_publish:2"),
)
ledger.start()
for number in range(5):
    told = threading.Event()
    job = new_job(2, id=f"job_{number}")
    ledger.submit(job, lambda answers: (print("told", answers[0][0].id, flush=True), told.set()))
    told.wait(20)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "armed", "nth"),
    [(None, None, 1), ("", None, 1), ("blob_row", "blob_row", 1), ("result_offset:12", "result_offset", 12)],
)
def test_parse(text: str | None, armed: str | None, nth: int) -> None:
    points = CrashPoints.parse(text)
    assert (points.armed, points.nth) == (armed, nth)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="BATCHYARD_CRASH") as refused:
        CrashPoints.parse("comit_publish:1")
    assert "'comit_publish'" in str(refused.value)
    assert all(name in str(refused.value) for name in POINTS)


@pytest.mark.parametrize("text", ["blob_row:0", "blob_row:-1", "blob_row:x", "blob_row:1.5", "blob_row: 1"])
def test_a_pass_that_never_comes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="BATCHYARD_CRASH"):
        CrashPoints.parse(text)


def test_the_environment_arms() -> None:
    assert Settings.from_environment({"BATCHYARD_CRASH": "commit_publish:3"}).crash.armed == "commit_publish"
    assert Settings.from_environment({}).crash.armed is None


def test_unarmed_and_other_points_are_passed() -> None:
    for points in (CrashPoints(), CrashPoints.parse("blob_row:1")):
        for name in POINTS:
            if name != "blob_row" or points.armed is None:
                points.passing(name)


@pytest.mark.parametrize(("armed", "passed"), [("engine_result:3", ["1", "2"]), ("blob_row", [])])
def test_it_dies_at_this_pass_of_this_point(armed: str, passed: list[str]) -> None:
    ended = run(PASSING, armed)
    name, _, nth = armed.partition(":")
    assert ended.returncode == 137
    assert ended.stdout.split() == passed
    assert ended.stderr.startswith(f"crash point {name}:{nth or 1} fired in process ")
    assert ended.stderr.count("\n") == 1


def test_it_does_not_die_before_its_pass() -> None:
    ended = run(PASSING, "engine_result:6")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["1", "2", "3", "4", "5"]


def test_passes_are_counted_over_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[int] = []
    monkeypatch.setattr("os._exit", died.append)
    monkeypatch.setattr("os.write", lambda *_: None)
    points = CrashPoints.parse("blob_row:200")
    threads = [threading.Thread(target=lambda: [points.passing("blob_row") for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert died == [137]


def test_a39_a_job_saved_by_a_process_that_died_before_it_published_is_the_relays(tmp_path: Path) -> None:
    kit = make_kit("sqlite", tmp_path)
    kit.store.close()
    ended = run(SUBMITTING, str(tmp_path / "ledger.db"))
    assert ended.returncode == 137, ended.stderr
    assert ended.stderr.startswith("crash point commit_publish:2 fired in process ")
    assert ended.stdout.split("\n") == ["published job_0", "told job_0", ""]
    kit.reopen()
    assert sorted(kit.store.jobs_by_id([f"job_{number}" for number in range(5)])) == ["job_0", "job_1"]
    assert kit.due() == []  # whoever committed them may still be about to publish
    kit.clock.advance(timedelta(seconds=15))
    assert {message.ref for message in kit.due()} == {ChunkRef("job_0", 0, 0), ChunkRef("job_1", 0, 0)}
    kit.store.close()
