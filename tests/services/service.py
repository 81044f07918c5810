"""One service in a process of its own on a free loopback port, for tests and trials."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOG_TAIL = 3000  # characters


class ServiceFailed(Exception):
    """It did not come up, or what it needs is missing; says what to do."""


@dataclass
class Service:
    """A running service. ``stop`` ends it and everything it started; its data stays in ``folder``."""

    name: str
    host: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    extra: dict[str, Any] = field(default_factory=dict)  # what its clients need besides: user, database, keys
    gentle: signal.Signals = signal.SIGTERM

    @property
    def pid(self) -> int:
        return self.process.pid

    def described(self) -> dict[str, Any]:
        return {"host": self.host, "port": self.port, "pid": self.pid, **self.extra}

    def kill(self) -> None:
        """As after a power cut: the whole process group, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, self.gentle)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find(program: str, *folders: str) -> str:
    """The program on the path or in one of these folders; ServiceFailed if it is in none."""
    found = shutil.which(program) or next(
        (str(at) for folder in folders if (at := Path(folder) / program).exists()), None
    )
    if found is None:
        raise ServiceFailed(f"{program} is not installed; `python -m tests.services.install` brings it")
    return found


def unprivileged(user: str) -> str | None:
    """`user` where this process is root and the service refuses to run as root; else None."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam(user).pw_name
    except KeyError:
        return "nobody"


def spawn(
    command: Sequence[str],
    log: Path,
    *,
    environ: Mapping[str, str] | None = None,
    user: str | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """In a process group of its own, so that Ctrl-C reaches only who stops it in order; output goes to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            user=user,
            cwd=cwd,
            process_group=0,
        )


def wait_until(up: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    """Until the service answers; ServiceFailed with its last words when it ends or takes too long."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ServiceFailed(f"{name} ended with status {process.returncode}:\n{_tail(log)}")
        with contextlib.suppress(Exception):  # whatever its client raises while it is not there yet
            if up():
                return
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    raise ServiceFailed(f"{name} did not answer within {START_SECONDS:.0f} s:\n{_tail(log)}")


def listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1.0):
        return True


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL:] if log.exists() else ""
