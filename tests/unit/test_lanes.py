"""Lanes and the order between them; open chunks and their place."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from batcher.batch import Batch, Limits, Span
from batcher.forming import Batcher
from batcher.lanes import Entry, FifoOrder, Head, Lanes

WALL = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Chunk:
    pass


def span(
    job: str, *, tenant: str = "t", priority: str = "normal", key: Any = "k", count: int = 1, **given: Any
) -> Span:
    given.setdefault("chunk", Chunk())
    start = given.pop("start", 0)
    return Span(job=job, tenant=tenant, priority=priority, key=key, start=start, stop=start + count, **given)


def entry(seq: int, job: str, **given: Any) -> Entry:
    one = span(job, **given)
    return Entry(seq, one, (one.priority, one.tenant), (one.key, one.alone))


class HighFirst:
    """What a later policy may look like: priority between lanes, first in, first out within."""

    def pick(self, heads: Sequence[Head]) -> int:
        rank = {"high": 0, "normal": 1, "low": 2}
        return min(range(len(heads)), key=lambda at: (rank[heads[at].lane[0]], heads[at].entry.seq))


def jobs_of(batch: object) -> list[str]:
    assert isinstance(batch, Batch)
    return [part.job for part in batch.spans]


def test_today_the_oldest_head_goes_first_whatever_its_lane() -> None:
    batcher = Batcher(Limits(3))
    for job, tenant, priority in (("a", "t1", "low"), ("b", "t2", "high"), ("c", "t1", "low"), ("d", "t1", "high")):
        batcher.offer(span(job, tenant=tenant, priority=priority))
    assert jobs_of(batcher.next(0.0, WALL)) == ["a", "b", "c"]
    assert jobs_of(batcher.next(0.0, WALL)) == ["d"]


def test_another_order_decides_between_lanes_but_not_within_one() -> None:
    batcher = Batcher(Limits(3), order=HighFirst())
    for job, priority in (("a", "low"), ("b", "normal"), ("c", "high"), ("d", "high"), ("e", "normal")):
        batcher.offer(span(job, priority=priority))
    assert jobs_of(batcher.next(0.0, WALL)) == ["c", "d", "b"]
    assert jobs_of(batcher.next(0.0, WALL)) == ["e", "a"]


def test_lanes_that_are_empty_are_gone() -> None:
    lanes = Lanes(FifoOrder())
    first, second = entry(1, "a", tenant="t1"), entry(2, "b", tenant="t2", key="other")
    lanes.add(first)
    lanes.add(second)
    assert lanes.head() is first
    assert list(lanes.walk(("other", False))) == [second]
    lanes.remove(first)
    assert lanes.head() is second
    assert lanes.oldest() is second
    lanes.remove(second)
    assert lanes.head() is None
    assert lanes.oldest() is None
    assert list(lanes.walk(("k", False))) == []
    assert (lanes._lanes, lanes._holders) == ({}, {})


def test_a_walk_merges_lanes_and_passes_over_other_groups() -> None:
    lanes = Lanes(FifoOrder())
    entries = [entry(seq, f"job_{seq}", tenant=f"t{seq % 3}", key=seq % 2) for seq in range(30)]
    for one in entries:
        lanes.add(one)
    assert [one.seq for one in lanes.walk((1, False))] == [seq for seq in range(30) if seq % 2 == 1]


def test_a_split_span_goes_on_before_the_order_is_asked() -> None:
    batcher = Batcher(Limits(4), order=HighFirst())
    batcher.offer(span("long", priority="low", count=6))
    assert jobs_of(batcher.next(0.0, WALL)) == ["long"]
    batcher.offer(span("urgent", priority="high", count=3))
    assert jobs_of(batcher.next(0.0, WALL)) == ["long", "urgent"]


def test_an_open_chunk_is_continued_before_an_older_job_once() -> None:
    """Chunk c has items of two keys; the batch of key x opens it, so its y items come before the older key z."""
    batcher = Batcher(Limits(4))
    mixed = Chunk()
    batcher.offer(span("a", key="x"))
    batcher.offer(span("b", key="z"))
    batcher.offer(span("c", key="x", chunk=mixed))
    batcher.offer(span("c", key="y", chunk=mixed, start=1))
    assert jobs_of(batcher.next(0.0, WALL)) == ["a", "c"]
    assert jobs_of(batcher.next(0.0, WALL)) == ["c"]
    assert jobs_of(batcher.next(0.0, WALL)) == ["b"]


def test_open_chunks_never_starve_an_older_job() -> None:
    """Every chunk holds both keys, so each batch of one leaves chunks open for the other: z still gets its turn."""
    batcher = Batcher(Limits(2))
    batcher.offer(span("first", key="x"))
    batcher.offer(span("z", key="z"))
    for number in range(40):
        chunk = Chunk()
        batcher.offer(span(f"job_{number}", key="x", chunk=chunk))
        batcher.offer(span(f"job_{number}", key="y", chunk=chunk, start=1))
    order: list[str] = []
    while batcher.queued:
        order += jobs_of(batcher.next(100.0, WALL))
    assert order.index("z") <= 6
