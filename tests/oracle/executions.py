"""Counts what is really given to models: a repository whose handlers write down every call before they make it.

The count lies in a file of its own, one short line a call, appended in one write: it survives any ``kill -9``.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

FIRST_ID = 1_000_000
"""Ids inside inputs start here, so that samples (warm-up, self-test) do not count."""

_HANDLER = '''"""Writes down how many items each call is given, then does what the model does."""

import importlib.util
import os

_spec = importlib.util.spec_from_file_location("counted_model", {real!r})
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


class Handler(_module.Handler):
    def predict(self, inputs, parameters):
        asked = sum(isinstance(item["id"], int) and item["id"] >= {first} for item in inputs)
        line = f"{name} {{os.getpid()}} {{asked}}\\n".encode()
        file = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        return super().predict(inputs, parameters)
'''


def counted(models: Path, names: Iterable[str], into: Path, log: Path) -> Path:
    """A repository at ``into`` with the named python models of ``models``, counting into ``log``. Gives ``into``."""
    for name in names:
        shutil.copytree(models / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        for handler in list((into / name).rglob("handler.py")):
            real = handler.with_name("counted.py")
            handler.rename(real)
            handler.write_text(_HANDLER.format(real=str(real), name=name, log=str(log), first=FIRST_ID), "utf-8")
        if not list((into / name).rglob("counted.py")):
            raise FileNotFoundError(f"model {name} has no handler.py to count")
    return into


def executed(log: Path) -> int:
    """Items given to models so far; only inputs with an id of at least FIRST_ID count."""
    return sum(int(line.split()[2]) for line in _lines(log))


def pids(log: Path) -> dict[str, int]:
    """By model, the engine process that called it last."""
    return {line.split()[0]: int(line.split()[1]) for line in _lines(log)}


def _lines(log: Path) -> list[str]:
    return log.read_text("ascii").splitlines() if log.is_file() else []
