"""The oracle: compares what a client did with what the service says, and counts everything that must not be."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.oracle.client_ledger import Entry, Outcome, SentItem
from tests.oracle.expected import Answer, Failure, expected
from tests.oracle.view import FINAL, Rows, SeenJob, SeenLine, View

STOPPED = frozenset({"cancelled", "expired"})
SHOWN = 20
Expect = Callable[[str, Any], Answer | Failure]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of items (or of jobs, where a whole job is at fault). The first five and ``regressed`` must be 0."""

    lost: int  # a job that was acknowledged and is gone or not final; an item of a final job without a line
    unexpected: int  # a job nobody sent, or one that was refused, or of another tenant; a line nobody asked for
    duplicated: int  # a second job for a key, a second result or line for an item, a second terminal event
    wrong: int  # an answer that is not the reference's for the same item
    regressed: int  # a final job seen in another state later
    recovered: int  # jobs whose outcome the client did not know, and which completed
    re_executed: int | None  # items given to models beyond one each; a cost, no error
    acked: int
    findings: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.lost or self.unexpected or self.duplicated or self.wrong or self.regressed)

    def line(self, name: str, **more: object) -> str:
        """``R1 lost=0 unexpected=0 duplicated=0 wrong=0 regressed=0 re_executed=37 acked=1000 kills=8``"""
        cost = "unknown" if self.re_executed is None else self.re_executed
        counts: dict[str, object] = {
            "lost": self.lost,
            "unexpected": self.unexpected,
            "duplicated": self.duplicated,
            "wrong": self.wrong,
            "regressed": self.regressed,
            "re_executed": cost,
            "acked": self.acked,
            "recovered": self.recovered,
        }
        return " ".join([name, *(f"{kind}={count}" for kind, count in (counts | more).items())])


def check(ledger: Iterable[Entry], view: View, expect: Expect = expected) -> Verdict:
    """Reads everything there is and judges it. ``expect(model, input)`` is the reference."""
    return _Check({entry.key: entry for entry in ledger}, expect).run(view)


@dataclass
class _Check:
    entries: Mapping[str, Entry]
    expect: Expect
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def run(self, view: View) -> Verdict:
        rows = view.rows() or Rows()
        kept = self._jobs(list(view.jobs()), rows)
        for entry in self.entries.values():
            job = kept.get(entry.key)
            if job is None:
                if entry.outcome is Outcome.ACKED:
                    self._found("lost", f"job {entry.key} was acknowledged and is not there")
            elif job.state not in FINAL:
                self._found("lost", f"job {entry.key} ({job.id}) is {job.state}, not final")
            else:
                self.counts["recovered"] += entry.outcome is Outcome.UNKNOWN
                self._lines(entry, job, view.lines(job), rows)
        for job_id, states in view.history().items():
            self._states(job_id, states)
        for job_id, count in rows.terminal_events.items():
            self._found("duplicated", f"{job_id} has {count} terminal events", max(0, count - 1))
        executed = view.executed()
        sent = sum(len(e.items) for e in self.entries.values() if e.key in kept or e.outcome is Outcome.ACKED)
        return Verdict(
            lost=self.counts["lost"],
            unexpected=self.counts["unexpected"],
            duplicated=self.counts["duplicated"],
            wrong=self.counts["wrong"],
            regressed=self.counts["regressed"],
            recovered=self.counts["recovered"],
            re_executed=None if executed is None else max(0, executed - sent),
            acked=sum(entry.outcome is Outcome.ACKED for entry in self.entries.values()),
            findings=tuple(self.findings),
        )

    def _found(self, kind: str, text: str, times: int = 1) -> None:
        if times > 0:
            self.counts[kind] += times
            if len(self.findings) < SHOWN:
                self.findings.append(f"{kind}: {text}")

    def _jobs(self, seen: Sequence[SeenJob], rows: Rows) -> dict[str, SeenJob]:
        """One job for each entry; all others are unexpected or duplicates."""
        by_key: dict[str, list[SeenJob]] = {}
        for job in seen:
            entry = self.entries.get(job.key or "")
            if entry is None:
                self._found("unexpected", f"{job.id} of tenant {job.tenant}: nobody sent it")
            elif job.tenant != entry.tenant:
                self._found("unexpected", f"{job.id} is {entry.tenant}'s and was shown to {job.tenant}")
            elif entry.outcome is Outcome.REFUSED:
                self._found("unexpected", f"{job.id}: its submission {entry.key} was refused")
            else:
                by_key.setdefault(entry.key, []).append(job)
        for key, entry in self.entries.items():
            ids = {job.id for job in by_key.get(key, ())} | set(entry.jobs)
            copies = max(len(ids), rows.jobs.get((entry.tenant, key), 0), len(by_key.get(key, ())))
            self._found("duplicated", f"{key} has {copies} jobs: {', '.join(sorted(ids))}", copies - 1)
        return {key: jobs[0] for key, jobs in by_key.items()}

    def _lines(self, entry: Entry, job: SeenJob, lines: Sequence[SeenLine], rows: Rows) -> None:
        by_index: dict[int, list[SeenLine]] = {}
        for line in lines:
            asked = 0 <= line.index < len(entry.items) and line.id == entry.items[line.index].id
            if asked:
                by_index.setdefault(line.index, []).append(line)
            else:
                self._found("unexpected", f"{job.id} has a line for item {line.index} ({line.id!r}): nobody asked")
        for index, item in enumerate(entry.items):
            found = by_index.get(index, [])
            copies = max(len(found), rows.results.get((job.id, index), 0))
            self._found("duplicated", f"{job.id} item {index} has {copies} results", copies - 1)
            if not found:
                self._found("lost", f"{job.id} item {index} has no outcome")
            else:
                self._value(entry, job, item, found[0])

    def _value(self, entry: Entry, job: SeenJob, item: SentItem, line: SeenLine) -> None:
        if line.state in STOPPED:
            if not entry.may_stop:
                self._found("wrong", f"{job.id} item {line.index} is {line.state}: nobody stopped it")
            return
        right = self.expect(entry.model, item.input)
        if isinstance(right, Failure):
            good = line.state == "failed" and line.code == right.code
        else:
            good = line.state == "succeeded" and right.matches(line.output)
        if not good:
            got = line.code if line.state == "failed" else line.output
            self._found("wrong", f"{job.id} item {line.index}: {line.state} {str(got)[:80]}, not {str(right)[:120]}")

    def _states(self, job_id: str, states: Sequence[str]) -> None:
        for before, after in pairwise(states):
            if before in FINAL and after != before:
                self._found("regressed", f"{job_id} went from {before} to {after}")
