"""What a client did: every job it sent and what came back, appended to a file as it happens.

The file is the client's own memory. It is written before a request leaves and after an answer arrives, so what is in it
holds whatever happens to the service (or to the client) in between.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Outcome(StrEnum):
    """What the client knows of one job it sent."""

    ACKED = "acked"  # an answer with the job came back: it must be there, and must end
    REFUSED = "refused"  # every answer was a refusal: it must not be there
    UNKNOWN = "unknown"  # a connection broke or the client gave up: either is right


@dataclass(frozen=True, slots=True)
class SentItem:
    id: str
    input: Any  # as it went out, decoded


@dataclass(frozen=True, slots=True)
class Entry:
    """One job the client sent, under one idempotency key, with all the answers it got for it."""

    key: str
    tenant: str
    model: str
    items: tuple[SentItem, ...]
    input_hash: str
    outcome: Outcome = Outcome.UNKNOWN
    jobs: tuple[str, ...] = ()  # ids that the answers named: more than one is a doubled job
    may_stop: bool = False  # the client cancelled it or gave it a deadline: stopped items are no error


def hash_of(items: Sequence[SentItem]) -> str:
    """SHA-256 over ids and inputs, whatever the order of keys."""
    text = json.dumps([[item.id, item.input] for item in items], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class ClientLedger:
    """Appends to ``path``; safe to share between threads. Close it, or use it in a ``with`` block."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._file = self.path.open("a", encoding="utf-8")

    def sent(self, key: str, tenant: str, model: str, items: Sequence[SentItem], may_stop: bool = False) -> None:
        """Before the first request of this key leaves."""
        pairs = [[item.id, item.input] for item in items]
        self._append(
            event="sent", key=key, tenant=tenant, model=model, items=pairs, hash=hash_of(items), may_stop=may_stop
        )

    def answered(self, key: str, outcome: Outcome, *, status: int | None = None, job: str | None = None) -> None:
        """After each answer, or each failure to get one."""
        self._append(event="answered", key=key, outcome=outcome, status=status, job=job)

    def entries(self) -> list[Entry]:
        return read(self.path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "ClientLedger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, **line: Any) -> None:
        text = json.dumps(line, separators=(",", ":"))
        with self._lock:
            self._file.write(text + "\n")
            self._file.flush()


def read(path: Path) -> list[Entry]:
    """The entries of a ledger file, in the order first sent."""
    sent: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    with path.open(encoding="utf-8") as file:
        for text in file:
            line = json.loads(text)
            if line["event"] == "sent":
                sent[line["key"]] = line
            else:
                answers.setdefault(line["key"], []).append(line)
    return [_entry(line, answers.get(key, [])) for key, line in sent.items()]


def _entry(line: dict[str, Any], answers: Sequence[dict[str, Any]]) -> Entry:
    items = tuple(SentItem(item, value) for item, value in line["items"])
    if hash_of(items) != line["hash"]:
        raise ValueError(f"{line['key']}: the ledger's inputs do not match their hash")
    outcomes = {Outcome(answer["outcome"]) for answer in answers}
    if Outcome.ACKED in outcomes:
        outcome = Outcome.ACKED
    elif outcomes == {Outcome.REFUSED}:
        outcome = Outcome.REFUSED
    else:
        outcome = Outcome.UNKNOWN
    jobs = tuple(dict.fromkeys(answer["job"] for answer in answers if answer["job"]))
    return Entry(line["key"], line["tenant"], line["model"], items, line["hash"], outcome, jobs, line["may_stop"])
