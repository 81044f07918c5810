"""The figures to reach, side by side with what was measured."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    value: float
    unit: str
    better: Literal["more", "less"]
    asserted: bool = True  # absolute figures are printed, never asserted: machines differ


SINGLY = Target("M1 singly: items/s ÷ JSON loop", 0.04, "x", "more")
IN_JOBS = Target("M1 in jobs of 100: items/s ÷ JSON loop", 0.16, "x", "more")
SINGLY_CPU = Target("M1 singly: CPU ÷ JSON loop's", 37, "x", "less")
IN_JOBS_CPU = Target("M1 in jobs of 100: CPU ÷ JSON loop's", 11, "x", "less")
IN_JOBS_BATCH = Target("M1 in jobs of 100: average batch ÷ max", 0.8, "x", "more")
ACCEPTED = Target("M1 at half load: 202 p99", 40, "ms", "less", asserted=False)
ANSWERED = Target("M1 at half load: result p99", 60, "ms", "less", asserted=False)
M2_SINGLY = Target("M2 singly: items/s ÷ raw loop", 0.90, "x", "more")
M2_IN_JOBS = Target("M2 in jobs of 100: items/s ÷ raw loop", 0.90, "x", "more")
M2_CPU = Target("M2 CPU ÷ raw loop's", 1.20, "x", "less")
M2_BATCH = Target("M2 singly: average batch ÷ max", 0.8, "x", "more")


@dataclass(frozen=True, slots=True)
class Figure:
    target: Target
    value: float

    @property
    def met(self) -> bool:
        if self.target.better == "more":
            return self.value >= self.target.value
        return self.value <= self.target.value


def missed(figures: list[Figure]) -> list[Figure]:
    """Those that a check fails on."""
    return [figure for figure in figures if figure.target.asserted and not figure.met]


def write(figures: list[Figure], path: Path) -> None:
    """``[{"name", "target", "value", "unit", "met"}]``"""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "name": figure.target.name,
            "target": figure.target.value,
            "value": round(figure.value, 4),
            "unit": figure.target.unit,
            "met": figure.met,
        }
        for figure in figures
    ]
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", "utf-8")


def show(figures: list[Figure], console: Console) -> None:
    table = Table(box=None, padding=(0, 2), header_style="bold", pad_edge=True)
    table.add_column("figure", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("here", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for figure in figures:
        target = figure.target
        sign = "≥" if target.better == "more" else "≤"
        verdict = "[green]met[/green]" if figure.met else "[red]missed[/red]"
        verdict += "" if target.asserted else " (printed, not asserted)"
        table.add_row(
            target.name, f"{sign} {target.value:g} {target.unit}", f"{figure.value:.3g} {target.unit}", verdict
        )
    console.print(table)


@dataclass(frozen=True, slots=True)
class Phase:
    """One way of asking, as measured; absolute figures."""

    name: str
    rate: float  # items a second
    cpu_ms: float  # CPU milliseconds an item, all processes
    load_share: float  # of that CPU, the load generator's own
    load_us: float  # CPU microseconds a request of the load generator
    average_batch: float

    def line(self) -> str:
        return (
            f"{self.name:<34} {self.rate:>9,.0f}/s  CPU {self.cpu_ms:6.3f} s per 1,000"
            f"  (load generator {100 * self.load_share:2.0f} %, {self.load_us:3.0f} us a request)"
            f"  average batch {self.average_batch:5.1f}"
        )


def as_json(phases: list[Phase]) -> list[dict[str, object]]:
    return [asdict(phase) for phase in phases]
