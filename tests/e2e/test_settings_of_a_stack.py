"""What a file and the environment say holds for the running stack, and an option wins over both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT


def up(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`batchyard up` in this folder, where it cannot start: for the settings, or because its data is no folder."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    return subprocess.run(
        [sys.executable, "-m", "batchyard", "up", *arguments],
        cwd=folder,
        env={**others, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_is_wrong_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "batchyard.toml").write_text('[server]\nlease = "soon"\n[server.limits]\nitem = 3\n')
    done = up(tmp_path, BATCHYARD_PORT="http")
    assert done.returncode == 1
    assert [line.split(": ")[0] for line in done.stderr.splitlines()[1:]] == ["BATCHYARD_PORT"] + ["batchyard.toml"] * 2
    assert not (tmp_path / ".batchyard").exists()


@pytest.mark.parametrize(
    ("arguments", "environ", "used"),
    [
        ((), {}, "of-the-file"),
        ((), {"BATCHYARD_DATA": "of-the-environment"}, "of-the-environment"),
        (("--data", "of-the-option"), {"BATCHYARD_DATA": "of-the-environment"}, "of-the-option"),
    ],
)
def test_an_option_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], used: str
) -> None:
    (tmp_path / "batchyard.toml").write_text('[server]\ndata = "of-the-file"\n')
    (tmp_path / used).write_text("no folder")
    done = up(tmp_path, *arguments, **environ)
    assert done.returncode == 1
    assert used in done.stderr
