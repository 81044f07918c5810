"""The demo as a newcomer runs it, small: it agrees, it ends, and it leaves nothing behind, also when interrupted."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.demo.files import ROOT

MARK = "DEMO_UNDER_TEST"  # in the environment of everything the demo starts
LIBRARY_FILES = 60


class Demo:
    def __init__(self, *arguments: str) -> None:
        self.mark = str(uuid.uuid4())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def living(self) -> list[psutil.Process]:
        """Processes of this demo, the demo itself included."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = sorted(Path(os.__file__).parent.glob("*.py"))[:LIBRARY_FILES]
    for path in source:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "zu groß für eine Anfrage.bin").touch()
    os.truncate(tmp_path / "zu groß für eine Anfrage.bin", 13_000_000)
    return tmp_path


@pytest.fixture
def ended() -> Iterator[list[Demo]]:
    demos: list[Demo] = []
    yield demos
    for demo in demos:
        for process in demo.living():
            process.kill()
        demo.process.wait(10)


def test_every_answer_agrees_and_nothing_is_left(folder: Path, ended: list[Demo]) -> None:
    demo = Demo("--json", "--files", str(folder))
    ended.append(demo)
    out, err = demo.process.communicate(timeout=120)
    assert demo.process.returncode == 0, err
    summary = json.loads(out)
    assert summary["agree"] is True
    classified = summary["classified"]
    assert (classified["agree"], classified["files"], classified["different"]) == (
        LIBRARY_FILES + 7,
        LIBRARY_FILES + 7,
        [],
    )
    assert [Path(path).name for path in classified["left_out"]] == ["zu groß für eine Anfrage.bin"]
    assert (summary["batching"]["agree"], summary["batching"]["items"]) == (400, 400)
    assert demo.living() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process_and_no_port(folder: Path, ended: list[Demo], number: signal.Signals) -> None:
    demo = Demo("--files", str(folder))
    ended.append(demo)
    assert demo.process.stdout is not None
    ready = next(line for line in demo.process.stdout if "local stack ready" in line)
    port = int(ready.split("http://127.0.0.1:")[1].split()[0])
    demo.process.send_signal(number)
    _, err = demo.process.communicate(timeout=60)
    assert (demo.process.returncode, "interrupted" in err) == (130, True), err
    assert demo.living() == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_folder_that_is_none_is_said_so(ended: list[Demo]) -> None:
    demo = Demo("--files", "/nowhere/at/all")
    ended.append(demo)
    _, err = demo.process.communicate(timeout=30)
    assert demo.process.returncode == 2
    assert "/nowhere/at/all is no folder" in err
