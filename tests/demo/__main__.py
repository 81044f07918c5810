"""A first look: real files through a real model, every answer checked, and what batching buys.

``python -m tests.demo [--files DIR] [--json]``; exit codes: 0 all agree, 1 something does not, 130 interrupted.
"""

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batchyard import Client
from batchyard.errors import BatchyardError
from tests.demo import files
from tests.demo.alone import AloneFailed
from tests.demo.batching import measure
from tests.demo.classify import MODEL, DemoFailed, classify, compare, statistics
from tests.demo.repository import DamagedPackage, make
from tests.demo.screen import Screen
from tests.e2e.stack import LocalStack

MODELS = files.ROOT / "build" / "demo-models"
STOP_SECONDS = 10.0
NEXT = (
    ("make up", "the local stack with the test models on http://127.0.0.1:8000, until Ctrl-C"),
    (
        """.venv/bin/batchyard submit echo --input '{"id":1,"value":3}' --wait""",
        "a first job of your own, from another shell",
    ),
    ("make demo FILES=/usr/share/doc", "the same over another folder"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=Path, metavar="DIR", help="classify every file below this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    given = parser.parse_args()
    if given.files is not None and not given.files.is_dir():
        parser.error(f"--files: {given.files} is no folder")
    screen = Screen(quiet=given.json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="batchyard-demo-") as folder:
            summary = _run(screen, given.files, Path(folder))
    except KeyboardInterrupt:
        print("\ninterrupted; everything was stopped", file=sys.stderr)
        return 130
    except (DemoFailed, AloneFailed, DamagedPackage, BatchyardError, RuntimeError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(summary))
    return 0 if summary["agree"] else 1


def _run(screen: Screen, folder: Path | None, scratch: Path) -> dict[str, Any]:
    started = time.perf_counter()
    screen.title("Batchyard: a queue-backed service for batch inference")
    repository = make(MODELS)
    with _stack(repository, scratch / "data") as stack, Client(stack.url, stack.key) as client:
        screen.say(f"local stack ready on {stack.url} after {time.perf_counter() - started:.1f} s")
        first = _files(screen, client, folder, scratch)
        second = _batching(screen, client, repository, scratch)
    seconds = time.perf_counter() - started
    screen.title(f"Done in {seconds:.0f} s; the stack is stopped. Next:")
    for command, why in NEXT:
        screen.say(f"{command}\n      {why}")
    agree = first["agree"] == first["files"] and second["agree"] == second["items"]
    return {"agree": agree, "seconds": seconds, "classified": first, "batching": second}


def _files(screen: Screen, client: Client, folder: Path | None, scratch: Path) -> dict[str, Any]:
    edges = scratch / "edge"
    paths = files.chosen(folder, edges)
    large = [path for path in paths if files.too_large(path)]
    paths = [path for path in paths if path not in set(large)]
    screen.title(f"1. {len(paths):,} files from {folder or 'the standard library and this repository'}, what are they?")
    screen.say("the net is the one inside the magika package; our handler makes its features and reads its labels")
    for path in large:
        screen.say(f"too large for one request (16 MiB), left out: {path}")
    started = time.perf_counter()
    with screen.bar("files", len(paths)) as bar:
        answers = classify(client, files.packed(paths), lambda _: bar.step())
    seconds = time.perf_counter() - started
    stats = statistics(client, MODEL)
    screen.types(answers)
    screen.samples(answers, edges)
    screen.figures(answers, seconds, stats)
    screen.say("now the same files by the magika package's own API, in another process …")
    compared = compare(answers, scratch)
    screen.comparison(compared)
    return {
        "files": compared.files,
        "agree": compared.agree,
        "left_out": [str(path) for path in large],
        "changed": list(compared.changed),
        "different": list(compared.different),
        "seconds": seconds,
        "average_batch": stats.average,
        "closed": stats.closed,
    }


def _batching(screen: Screen, client: Client, repository: Path, scratch: Path) -> dict[str, Any]:
    screen.title("2. What batching buys: a transformer encoder, 6 layers, hidden 384, one thread")
    bought = measure(client, repository, scratch)
    screen.bought(bought)
    return asdict(bought) | {"ratio": bought.ratio, "magika_ratio": bought.magika_ratio}


@contextlib.contextmanager
def _stack(models: Path, data: Path) -> Iterator[LocalStack]:
    """A stack that is gone afterwards, however this ends: asked first, then killed."""
    stack = LocalStack(data=data, models=models)
    try:
        yield stack.start()
    finally:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
        try:
            if stack.exit_code is None:
                with contextlib.suppress(RuntimeError, AssertionError):  # does not end (killed below), or never began
                    stack.stop(STOP_SECONDS)
            stack.close()
        finally:
            signal.signal(signal.SIGINT, previous)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
