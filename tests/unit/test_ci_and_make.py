"""`.ci/run` makes the tests, then the checks, and fails on a skip that it does not know; `make` names its goals."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOALS = ("venv", "models", "up", "demo", "services", "test", "check", "bench", "bench-check", "help")
KNOWN = "SKIPPED [2] tests/gpu/test_x.py:3: needs an accelerator"
UNKNOWN = "SKIPPED [1] tests/unit/test_y.py:9: could not import 'numpy'"


def ci(folder: Path, summary: str, *, test_code: int = 0, check_code: int = 0) -> subprocess.CompletedProcess[str]:
    """.ci/run in a folder whose Makefile only says what was called."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "summary").write_text(summary)
    (folder / "Makefile").write_text(
        f"test:\n\t@echo ran test $$CI; cat summary; exit {test_code}\ncheck:\n\t@echo ran check; exit {check_code}\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "CI"}
    return subprocess.run(
        [folder / ".ci" / "run"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_tests_then_checks(tmp_path: Path) -> None:
    done = ci(tmp_path, "5 passed\n")
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, "ran test true"), done.stderr
    assert done.stdout.index("ran test") < done.stdout.index("ran check")


@pytest.mark.parametrize("codes", [{"test_code": 1}, {"check_code": 1}], ids=str)
def test_what_fails_fails_it(tmp_path: Path, codes: dict[str, int]) -> None:
    done = ci(tmp_path, "1 failed\n", **codes)
    assert done.returncode != 0
    assert ("ran check" in done.stdout) == ("check_code" in codes)


def test_a_known_skip_is_shown_and_passes(tmp_path: Path) -> None:
    done = ci(tmp_path, f"{KNOWN}\n3 passed, 2 skipped\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(KNOWN) == 2
    assert "ran check" in done.stdout


def test_an_unknown_skip_fails_and_is_named(tmp_path: Path) -> None:
    done = ci(tmp_path, f"{KNOWN}\n{UNKNOWN}\n3 passed, 3 skipped\n")
    assert done.returncode == 1
    assert "ran check" not in done.stdout
    assert UNKNOWN in done.stderr
    assert KNOWN not in done.stderr


def make(*arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_every_goal() -> None:
    shown = [line.split()[1] for line in make("help").splitlines() if line.startswith("  make ")]
    assert sorted(shown) == sorted(GOALS)
    assert make() == make("help")


@pytest.mark.parametrize(
    ("goal", "runs"),
    [
        ("test", ["-m tests.services.install", "-m pytest"]),
        ("services", ["-m tests.services"]),
        ("check", ["ruff check .", "ruff format --check .", "mypy", "lint-imports", "-m tests.module_length"]),
        ("demo", ["-m tests.demo"]),
        ("up", ["batchyard up --port 8000 --admin-port 8001 --data .batchyard"]),
        ("models", ["-m tests.models.make"]),
        ("bench", ["-m tests.bench"]),
        ("bench-check", ["-m tests.bench --check"]),
    ],
)
def test_a_goal_runs_what_it_says(goal: str, runs: list[str]) -> None:
    lines = make("-n", goal)
    for command in runs:
        assert command in lines


def test_mypy_is_strict_and_pytest_prints_why_it_skips() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "[tool.mypy]\nstrict = true" in text
    assert 'addopts = "-ra ' in text


def test_a_folder_of_one_s_own_goes_to_the_demo() -> None:
    assert '--files "/usr/share/doc"' in make("-n", "demo", "FILES=/usr/share/doc")
