"""The batcher: forms batches from what is offered, says how long to wait when there is nothing worth running yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from batcher.batch import Batch, Closed, Dropped, Limits, Span, Wait
from batcher.lanes import Entry, FifoOrder, Group, Order
from batcher.offered import Offered
from batcher.waiting import Arrivals, Cost, worth_waiting

Elements = Callable[[tuple[int, ...]], int]
"""Elements of one item whose variable axes have these lengths."""

_GAPS = 2.0  # times max_queue_delay: longer gaps between arrivals are all the same, nobody waits for their end


@dataclass(frozen=True, slots=True)
class _Plan:
    """How much of a group could run now; ``closed`` when nothing can be added to it any more."""

    size: int
    closed: Closed | None


class Batcher:
    """Batches of one model version. Pure and not thread-safe: the caller locks and tells the time.

    * `offer` what may run; `next` gives a Batch, or a Wait with the time at which to ask again. Ask again also after
      every offer and whenever the engine gets free.
    * A batch that cannot grow any more (full, or the next item does not fit `max_padded_elements`) goes at once.
    * While the engine is busy (`engine_free_at`), a batch stays open until `engine_free_at` - `lead`.
    * An idle engine goes now, unless the waiting rule (batcher/waiting.py) says that company is worth waiting for, or
      no preferred size is reached; never beyond `max_queue_delay` after the oldest item was offered, nor so long
      that an item would miss its deadline.
    * While a batch is held open, another batch key that has a full batch goes first; that ends when the oldest item
      has waited for `max_queue_delay`.
    """

    def __init__(
        self,
        limits: Limits,
        elements: Elements | None = None,
        *,
        order: Order | None = None,
        margin: float = 0.010,
    ) -> None:
        """`elements` is None where no axis varies. `margin` (seconds) is what a batch needs besides the engine, to
        keep a deadline: being claimed before and written down after."""
        if limits.max_size < 1:
            raise ValueError(f"max_size is {limits.max_size}, it must be at least 1")
        self.limits = limits
        self.cost = Cost()
        self._elements = elements
        self._preferred = tuple(sorted(size for size in limits.preferred_sizes if 1 <= size <= limits.max_size))
        enough = self._preferred[0] if self._preferred else limits.max_size
        self._offered = Offered(order or FifoOrder(), full=limits.max_size, enough=enough)
        self._arrivals = Arrivals(longest=max(_GAPS * limits.max_queue_delay, 1e-3))
        self._margin = margin
        self._dropped: list[Dropped] = []
        self._held = False  # an idle engine was told to wait for the batch that comes next

    # -- what is there

    @property
    def queued(self) -> int:
        """Items offered and neither taken, discarded nor dropped."""
        return self._offered.items

    @property
    def oldest(self) -> float | None:
        """When the first of them was offered (monotonic seconds)."""
        entry = self._offered.oldest()
        return None if entry is None else entry.span.offered_at

    # -- changes

    def offer(self, span: Span) -> None:
        """Queues a span; `span.offered_at` is now. For items of a chunk that is claimed already leave
        `queue_deadline_at` out: that clock ends with the claim."""
        if span.count < 1:
            raise ValueError(f"span of job {span.job} has no items: [{span.start}, {span.stop})")
        self._offered.add(span)
        self._arrivals.offered(span.count, span.offered_at)

    def discard(self, job: str) -> list[Span]:
        """Takes out everything of a job (it was stopped); gives what was still queued."""
        return self._offered.discard_job(job)

    def discard_chunk(self, chunk: Any) -> list[Span]:
        """Takes out everything of one chunk, named by its handle (its claim was refused)."""
        return self._offered.discard_chunk(chunk)

    def clear(self) -> list[Span]:
        """Takes out everything (the worker stops, or its incarnation is void)."""
        return self._offered.clear()

    def dropped(self) -> list[Dropped]:
        """What `next` dropped since the last call because its time was up. To be asked after every `next`."""
        drained, self._dropped = self._dropped, []
        return drained

    def observe(self, size: int, engine_seconds: float, turnaround_seconds: float) -> None:
        """A batch came back. `turnaround_seconds`: from when it was sent, or the batch before it came back if that
        was later, until its answer was there: all that it kept the engine from doing something else."""
        self.cost.observe(size, max(engine_seconds, turnaround_seconds))

    def estimate(self, size: int) -> float:
        """Seconds from sending a batch of `size` items to a free engine until its answer; 0 when not known yet."""
        return self.cost.estimate(size)

    # -- forming

    def next(self, now: float, wall: datetime, engine_free_at: float | None = None, lead: float = 0.0) -> Batch | Wait:
        """What to run now. `now`: monotonic seconds; `wall`: the same moment, for deadlines; `engine_free_at`: when the
        engine will have done what it was given (None: it is idle); `lead`: seconds from forming a batch to its run.
        """
        while (head := self._offered.head()) is not None:
            if self._expire(head.group, wall):
                continue
            answer = self._decide(head, now, wall, engine_free_at, lead)
            if answer is not None:
                return answer
        self._held = False
        return Wait(None)

    def _decide(
        self, head: Entry, now: float, wall: datetime, engine_free_at: float | None, lead: float
    ) -> Batch | Wait | None:
        """None: something had expired, look again."""
        plan = self._plan(head.group)
        open_until = now if engine_free_at is None else engine_free_at - lead
        busy = open_until > now
        if plan.closed is None and not busy:
            plan = self._preferred_plan(plan)
        if plan.closed is not None:
            return self._form(head.group, plan.size, plan.closed)

        oldest = self._offered.oldest() or head
        due_at = oldest.span.offered_at + self.limits.max_queue_delay
        if not busy:
            open_until = self._patience(head.group, plan.size, now, due_at)
            if open_until <= now:
                # What stayed open because the engine was busy ends with the engine, not with the delay.
                waited = self._held or (bool(self._preferred) and due_at <= now)
                return self._form(head.group, plan.size, Closed.DELAY if waited else Closed.IDLE)
        other = self._offered.ready(idle=not busy)
        if other is not None:
            if self._expire(other, wall):
                return None
            if now < due_at:
                return self._form_ready(other, idle=not busy)
            return self._form(head.group, plan.size, Closed.DELAY)
        last = self._last_start(head.group, plan.size, now, wall)
        if last <= now:
            return self._form(head.group, plan.size, Closed.DEADLINE)
        self._held = not busy
        return Wait(min(open_until, last))

    def _patience(self, group: Group, size: int, now: float, due_at: float) -> float:
        """Until when an idle engine is held back for more of a group (not after `now`: it is not)."""
        if self._preferred:
            return due_at
        if self._offered.group_count > 1:
            return now  # there is other work to do: every second of waiting would delay that too
        expected = self._arrivals.expected(now)
        if expected is None or group[1]:
            return now
        items, gap = expected
        items = min(items, float(self.limits.max_size - size))
        in_time = now + gap <= due_at
        worth = in_time and worth_waiting(size, items, gap, self.cost.overhead, self.cost.per_item)
        return now + gap if worth else now

    def _form_ready(self, group: Group, *, idle: bool) -> Batch:
        plan = self._plan(group)
        if plan.closed is None and idle:
            plan = self._preferred_plan(plan)
        return self._form(group, plan.size, plan.closed or Closed.FULL)

    def _last_start(self, group: Group, size: int, now: float, wall: datetime) -> float:
        """The last moment at which a batch of this group can start and keep the first of its deadlines."""
        soonest = self._offered.soonest(group)
        if soonest is None:
            return float("inf")
        return now + (soonest - wall).total_seconds() - self._margin - self.cost.estimate(size)

    def _plan(self, group: Group) -> _Plan:
        if group[1]:
            return _Plan(1, Closed.FULL)
        limit = self.limits.max_padded_elements
        if self._elements is None or limit is None:
            size = min(self._offered.count(group), self.limits.max_size)
            return _Plan(size, Closed.FULL if size == self.limits.max_size else None)
        size = 0
        for fits, count in self._fitting(group, self._elements, limit):
            if size + min(fits, count) >= self.limits.max_size:
                return _Plan(self.limits.max_size, Closed.FULL)
            size += min(fits, count)
            if fits < count:
                return self._preferred_plan(_Plan(max(size, 1), Closed.MEMORY))
        return _Plan(size, None)

    def _fitting(self, group: Group, elements: Elements, limit: int) -> Iterator[tuple[int, int]]:
        """(items that fit beside all before them, items there are) of each entry in turn, until one does not fit."""
        longest: tuple[int, ...] | None = None
        padded = size = 0  # elements of one item padded to the longest
        for entry in self._offered.walk(group):
            lengths = entry.span.lengths
            grown = lengths if longest is None else tuple(map(max, longest, lengths))
            if grown != longest:
                longest, padded = grown, max(1, elements(grown))
            fits = max(0, limit // padded - size)
            count = entry.span.count
            yield fits, count
            if fits < count:
                return
            size += count

    def _preferred_plan(self, plan: _Plan) -> _Plan:
        """Cut down to the largest preferred size, if one is reached."""
        reached = [size for size in self._preferred if size <= plan.size]
        return _Plan(reached[-1], Closed.FULL) if reached else plan

    def _form(self, group: Group, size: int, closed: Closed) -> Batch:
        chosen: list[tuple[Entry, int]] = []
        missing = size
        for entry in self._offered.walk(group):
            chosen.append((entry, min(missing, entry.span.count)))
            missing -= entry.span.count
            if missing <= 0:
                break
        spans = self._offered.take(chosen)
        self._held = False
        real = padded = 0
        if self._elements is not None:
            elements = self._elements
            real = sum(elements(span.lengths) * span.count for span in spans)
            padded = elements(tuple(map(max, *(span.lengths for span in spans)))) * size if len(spans) > 1 else real
        return Batch(key=group[0], spans=spans, closed=closed, elements=real, padded_elements=padded)

    def _expire(self, group: Group, wall: datetime) -> bool:
        dropped = self._offered.expire(group, wall)
        self._dropped += dropped
        return bool(dropped)
