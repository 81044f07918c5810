"""What people and programs see: results on stdout, everything else on stderr; colours and bars only on a terminal."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from batchyard.records import JobRecord

PLAIN_REPORT_SECONDS = 5.0
_COLOURS = {
    "succeeded": "green",
    "ready": "green",
    "failed": "red",
    "unavailable": "red",
    "partially_failed": "yellow",
    "expired": "yellow",
    "cancelled": "yellow",
    "running": "cyan",
    "loading": "cyan",
}


class Screen:
    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._out = Console(highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """A line of output, byte for byte."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def json(self, value: Any) -> None:
        """Indented for people, one line for programs."""
        self.line(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))

    def json_line(self, value: Any) -> None:
        self.line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def say(self, text: str) -> None:
        """For the eyes: not part of the output."""
        self._err.print(text, markup=False)

    def complain(self, text: str) -> None:
        self._err.print(Text.assemble(("error: ", "bold red"), text))

    def fields(self, pairs: Mapping[str, object]) -> None:
        """``name  value`` lines; empty values are left out."""
        width = max(len(name) for name in pairs)
        for name, value in pairs.items():
            if value not in (None, "", {}):
                self._out.print(Text.assemble((name.ljust(width), "dim"), "  ", state_text(str(value))))

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        if not self._out.is_terminal:  # tab-separated, for cut and awk
            for row in (heads, *rows):
                self.line("\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in row))
            return
        table = Table(*heads, box=None, pad_edge=False, header_style="dim")
        for row in rows:
            table.add_row(*(state_text(str(cell)) for cell in row))
        self._out.print(table)

    def verdict(self, good: bool, name: str, detail: str, to_do: str | None) -> None:
        """A line of a check-up."""
        mark = ("ok   ", "green") if good else ("TO DO", "bold red")
        self._out.print(Text.assemble(mark, "  ", (f"{name}: ", "bold"), detail))
        if to_do:
            self._out.print(Text(f"       -> {to_do}"))

    @contextmanager
    def progress(self, label: str) -> "Iterator[Watch]":
        """A live bar on a terminal, else a line each few seconds, on stderr."""
        if self._err.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=self._err, transient=True) as progress:
                yield _Bar(progress, label)
        else:
            yield _Log(self, label)


class Watch:
    """Is told the job about once a second."""

    def told(self, job: JobRecord) -> None:
        raise NotImplementedError


class _Bar(Watch):
    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=None)
        self._label = label

    def told(self, job: JobRecord) -> None:
        failed = f" ({job.counts.failed} failed)" if job.counts.failed else ""
        self._progress.update(
            self._task,
            total=job.counts.total,
            completed=job.counts.done,
            description=f"{self._label} {job.state}{failed}",
        )


class _Log(Watch):
    def __init__(self, screen: Screen, label: str) -> None:
        self._screen = screen
        self._label = label
        self._said_at = monotonic()

    def told(self, job: JobRecord) -> None:
        if job.final or monotonic() - self._said_at < PLAIN_REPORT_SECONDS:
            return
        self._said_at = monotonic()
        self._screen.say(f"{self._label} {job.state}: {job.counts.done} of {job.counts.total} items")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} items/s", style="dim")


def state_text(text: str) -> Text:
    return Text(text, style=_COLOURS.get(text, ""))
