"""CPU seconds of a whole tree of processes, those that have ended included.

By a control group of its own where one can be made (exact), else by /proc: utime + stime of every living process plus
what each has reaped of its children.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DYING_SECONDS = 5.0
TICK = os.sysconf("SC_CLK_TCK")


class Meter(Protocol):
    how: str

    def read(self) -> float:
        """CPU seconds so far."""

    def add(self, pid: int) -> None:
        """Counts this process and what it starts from now on."""


@dataclass
class GroupMeter:
    """A cgroup v2 of its own: also counts what ended long ago."""

    folder: Path
    how: str = "control group"

    def read(self) -> float:
        first = (self.folder / "cpu.stat").read_text().split("\n", 1)[0]
        return int(first.split()[1]) / 1e6  # usage_usec

    def add(self, pid: int) -> None:
        with suppress(OSError):  # it has just ended
            (self.folder / "cgroup.procs").write_text(str(pid))
        # What it starts from here on is in the group by itself; these were there before.
        for child in _children(pid):
            self.add(child)

    def remove(self) -> None:
        """After all its processes were told to end: a process that is just dying still holds it."""
        until = time.monotonic() + DYING_SECONDS
        while (self.folder / "cgroup.procs").read_text().strip() and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(OSError):
            self.folder.rmdir()


@dataclass
class TreeMeter:
    """/proc: a child that ended counts once its parent has reaped it."""

    roots: list[int]
    how: str = "/proc and reaped children"

    def read(self) -> float:
        pids = {pid for root in self.roots for pid in (root, *_descendants(root))}
        return sum(_cpu(pid) for pid in pids)

    def add(self, pid: int) -> None:
        self.roots.append(pid)

    def remove(self) -> None:
        """Nothing was made."""


def meter(pids: Iterable[int]) -> GroupMeter | TreeMeter:
    """A control group if this user may make one."""
    found: GroupMeter | TreeMeter = _group() or TreeMeter([])
    for pid in pids:
        found.add(pid)
    return found


def _group() -> GroupMeter | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind != "cgroup2":
            continue
        folder = Path(mount) / f"batchyard-bench-{os.getpid()}"
        try:
            folder.mkdir()
            if (folder / "cpu.stat").read_text().startswith("usage_usec "):
                (folder / "cgroup.procs").read_text()
                return GroupMeter(folder)
            folder.rmdir()
        except OSError:
            with suppress(OSError):
                folder.rmdir()
    return None


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return [*children, *(each for child in children for each in _descendants(child))]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) / TICK  # utime, stime, cutime, cstime
