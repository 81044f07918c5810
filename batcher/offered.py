"""Everything that was offered and is in no batch yet, indexed by lane, group, job and chunk.

Every change touches the entries it concerns and nothing else: taking from a span, dropping a job of 100,000 items or
an expired span costs the same with one span queued as with a hundred thousand.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from batcher.batch import Dropped, Span
from batcher.lanes import Entry, Group, Lanes, Order
from jobs.states import ErrorCode

_STALE = 64  # dead clock entries that are tolerated before a heap is rebuilt


class _Group:
    __slots__ = ("clocks", "entries", "items")

    def __init__(self) -> None:
        self.items = 0
        self.entries = 0
        self.clocks: list[tuple[datetime, int, Entry]] = []  # heap; entries that left stay until they surface


class _Chunk:
    __slots__ = ("entries", "open")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.open = False  # a batch took some of its items


class Offered:
    """`full` items make a group ready at any time, `enough` items make it ready for an idle engine."""

    def __init__(self, order: Order, *, full: int, enough: int) -> None:
        self._lanes = Lanes(order)
        self._full = full
        self._enough = enough
        self._seq = 0
        self._groups: dict[Group, _Group] = {}
        self._jobs: dict[str, dict[int, Entry]] = {}
        self._chunks: dict[int, _Chunk] = {}  # by identity; a queued span keeps its chunk alive
        self._open: OrderedDict[int, _Chunk] = OrderedDict()
        self._ready_full: OrderedDict[Group, None] = OrderedDict()
        self._ready_enough: OrderedDict[Group, None] = OrderedDict()
        self._jumped = False  # the last batch went past an older head
        self.items = 0

    # -- what is there

    @property
    def group_count(self) -> int:
        return len(self._groups)

    def count(self, group: Group) -> int:
        """Queued items of a group."""
        return self._groups[group].items

    def head(self) -> Entry | None:
        """Where the next batch starts: an open chunk is continued first, but never twice in a row past an older
        entry, so that nothing waits for ever behind chunks that keep being opened."""
        turn = self._lanes.head()
        if turn is None or not self._open:
            return turn
        chunk = next(iter(self._open.values()))
        continued = next(iter(chunk.entries.values()))
        return turn if self._jumped and turn.seq < continued.seq else continued

    def oldest(self) -> Entry | None:
        return self._lanes.oldest()

    def walk(self, group: Group) -> Iterator[Entry]:
        return self._lanes.walk(group)

    def ready(self, *, idle: bool) -> Group | None:
        """A group with enough items for a batch that goes at once, the one that has been ready longest."""
        return next(iter(self._ready_enough if idle else self._ready_full), None)

    # -- changes

    def add(self, span: Span) -> None:
        self._seq += 1
        entry = Entry(self._seq, span, (span.priority, span.tenant), (span.key, span.alone))
        self._lanes.add(entry)
        own = self._jobs.get(span.job)
        if own is None:
            own = self._jobs[span.job] = {}
        own[entry.seq] = entry
        chunk = self._chunks.get(id(span.chunk))
        if chunk is None:
            chunk = self._chunks[id(span.chunk)] = _Chunk()
        chunk.entries[entry.seq] = entry
        group = self._groups.get(entry.group)
        if group is None:
            group = self._groups[entry.group] = _Group()
        group.entries += 1
        self._counted(entry.group, span.count)
        self._push_clock(group, entry)

    def take(self, chosen: Sequence[tuple[Entry, int]]) -> tuple[Span, ...]:
        """The first items of some entries of one group leave for a batch (how many, beside each); what is left of an
        entry stays where it was."""
        turn = self._lanes.head()
        self._jumped = turn is not None and turn.seq < chosen[0][0].seq
        spans: list[Span] = []
        for entry, items in chosen:
            span = entry.span
            if items == span.count:
                chunk = self._unlink(entry)
            else:
                chunk = self._chunks[id(span.chunk)]
                span, entry.span = _cut(span, items)
                entry.split = True
            if chunk.entries and not chunk.open:
                chunk.open = True
                self._open[id(span.chunk)] = chunk
            spans.append(span)
        self._counted(chosen[0][0].group, -sum(items for _, items in chosen))
        return tuple(spans)

    def _remove(self, entry: Entry) -> None:
        self._unlink(entry)
        self._counted(entry.group, -entry.span.count)

    def _unlink(self, entry: Entry) -> _Chunk:
        """Takes an entry out of every index; its items are to be counted out by the caller."""
        entry.gone = True
        span = entry.span
        self._lanes.remove(entry)
        own = self._jobs[span.job]
        del own[entry.seq]
        if not own:
            del self._jobs[span.job]
        name = id(span.chunk)
        chunk = self._chunks[name]
        del chunk.entries[entry.seq]
        if not chunk.entries:
            del self._chunks[name]
            if chunk.open:
                del self._open[name]
        self._groups[entry.group].entries -= 1
        return chunk

    def discard_job(self, job: str) -> list[Span]:
        return self._discard(self._jobs.get(job, {}).values())

    def discard_chunk(self, chunk: Any) -> list[Span]:
        held = self._chunks.get(id(chunk))
        return self._discard(held.entries.values()) if held else []

    def clear(self) -> list[Span]:
        return self._discard([entry for entries in self._jobs.values() for entry in entries.values()])

    def _discard(self, entries: Iterable[Entry]) -> list[Span]:
        gone = sorted(entries, key=lambda entry: entry.seq)
        for entry in gone:
            self._remove(entry)
        return [entry.span for entry in gone]

    # -- clocks

    def expire(self, group: Group, wall: datetime) -> list[Dropped]:
        """Drops the spans of a group whose queue clock or total clock is up."""
        dropped: list[Dropped] = []
        while (at := self.soonest(group)) is not None and at <= wall:
            _, _, entry = heapq.heappop(self._groups[group].clocks)
            deadline = entry.span.deadline_at
            late = deadline is not None and deadline <= wall
            dropped.append(Dropped(entry.span, ErrorCode.DEADLINE_EXCEEDED if late else ErrorCode.QUEUE_TIMEOUT))
            self._remove(entry)
        return dropped

    def soonest(self, group: Group) -> datetime | None:
        """When the first clock of a group is up."""
        held = self._groups.get(group)
        if held is None:
            return None
        clocks = held.clocks
        while clocks:
            at, seq, entry = clocks[0]
            if entry.gone:
                heapq.heappop(clocks)
                continue
            actual = self._clock(entry)
            if actual == at:
                return at
            # Its chunk was opened since: the queue clock stopped at the claim.
            if actual is None:
                heapq.heappop(clocks)
            else:
                heapq.heapreplace(clocks, (actual, seq, entry))
        return None

    def _clock(self, entry: Entry) -> datetime | None:
        span = entry.span
        queue = None if self._chunks[id(span.chunk)].open else span.queue_deadline_at
        if queue is None or span.deadline_at is None:
            return queue or span.deadline_at
        return min(queue, span.deadline_at)

    def _push_clock(self, group: _Group, entry: Entry) -> None:
        at = self._clock(entry)
        if at is None:
            return
        heapq.heappush(group.clocks, (at, entry.seq, entry))
        if len(group.clocks) > 2 * group.entries + _STALE:
            group.clocks = [clock for clock in group.clocks if not clock[2].gone]
            heapq.heapify(group.clocks)

    def _counted(self, key: Group, change: int) -> None:
        group = self._groups[key]
        before = group.items
        group.items = after = before + change
        self.items += change
        for ready, least in ((self._ready_full, self._full), (self._ready_enough, self._enough)):
            least = 1 if key[1] else least
            if before < least <= after:
                ready[key] = None
            elif after < least <= before:
                del ready[key]
        if not group.entries:
            del self._groups[key]


def _cut(span: Span, items: int) -> tuple[Span, Span]:
    """Written out: dataclasses.replace costs more than all the rest of taking from a span."""
    middle = span.start + items
    first, rest = (
        Span(
            span.chunk, span.job, span.tenant, span.priority, start, stop, span.key, span.lengths, span.alone,
            span.offered_at, span.queue_deadline_at, span.deadline_at,
        )
        for start, stop in ((span.start, middle), (middle, span.stop))
    )  # fmt: skip
    return first, rest
