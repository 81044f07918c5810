"""What the demo prints: with a live bar on a terminal, as plain lines elsewhere, and not at all for --json."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.demo.batching import FILES_A_CALL, Bought
from tests.demo.classify import IN_FLIGHT, Answered, Statistics
from tests.demo.compare import Comparison
from tests.demo.files import PACK_ITEMS, shown

TYPES_SHOWN = 24
SAMPLE_ROWS = 10
NAME_WIDTH = 34
WORTH_IT = 1.15  # times the rate


class Bar:
    """Progress over a known number of items: a live bar, or a line each tenth of the way."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._done = 0
        self._started = time.perf_counter()
        self._live: Progress | None = None
        if console.is_terminal:
            self._live = Progress(
                TextColumn("  {task.description}"),
                BarColumn(bar_width=36),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:>6,.0f}/s"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(compact=True),
                console=console,
                refresh_per_second=8,
            )
            self._task = self._live.add_task(what, total=total, rate=0.0)

    def step(self) -> None:
        self._done += 1
        rate = self._done / max(1e-9, time.perf_counter() - self._started)
        if self._live is not None:
            self._live.update(self._task, completed=self._done, rate=rate)
        elif self._done == self._total or self._done % max(1, self._total // 10) == 0:
            left = (self._total - self._done) / rate
            self._console.print(
                f"  {self._done:>6,} of {self._total:,} {self._what}  {rate:>5,.0f}/s  {left:.0f} s left"
            )

    def __enter__(self) -> "Bar":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


class Screen:
    def __init__(self, quiet: bool) -> None:
        # Off a terminal there is no width to keep to: nothing is folded there.
        self.console = Console(quiet=quiet, highlight=False)
        if not self.console.is_terminal:
            self.console.width = 110

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False, soft_wrap=True)

    def good(self, text: str) -> None:
        self.console.print(f"  [bold green]{text}[/bold green]")

    def bad(self, text: str) -> None:
        self.console.print(f"  {text}", style="bold red", markup=False, soft_wrap=True)

    def bar(self, what: str, total: int) -> Bar:
        return Bar(self.console, what, total)

    def types(self, answers: Sequence[Answered]) -> None:
        """Files and mean confidence by type, most frequent first."""
        scores: dict[str, list[float]] = defaultdict(list)
        for answered in answers:
            scores[answered.answer["label"]].append(answered.answer["score"])
        ordered = sorted(scores.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        table = self._table("type", "files", "mean confidence")
        for label, found in ordered[:TYPES_SHOWN]:
            table.add_row(label, f"{len(found):,}", f"{sum(found) / len(found):.3f}")
        rest = [score for _, found in ordered[TYPES_SHOWN:] for score in found]
        if rest:
            table.add_row(f"{len(ordered) - TYPES_SHOWN} more types", f"{len(rest):,}", f"{sum(rest) / len(rest):.3f}")
        self._print(table)

    def samples(self, answers: Sequence[Answered], edges: Path) -> None:
        """Ten rows: the first edge cases, then files from all over the set."""
        made = [answered for answered in answers if answered.path.parent == edges][: SAMPLE_ROWS // 2]
        found = [answered for answered in answers if answered.path.parent != edges]
        wanted = SAMPLE_ROWS - len(made)
        spread = [found[i * len(found) // wanted] for i in range(wanted)] if len(found) > wanted else found
        table = self._table("file", "type", "MIME type", "confidence")
        for answered in [*made, *spread]:
            answer = answered.answer
            table.add_row(_short(answered.path), answer["label"], answer["mime_type"], f"{answer['score']:.3f}")
        self._print(table)

    def figures(self, answers: Sequence[Answered], seconds: float, stats: Statistics) -> None:
        times = sorted(answered.seconds for answered in answers)
        p50, p99 = (times[int(share * (len(times) - 1))] for share in (0.50, 0.99))
        rate = len(answers) / seconds
        self.console.print()
        jobs = f"in jobs of up to {PACK_ITEMS}, {IN_FLIGHT} at a time"
        self.say(f"{len(answers):,} files in {seconds:.1f} s: {rate:,.0f}/s, {jobs}")
        self.say(f"from submission to answer: p50 {p50:.2f} s, p99 {p99:.2f} s")
        reasons = sorted(stats.closed.items(), key=lambda pair: -pair[1])
        closed = ", ".join(f"{why} {count:,}" for why, count in reasons if count)
        self.say(f"average batch {stats.average:.1f} items in {stats.batches:,} batches, closed because: {closed}")

    def comparison(self, compared: Comparison) -> None:
        for path in compared.changed:
            self.say(f"changed while the demo ran, left out: {path}")
        for text in compared.different:
            self.bad(text)
        line = f"agree {compared.agree:,} of {compared.files:,}"
        (self.good if compared.agree == compared.files else self.bad)(line)

    def bought(self, bought: Bought) -> None:
        table = self._table(f"{bought.items} items", "items/s", "items a call")
        table.add_row("onnxruntime alone, one by one", f"{bought.alone:,.0f}", "1.0")
        table.add_row("through Batchyard", f"{bought.batched:,.0f}", f"{bought.average_batch:.1f}")
        self._print(table)
        self.console.print()
        self.say(f"{bought.ratio:.2f} times the rate, with HTTP and every item safe on disk included")
        line = f"agree {bought.agree} of {bought.items}"
        (self.good if bought.agree == bought.items else self.bad)(line)
        gains = "gains nothing to speak of" if bought.magika_ratio < WORTH_IT else "gains something"
        self.say(
            f"magika's own net {gains} from batches: {bought.magika_alone:,.0f} items/s one by one, "
            f"{bought.magika_batched:,.0f} with {FILES_A_CALL} a call ({bought.magika_ratio:.2f} times)"
        )

    def _print(self, table: Table) -> None:
        self.console.print()
        self.console.print(table)

    def _table(self, *columns: str) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="bold", pad_edge=True)
        for column in columns:
            number = column in ("files", "mean confidence", "confidence", "items/s", "items a call")
            # On a narrow terminal the others are cut first.
            width = 14 if column == "type" else len(column) if number else None
            table.add_column(column, justify="right" if number else "left", no_wrap=True, min_width=width)
        return table


def _short(path: Path) -> str:
    """The file's name and the folder it lies in, cut from the left."""
    name = f"{shown(path.parent)}/{shown(path)}"
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"
