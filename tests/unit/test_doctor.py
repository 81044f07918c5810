"""The check-up: each thing that can be wrong is found and says what to do."""

import socket
import sys
from pathlib import Path

import pytest

from batchyard.local import doctor
from batchyard.local.data import Keys, Lock, write_env


def test_a_taken_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = doctor.port_free("API", port, "--port")
        assert not finding.good
        assert str(port) in finding.detail
        assert finding.to_do == "give another with --port (0 = any that is free)"
    assert doctor.port_free("API", port, "--port").good


def test_an_old_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.python_version().good
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert doctor.python_version().to_do == "use Python 3.11 or newer"


def test_missing_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(finding.good for finding in doctor.packages())
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("uvloop", "onnxruntime") else "1")
    server, onnx = doctor.packages()
    assert (server.good, server.detail) == (False, "missing: uvloop")
    assert (onnx.good, onnx.to_do) == (False, "pip install -e '.[server,onnxruntime]'")


def test_the_data_folder_that_will_be_made_and_the_one_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.data_folder(tmp_path / "new" / "data", None).detail.endswith("will be made")
    assert doctor.data_folder(tmp_path, 4711).detail.endswith("(pid 4711)")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert doctor.data_folder(tmp_path, None).to_do == "give another folder with --data"


def test_a_slow_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a durable write takes" in doctor.disk_speed(tmp_path / "not" / "yet").detail
    monkeypatch.setattr(doctor, "SLOW_SYNC", 0.0)
    finding = doctor.disk_speed(tmp_path)
    assert not finding.good
    assert "faster disk" in (finding.to_do or "")
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 62)
    assert not doctor.disk_space(tmp_path).good


def test_a_stack_that_does_not_answer_is_found(tmp_path: Path) -> None:
    with Lock(tmp_path):
        assert doctor.running_stack(tmp_path).to_do == "wait until it says ready"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
            write_env(tmp_path, f"http://127.0.0.1:{free.getsockname()[1]}", "http://x", Keys("bysk_a", "bysk_b"))
            found = doctor.examine(port=0, admin_port=0, data=tmp_path, models=None)
    by_name = {finding.name: finding for finding in found}
    assert not by_name["running stack"].good
    assert "nothing answers" in by_name["running stack"].detail
    assert "port of the API" not in by_name, "the port is the running stack's"


def test_no_repository_is_fine_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    assert [finding.good for finding in doctor.repository(None)] == [True]
    assert [finding.good for finding in doctor.repository(tmp_path / "none")] == [False]
