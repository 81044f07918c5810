"""Offsets settle per chunk and are committed contiguously; a partition with too much open work is full."""

from hypothesis import given
from hypothesis import strategies as st

from workers.offsets import OffsetTracker


def test_what_is_committable_ends_at_the_first_record_that_is_not_settled() -> None:
    tracker = OffsetTracker()
    first, second, third = (tracker.read(0, offset, [10])[0] for offset in (5, 6, 9))
    tracker.settle(second)
    assert tracker.take_committable() == {0: 5}
    tracker.settle(first)
    assert tracker.take_committable() == {0: 9}
    assert tracker.take_committable() == {}, "given once"
    tracker.settle(third)
    assert tracker.take_committable() == {0: 10}


def test_a_record_is_settled_when_all_of_its_chunks_are() -> None:
    tracker = OffsetTracker()
    chunks = tracker.read(1, 0, [1, 1, 1])
    for chunk in chunks[:2]:
        tracker.settle(chunk)
    assert tracker.take_committable() == {1: 0}
    tracker.settle(chunks[2])
    assert tracker.take_committable() == {1: 1}


def test_an_undecodable_record_is_passed() -> None:
    tracker = OffsetTracker()
    tracker.read(0, 0, [])
    assert tracker.take_committable() == {0: 1}


def test_a_commit_that_failed_is_given_again() -> None:
    tracker = OffsetTracker()
    tracker.read(0, 0, [])
    offsets = tracker.take_committable()
    tracker.forget_commit(offsets)
    assert tracker.take_committable() == offsets


def test_a_partition_is_full_by_chunks_until_half_is_left() -> None:
    tracker = OffsetTracker(max_chunks=4, max_bytes=1000)
    chunks = [tracker.read(0, offset, [1])[0] for offset in range(4)]
    tracker.read(1, 0, [1])
    assert tracker.full() == {0}
    tracker.settle(chunks[3])
    assert tracker.full() == {0}
    tracker.settle(chunks[1])
    assert tracker.full() == frozenset()


def test_a_partition_is_full_by_bytes() -> None:
    tracker = OffsetTracker(max_chunks=100, max_bytes=100)
    (heavy,) = tracker.read(0, 0, [99])
    assert tracker.full() == frozenset()
    tracker.read(0, 1, [1])
    assert tracker.full() == {0}
    tracker.settle(heavy)
    assert tracker.full() == frozenset()


def test_settling_for_a_partition_that_was_taken_away_changes_nothing() -> None:
    tracker = OffsetTracker()
    (gone,) = tracker.read(0, 0, [1])
    (kept,) = tracker.read(1, 0, [1])
    tracker.keep_only(frozenset({1}))
    tracker.settle(gone)
    tracker.settle(kept)
    assert tracker.take_committable() == {1: 1}
    assert tracker.unsettled() == 0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.randoms())
def test_in_whatever_order_chunks_settle_no_commit_passes_an_open_one(sizes: list[int], chance: object) -> None:
    tracker = OffsetTracker()
    chunks = [origin for offset, size in enumerate(sizes) for origin in tracker.read(0, offset, [1] * size)]
    open_chunks = list(chunks)
    chance.shuffle(chunks)  # type: ignore[attr-defined]
    committed = 0
    for chunk in chunks:
        tracker.settle(chunk)
        open_chunks.remove(chunk)
        offset = tracker.take_committable().get(0, committed)
        assert offset >= committed, "never backwards"
        committed = offset
        assert all(left.offset >= committed for left in open_chunks)
    assert committed == len(sizes)
