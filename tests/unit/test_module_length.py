"""The check of module lengths: what it counts and what it leaves out."""

import subprocess
from pathlib import Path

import pytest

from tests import module_length


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(module_length, "ROOT", tmp_path)
    for name, lines in {"a.py": 3, "b.py": 400, "migrations/versions/c.py": 900, "tests/d.py": 7, "e.py": 0}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    return tmp_path


def test_prints_the_longest_and_the_median(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert module_length.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 modules: longest 400 (b.py), median 202",
        "3 modules with tests: longest 400 (b.py), median 7",
    ]


@pytest.mark.parametrize("name", ["b.py", "tests/d.py"])
def test_a_module_that_is_too_long_fails(tree: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tree / name).write_text("x = 1\n" * 401)
    assert module_length.main() == 1
    assert f"{name}: 401 lines" in capsys.readouterr().out
