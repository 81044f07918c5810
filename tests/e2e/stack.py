"""A local stack in processes of its own, for tests: started by the command, told by signals, seen from outside."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "models"
START_SECONDS = 60.0
STOP_SECONDS = 40.0


class LocalStack:
    """``batchyard up`` on free ports.

        with LocalStack(models=MODELS, data=tmp_path / "data") as stack:
            httpx.get(f"{stack.url}/v1/models", headers=stack.headers)
            stack.kill(); stack.restart()

    ``models`` is a repository; ``environ`` is added to the environment (``BATCHYARD_CRASH=…``); ``arguments`` to the
    command line. Output is kept in ``lines`` (stdout) and ``log`` (stderr); the context ends with everything gone.
    """

    def __init__(
        self,
        data: Path,
        models: Path | None = MODELS,
        environ: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.data = data
        self.models = models
        self.environ = dict(environ or {})
        self.arguments = arguments
        self.lines: list[str] = []
        self._log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._ready = threading.Condition()
        self._seen: set[psutil.Process] = set()

    # Life

    def start(self, wait: bool = True) -> Self:
        """Starts it; with ``wait`` returns when it can take work. RuntimeError (with its log) if it ends first."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        command = [sys.executable, "-m", "batchyard", "up", "--port", "0", "--admin-port", "0"]
        command += ["--data", str(self.data)]
        command += ["--models", str(self.models)] if self.models is not None else []
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        self.lines, self._log = [], []
        self._process = subprocess.Popen(
            [*command, *self.arguments],
            cwd=ROOT,
            env={**environ, "PYTHONUNBUFFERED": "1", **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self._log), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        with self._ready:
            while self._ready_url() is None and self.exit_code is None and time.monotonic() < deadline:
                self._ready.wait(0.2)
        if self._ready_url() is None:
            raise RuntimeError(f"the stack is not ready (exit code {self.exit_code}):\n{self.log}")
        self._remember()

    def wait_log(self, text: str, timeout: float) -> None:
        """Until stderr has this text; AssertionError (with the log) if it has not in time."""
        with self._ready:
            said = self._ready.wait_for(lambda: text in self.log or self.exit_code is not None, timeout)
        assert said, f"no {text!r} in {timeout} s:\n{self.log}"
        assert text in self.log, f"it ended without {text!r}:\n{self.log}"

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM; gives the exit code."""
        return self.signal(signal.SIGTERM, timeout)

    def interrupt(self, timeout: float = STOP_SECONDS) -> int:
        """Ctrl-C as a terminal sends it: SIGINT to the front process and its children alike."""
        assert self._process is not None
        self._remember()
        os.killpg(self._process.pid, signal.SIGINT)
        return self.wait_exit(timeout)

    def kill(self) -> int:
        """``kill -9`` of the front process; returns when its children have noticed and are gone."""
        self._remember()
        code = self.signal(signal.SIGKILL)
        psutil.wait_procs(list(self._seen), timeout=20)
        return code

    def signal(self, number: signal.Signals, timeout: float = STOP_SECONDS) -> int:
        assert self._process is not None
        self._remember()
        self._process.send_signal(number)
        return self.wait_exit(timeout)

    def wait_exit(self, timeout: float = STOP_SECONDS) -> int:
        """Waits until the front process has ended by itself (a crash point, say); gives the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the stack does not end:\n{self.log}") from None
        for reader in self._readers:
            reader.join(5)
        return code

    def restart(self) -> Self:
        """Starts again on the same data; what ran before has ended."""
        return self.start()

    def close(self) -> None:
        """Ends whatever is left, by pid."""
        self._remember()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self.wait_exit()
        for process in self.leftovers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # a start that failed or was interrupted leaves nothing behind either
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # What it says

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        return "".join(self._log)

    @property
    def url(self) -> str:
        url = self._ready_url()
        assert url is not None, "not ready"
        return url

    @property
    def env(self) -> dict[str, str]:
        """The variables of DATA/env."""
        lines = (self.data / "env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    @property
    def key(self) -> str:
        return self.env["BATCHYARD_API_KEY"]

    @property
    def admin_url(self) -> str:
        return self.env["BATCHYARD_ADMIN_URL"]

    @property
    def admin_key(self) -> str:
        return self.env["BATCHYARD_ADMIN_KEY"]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def admin_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.admin_key}"}

    # Its processes

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def child_pids(self) -> list[int]:
        """Pids of the engine children that live now."""
        self._remember()
        return [child.pid for child in self._children()]

    def leftovers(self) -> list[psutil.Process]:
        """Processes of any start of this stack that still live."""
        return [p for p in self._seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def wait_gone(self, timeout: float = 10.0) -> list[psutil.Process]:
        """Gives what still lives after `timeout` seconds: nothing, if all is well."""
        deadline = time.monotonic() + timeout
        while (left := self.leftovers()) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.1)
        return left

    def _children(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _remember(self) -> None:
        self._seen.update(self._children())

    def _ready_url(self) -> str | None:
        return next((line.split()[1] for line in self.lines if line.startswith("ready ")), None)

    def _read(self, pipe: "subprocess._FILE", kept: list[str]) -> None:
        for line in pipe:  # type: ignore[union-attr]
            with self._ready:
                kept.append(line)
                self._ready.notify_all()
        with self._ready:
            self._ready.notify_all()
