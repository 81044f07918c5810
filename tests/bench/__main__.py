"""Measures the local stack beside its yardsticks: target, figure, met or missed.

``python -m tests.bench [--check] [--only m1-singly,m1-jobs,m1-open,m2]`` writes ``build/bench.json``. A wrong or
missing answer makes the run invalid (exit code 1); with ``--check`` a missed ratio exits 1 too.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from rich.console import Console

from tests.bench import figures
from tests.bench.figures import Figure, Phase
from tests.bench.load import Order, Outcome, Way, drive
from tests.bench.processor import GroupMeter, meter
from tests.bench.work import M1, M2, Work
from tests.bench.yardsticks import Yardsticks
from tests.e2e.stack import MODELS, LocalStack

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench.json"
PARTS = ("m1-singly", "m1-jobs", "m1-open", "m2")
SINGLY = 64  # connections
IN_FLIGHT = 8  # jobs
OPEN_CONNECTIONS = 256
WARM_UP = {"mlp": 20_000, "encoder": 256}
SECONDS = {"mlp": 8.0, "encoder": 8.0}


class Invalid(Exception):
    """An answer was wrong or missing: no figure of this run counts."""


@dataclass
class Bench:
    stack: LocalStack
    yardsticks: Yardsticks
    console: Console
    group: str | None
    phases: list[Phase] = field(default_factory=list)

    def phase(self, name: str, work: Work, way: Way, *, seconds: float | None = None, rate: float = 0.0) -> Outcome:
        """Measures one way of asking and prints it."""
        before = self._batches(work.model)
        outcome = self._drive(work, way, seconds or SECONDS[work.model], rate=rate)
        batches, items = (after - then for after, then in zip(self._batches(work.model), before, strict=True))
        phase = Phase(
            name=name,
            rate=outcome.rate,
            cpu_ms=1000 * outcome.cpu / outcome.items,
            load_share=outcome.load_cpu / outcome.cpu,
            load_us=1e6 * outcome.load_cpu / outcome.requests,
            average_batch=items / max(1, batches),
        )
        self.phases.append(phase)
        self.console.print(f"  {phase.line()}")
        return outcome

    def warm_up(self, work: Work) -> None:
        self._drive(work, "jobs", 60.0, most=WARM_UP[work.model])

    def average_batch(self, name: str) -> float:
        return next(phase.average_batch for phase in self.phases if phase.name == name)

    def _drive(self, work: Work, way: Way, seconds: float, *, most: int | None = None, rate: float = 0.0) -> Outcome:
        address = urlsplit(self.stack.url)
        assert address.hostname is not None
        assert address.port is not None
        connections = {"jobs": IN_FLIGHT, "open": OPEN_CONNECTIONS}.get(way, SINGLY)
        outcome = drive(
            Order(
                host=address.hostname,
                port=address.port,
                key=self.stack.key,
                model=work.model,
                way=way,
                connections=connections,
                seconds=seconds,
                most=most,
                rate=rate,
                group=self.group,
                roots=(self.stack.pid,),
            )
        )
        if outcome.wrong or outcome.missing or outcome.problems:
            raise Invalid(
                f"{work.model}, {way}: {outcome.wrong} wrong, {outcome.missing} missing of {outcome.items:,} answers"
                + "".join(f"\n  {problem}" for problem in outcome.problems)
            )
        return outcome

    def _batches(self, model: str) -> tuple[int, int]:
        answer = httpx.get(f"{self.stack.url}/v1/models/{model}", headers=self.stack.headers, timeout=20)
        stats = answer.raise_for_status().json()["stats"]
        return stats["batches"], stats["batch_items"]


def measure(bench: Bench, parts: set[str]) -> list[Figure]:
    """All phases, with yardsticks before, between and after."""
    sticks = bench.yardsticks
    found: list[Figure] = []
    outcomes: dict[str, Outcome] = {}
    sticks.take()
    if parts & {"m1-singly", "m1-jobs", "m1-open"}:
        bench.warm_up(M1)
    if "m1-singly" in parts:
        outcomes["waiting"] = bench.phase("M1 singly, Prefer: wait", M1, "waiting")
    if parts & {"m1-singly", "m1-open"}:
        outcomes["post_get"] = bench.phase("M1 singly, POST + GET ?wait=", M1, "post_get")
    sticks.take()
    if "m1-jobs" in parts:
        outcomes["jobs"] = bench.phase("M1 in jobs of 100", M1, "jobs")
    if "m1-open" in parts:
        half = outcomes["post_get"].rate / 2
        outcomes["open"] = bench.phase(f"M1 at half load, {half:,.0f}/s", M1, "open", rate=half)
    sticks.take()
    if "m2" in parts:
        bench.warm_up(M2)
        outcomes["m2 waiting"] = bench.phase("M2 singly, Prefer: wait", M2, "waiting")
        outcomes["m2 post_get"] = bench.phase("M2 singly, POST + GET ?wait=", M2, "post_get")
        sticks.take()
        outcomes["m2 jobs"] = bench.phase("M2 in jobs of 100", M2, "jobs", seconds=10.0)
    sticks.take()
    sticks.complete()
    if "m1-singly" in parts:
        found += _singly(bench, outcomes)
    if "m1-jobs" in parts:
        jobs = outcomes["jobs"]
        found.append(Figure(figures.IN_JOBS, jobs.rate / sticks.rate("mlp json")))
        found.append(Figure(figures.IN_JOBS_CPU, jobs.cpu / jobs.items / sticks.cpu("mlp json")))
        found.append(Figure(figures.IN_JOBS_BATCH, bench.average_batch("M1 in jobs of 100") / M1.max_batch))
    if "m1-open" in parts:
        found.append(Figure(figures.ACCEPTED, 1000 * outcomes["open"].accepted_p99))
        found.append(Figure(figures.ANSWERED, 1000 * outcomes["open"].answered_p99))
    if "m2" in parts:
        found += _m2(bench, outcomes)
    return found


def _singly(bench: Bench, outcomes: dict[str, Outcome]) -> list[Figure]:
    """The better of the two ways counts."""
    better = max(outcomes["waiting"], outcomes["post_get"], key=lambda outcome: outcome.rate)
    return [
        Figure(figures.SINGLY, better.rate / bench.yardsticks.rate("mlp json")),
        Figure(figures.SINGLY_CPU, better.cpu / better.items / bench.yardsticks.cpu("mlp json")),
    ]


def _m2(bench: Bench, outcomes: dict[str, Outcome]) -> list[Figure]:
    sticks, jobs = bench.yardsticks, outcomes["m2 jobs"]
    ways = {"M2 singly, Prefer: wait": "m2 waiting", "M2 singly, POST + GET ?wait=": "m2 post_get"}
    name = max(ways, key=lambda way: outcomes[ways[way]].rate)
    better = outcomes[ways[name]]
    return [
        Figure(figures.M2_SINGLY, better.rate / sticks.rate("encoder raw")),
        Figure(figures.M2_IN_JOBS, jobs.rate / sticks.rate("encoder raw")),
        Figure(figures.M2_CPU, max(o.cpu / o.items for o in (better, jobs)) / sticks.cpu("encoder raw")),
        Figure(figures.M2_BATCH, bench.average_batch(name) / M2.max_batch),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit code 1 on a missed ratio")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,…", help=f"of {', '.join(PARTS)}")
    given = parser.parse_args()
    parts = set(given.only.split(","))
    if not parts <= set(PARTS):
        parser.error(f"--only: unknown part {', '.join(sorted(parts - set(PARTS)))}; known: {', '.join(PARTS)}")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150
    started = time.perf_counter()
    models = tuple(
        work.model for work in (M1, M2) if any(part.startswith("m1" if work is M1 else "m2") for part in parts)
    )
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as folder, LocalStack(Path(folder), MODELS) as stack:
        counting = meter([stack.pid])
        group = str(counting.folder) if isinstance(counting, GroupMeter) else None
        console.print(f"[bold]The local stack on {os.cpu_count()} cores[/bold], load average {os.getloadavg()[0]:.1f}")
        console.print(f"  CPU of all processes, load generator included, by {counting.how}")
        bench = Bench(stack, Yardsticks(models), console, group)
        try:
            found = measure(bench, parts)
        except Invalid as error:
            console.print(f"\n[red]invalid[/red]: {error}")
            return 1
        finally:
            stack.close()
            counting.remove()
    _yardsticks(bench.yardsticks, console)
    console.print()
    figures.show(found, console)
    figures.write(found, OUT)
    console.print(f"\n  {OUT.relative_to(ROOT)} written; {time.perf_counter() - started:.0f} s")
    missed = figures.missed(found)
    return 1 if given.check and missed else 0


def _yardsticks(sticks: Yardsticks, console: Console) -> None:
    for name, readings in sticks.readings.items():
        console.print(
            f"  yardstick {name:<24} {sticks.rate(name):>9,.0f}/s  CPU {1000 * sticks.cpu(name):6.4f} s per 1,000"
            f"  (median of {len(readings)})"
        )


if __name__ == "__main__":
    sys.exit(main())
