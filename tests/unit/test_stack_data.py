"""The data folder of a local stack: one owner, keys that stay, an env file for one pair of eyes."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.errors import BatchyardError
from batchyard.local import logs
from batchyard.local.data import Keys, Lock, Occupied, owner, prepare, write_env


def test_a_folder_has_one_owner_and_tells_its_pid(tmp_path: Path) -> None:
    assert owner(tmp_path) is None
    with Lock(tmp_path):
        assert owner(tmp_path) == os.getpid()
        with pytest.raises(Occupied, match=f"in use by process {os.getpid()}") as caught, Lock(tmp_path):
            pass
        assert caught.value.pid == os.getpid()
    assert owner(tmp_path) is None
    with Lock(tmp_path):
        assert owner(tmp_path) == os.getpid()


def test_the_lock_ends_with_its_process_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom batchyard.local.data import Lock\n"
        f"Lock(Path({str(tmp_path)!r})).__enter__()\nprint('held', flush=True)\nsys.stdin.read()\nos._exit(9)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert owner(tmp_path) == holder.pid
    holder.kill()
    holder.communicate()
    assert owner(tmp_path) is None
    with Lock(tmp_path):
        pass


def test_keys_stay_and_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a" / "data")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    first = Keys.kept(folder)
    assert first != Keys.kept(folder), "keys must be made by chance"
    path = write_env(folder, "http://127.0.0.1:1", "http://127.0.0.1:2", first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keys.kept(folder) == first
    os.chmod(path, 0o644)
    write_env(folder, "http://127.0.0.1:3", "http://127.0.0.1:4", first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().splitlines() == [
        "BATCHYARD_URL=http://127.0.0.1:3",
        f"BATCHYARD_API_KEY={first.api}",
        "BATCHYARD_ADMIN_URL=http://127.0.0.1:4",
        f"BATCHYARD_ADMIN_KEY={first.admin}",
    ]
    assert [entry.name for entry in folder.iterdir()] == ["env"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BatchyardError, match="cannot be made"):
        prepare(tmp_path / "file" / "data")


def test_an_event_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        logs.configure("info")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("batchyard.test").exception("failed: %s", "a\r\nb")
        logging.getLogger("batchyard.test").debug("not said")
        logging.getLogger("uvicorn.access").info("not said either")
    finally:
        root.handlers[:], root.level = before
    [line] = capsys.readouterr().err.splitlines()
    assert " ERROR batchyard.test: failed: a ⏎ b ⏎ Traceback" in line
    assert line.endswith("ValueError: two ⏎ lines")
    assert line[10] == "T"
    assert line[23] == "Z"
