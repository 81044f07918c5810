"""What a group of finishes comes to, for every SQL store: which are taken, and the rows and counts they make."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jobs.errors import StoreError
from jobs.records import Attempt, BlobRef, ChunkRef, Finish, NewChunk
from jobs.states import ChunkState, JobState, Outcome
from jobs.stores.counting import OUTCOME_OF_STOP, Delta
from jobs.stores.rows import Row, WriteTime, chunk_columns, payload_row

ATTEMPT_COLUMNS = "job item number worker version code message permanent stage traceback at"

Place = tuple[str, int]
"""Job and seq of a chunk."""

_DECIDED = frozenset(outcome.value for outcome in Outcome if outcome is not Outcome.PENDING)


class Parent(NamedTuple):
    """What a child chunk takes from its job."""

    tenant: str
    model: str
    version: str
    stop_as: str | None
    stop_reason: str | None
    last_seq: int


class ChildRows(NamedTuple):
    """Of submission.CHUNK_COLUMNS and PAYLOAD_COLUMNS; ``due`` names the chunks that may be published at once."""

    chunks: list[Row]
    payloads: list[Row]
    due: list[Place]


def taken(finishes: Sequence[Finish], held: Mapping[int, tuple[int, str]], incarnation: str) -> set[int]:
    """Positions of the finishes of chunks that this incarnation holds; `held` has size and worker by position."""
    accepted: dict[Place, int] = {}
    for at, (size, worker) in held.items():
        if worker == incarnation:
            _check(finishes[at], size)
            accepted.setdefault((finishes[at].ref.job, finishes[at].ref.seq), at)
    return set(accepted.values())


def _check(entry: Finish, size: int) -> None:
    """A finish that does not account for every item is a bug of its sender: nothing of it is written."""
    outcomes, ref = entry.outcomes, entry.ref
    moved = sum(child.count for child in entry.children)
    if len(outcomes) != size or any(outcome not in _DECIDED for outcome in outcomes):
        raise StoreError(f"finish of {ref.job}/{ref.seq}: {len(outcomes)} outcomes for {size} items, or one undecided")
    if outcomes.count(Outcome.MOVED) != moved:
        raise StoreError(f"finish of {ref.job}/{ref.seq}: {moved} items in children, others marked moved")


def deltas_of(entries: Iterable[Finish]) -> dict[str, Delta]:
    deltas: dict[str, Delta] = {}
    for entry in entries:
        delta = deltas.get(entry.ref.job)
        if delta is None:
            delta = deltas[entry.ref.job] = Delta()
        delta.add_all(entry.outcomes)
        delta.engine_us += round(entry.engine_seconds * 1_000_000)
        delta.output_bytes += entry.output_bytes
    return deltas


def attempt_rows(entries: Iterable[Finish], time: WriteTime) -> list[Row]:
    return [_attempt_row(entry.ref, attempt, time) for entry in entries for attempt in entry.attempts]


def _attempt_row(ref: ChunkRef, attempt: Attempt, time: WriteTime) -> Row:
    error = attempt.error
    return (
        ref.job,
        attempt.item,
        attempt.number,
        attempt.worker,
        attempt.version,
        str(error.code),
        error.message,
        error.permanent,
        error.stage,
        attempt.traceback,
        time(attempt.at),
    )


def without_ids(entries: Iterable[Finish]) -> list[Place]:
    """Chunks whose children lie in a blob and inherit the item's id."""
    return [
        (entry.ref.job, entry.ref.seq)
        for entry in entries
        if any(isinstance(child.payload, BlobRef) and child.ids is None for child in entry.children)
    ]


def child_rows(
    entries: Iterable[Finish],
    parents: Mapping[str, Parent],
    ids: Mapping[Place, str | None],
    deltas: Mapping[str, Delta],
    *,
    now: datetime,
    publish_lease: timedelta,
    time: WriteTime,
) -> ChildRows:
    """The children of these finishes. One of a job that was asked to stop has ended, and is counted in `deltas`.

    `ids` are the item ids (JSON) of the chunks of `without_ids`.
    """
    made = ChildRows([], [], [])
    leased = time(now + publish_lease)
    last = {job: parent.last_seq for job, parent in parents.items()}
    for entry in entries:
        job = entry.ref.job
        for child in entry.children:
            parent = parents[job]
            seq = last[job] = last[job] + 1
            due = child.not_before is None or child.not_before <= now
            not_before = None if child.not_before is None else time(child.not_before)
            end: tuple[str, bytes | None, str | None] = (ChunkState.QUEUED.value, None, None)
            if parent.stop_as is not None:
                outcome = OUTCOME_OF_STOP[JobState(parent.stop_as)]
                end = (ChunkState.DONE.value, bytes([outcome]) * child.count, parent.stop_reason)
                deltas[job].add(outcome, child.count)
            elif due:
                made.due.append((job, seq))
            state, outcomes, reason = end
            place = (job, seq, parent.tenant, parent.model, parent.version)
            times: tuple[Any, ...] = (not_before, leased if due else not_before, None)
            made.chunks.append((*place, *chunk_columns(child), state, *times, outcomes, reason))
            made.payloads.append(_payload_row(job, seq, child, ids.get((job, entry.ref.seq))))
    return made


def _payload_row(job: str, seq: int, child: NewChunk, inherited: str | None) -> Row:
    row = payload_row(job, seq, child)
    if isinstance(child.payload, BlobRef) and child.ids is None:
        return (*row[:-1], inherited)  # a blob holds a single item, so its child holds the same one
    return row
